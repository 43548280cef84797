"""Which runs saw the same data in the same order? Told by the noise of their losses, never assumed (PARITY.md 2).

Two runs on one data order share the noise of every batch: per step 0.105 nats on public 124M runs, where their difference at
the same step has 0.004 (PARITY.md 1). Runs on other orders share the trend alone, so the trend is taken away first.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# PARITY.md 2: correlation of detrended per-step losses.
PAIRED_ABOVE = 0.9
# The trend: a centred moving mean this wide, from which every point of the window's middle is measured.
_WINDOW = 21
# Fewer points of noise than this tell nothing. At 40, chance alone exceeds 0.7 less than once in a million (t = 6.0, ν = 38).
LEAST_POINTS = 40

Kind = Literal["pairs", "shared", "unpaired", "unknown"]


@dataclass(frozen=True)
class Pairing:
    """How the runs of two groups belong together.

    pairs: each candidate has one baseline of its own data order, (baseline, candidate) indices. shared: all runs of both
    groups saw one data order, so that no pair is nearer than another. unpaired: data orders differ, or match in part.
    unknown: losses too few or too smooth to tell.
    """

    kind: Kind
    pairs: tuple[tuple[int, int], ...] = ()


def noise(losses: Array) -> Array:
    """Losses (steps,) without their trend: second half of the run, each point less the moving mean around it.

    The first half is left out, where the loss falls fastest and every run's curve bends alike. Empty if too short.
    """
    tail = losses[losses.size // 2 :]
    if tail.size < _WINDOW + LEAST_POINTS - 1:
        return np.empty(0)
    trend = np.convolve(tail, np.full(_WINDOW, 1 / _WINDOW), mode="valid")
    half = _WINDOW // 2
    return np.asarray(tail[half : tail.size - half] - trend, dtype=np.float64)


def noise_correlation(left: Array, right: Array) -> float | None:
    """Correlation of the noise of two loss curves on the same steps, (steps,) each.

    None where they are too short, not finite in their second half, or without any noise.
    """
    if left.shape != right.shape:
        raise ValueError(f"losses {left.shape} and {right.shape} are not on the same steps")
    a, b = noise(left), noise(right)
    if a.size == 0 or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        spreads = [float(one.std()) for one in (a, b)]
    # Rounding leaves about 1e-16 of the loss in a curve without noise.
    least = 1e-12 * max(float(np.abs(left[np.isfinite(left)]).max()), float(np.abs(right[np.isfinite(right)]).max()))
    if not np.isfinite(spreads).all() or min(spreads) <= least:
        return None
    return float(np.mean((a - a.mean()) / spreads[0] * ((b - b.mean()) / spreads[1])))


def pair_up(correlations: Array) -> Pairing:
    """Match runs by the correlations of their noise, (baselines, candidates); NaN where it is not known.

    One doubtful match is enough not to pair: a false pair would claim less noise than there is.
    """
    if correlations.size == 0 or np.isnan(correlations).any():
        return Pairing("unknown")
    together = correlations > PAIRED_ABOVE
    if together.all():
        return Pairing("pairs", ((0, 0),)) if together.size == 1 else Pairing("shared")
    square = together.shape[0] == together.shape[1]
    if square and (together.sum(axis=0) == 1).all() and (together.sum(axis=1) == 1).all():
        return Pairing("pairs", tuple((int(row), int(column)) for row, column in np.argwhere(together)))
    return Pairing("unpaired")
