"""How close two tensors are: the measures that the numerics checks judge."""

import math

from torch import Tensor


def agreement(name: str, reference: Tensor, measured: Tensor) -> dict[str, object]:
    """One row of a table. sqnr_db: 10 log10(|ref|² / |ref - measured|²), +Inf where equal; cosine of the two as vectors.

    A reference of all zeros has no signal: its SQNR is +Inf where the other is zero too, else -Inf.
    """
    a, b = reference.detach().double().flatten(), measured.detach().double().flatten()
    signal, noise = float(a.square().sum()), float((a - b).square().sum())
    other = float(b.square().sum())
    norms = math.sqrt(signal * other)
    return {
        "name": name,
        "sqnr_db": _decibels(signal, noise),
        "cosine": float(a @ b) / norms if norms > 0 else float(signal == other),
        "reference_norm": math.sqrt(signal),
        "fp8_norm": math.sqrt(other),
        "finite": bool(math.isfinite(noise)),
    }


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    ratio = signal / noise
    # Zero too where the noise is Inf: an overflow in one arm.
    return -math.inf if ratio == 0 else 10 * math.log10(ratio)
