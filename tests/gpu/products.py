"""A linear layer's three products exactly, from the operands that our emulation predicts, and how far a layer is off."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS, Gemm, TensorName
from fp8migrate.facts.recipes import Recipe
from fp8migrate.worker.linear import CONTRACTION
from fp8migrate.worker.quantize import quantize

# tokens, in_features, out_features: each GEMM sums over up to 8192 values.
SHAPES = ((2048, 1024, 4096), (2048, 8192, 2048), (8192, 2048, 1024))
_QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)
_SAMPLED = 1 << 22
# One rounding to BF16, and what the tensor core's accumulation may lose of the sum of magnitudes.
_OF_EXACT, _OF_MAGNITUDES = 2.0**-8, 2.0**-11
# Fast accumulation: measured over all recipes and shapes, up to 560 in a million beyond the bound, up to 2.04 times it.
_FAST_BEYOND, _FAST_RATIO = 8e-4, 2.25
Step = tuple[Tensor, Tensor, Tensor]


def layer_inputs(tokens: int, in_features: int, out_features: int, seed: int = 0) -> Step:
    """x, w, dy, BF16: of the sizes met in training, x with outlier channels, dy with outlier tokens."""
    generator = torch.Generator("cuda").manual_seed(seed)
    x, w, dy = (
        torch.randn(rows, cols, generator=generator, device="cuda") * size
        for rows, cols, size in (
            (tokens, in_features, 1.0),
            (out_features, in_features, 0.02),
            (tokens, out_features, 1e-4),
        )
    )
    x[:, ::97] *= 20
    dy[::53] *= 30
    return x.bfloat16(), w.bfloat16(), dy.bfloat16()


def step(layer: nn.Module, x: Tensor, dy: Tensor) -> Step:
    """y, dx, dw of one forward and backward pass."""
    x = x.detach().clone().requires_grad_()
    layer.weight.grad = None
    y = layer(x)
    y.backward(dy)
    assert x.grad is not None
    return y.detach(), x.grad, layer.weight.grad  # type: ignore[return-value]


def exact_products(
    x: Tensor, w: Tensor, dy: Tensor, recipe: Recipe, scales: Mapping[TensorName, Tensor] | None = None
) -> dict[Gemm, tuple[Tensor, Tensor]]:
    """Each product of the quantised operands in float64, and the sum of its terms' magnitudes. scales: delayed ones."""
    tensors: dict[TensorName, Tensor] = {"input": x, "weight": w, "gradient": dy}
    found: dict[Gemm, tuple[Tensor, Tensor]] = {}
    for gemm in GEMMS:
        pair = recipe.operands(gemm)
        low = []
        for name, operand in zip(GEMM_OPERANDS[gemm], pair or (None, None), strict=True):
            value = tensors[name]
            if operand is not None:
                value = quantize(value, operand, CONTRACTION[gemm, name], (scales or {}).get(name)).dequantized()
            low.append(value.double())
        a, b = low
        if gemm == "forward":
            b = b.t()
        if gemm == "weight_gradient":
            a = a.t()
        found[gemm] = a @ b, a.abs() @ b.abs()
    return found


def assert_as_exact(
    what: str, fast: Mapping[Gemm, bool | None], found: Step, exact: Mapping[Gemm, tuple[Tensor, Tensor]]
) -> None:
    """|found − exact| ≤ 2^-8 |exact| + 2^-11 Σ |a||b| for y, dx and dw. fast: all but 8e-4 of those."""
    failures = []
    for gemm, product in zip(GEMMS, found, strict=True):
        reference, magnitudes = exact[gemm]
        error = (product.double() - reference).abs()
        bound = _OF_EXACT * reference.abs() + _OF_MAGNITUDES * magnitudes
        ratio = torch.where(error == 0, 0, error / bound)
        record(
            what=what,
            gemm=gemm,
            shape=list(product.shape),
            accumulation={True: "fast", False: "exact", None: "float32"}[fast[gemm]],
            error_over_bound=quantiles(ratio),
            error_over_magnitudes=quantiles(error / magnitudes),
        )
        # Fast accumulation keeps no float32 sum on the way: up to 330 in a million were beyond, by up to 2.04 x.
        allowed = _FAST_BEYOND * ratio.numel() if fast[gemm] and float(ratio.max()) < _FAST_RATIO else 0
        if int((~(ratio <= 1)).sum()) > allowed:
            at = tuple(int(i) for i in (~(ratio <= 1)).nonzero()[0])
            example = f"at {at} {float(product[at])!r}, exactly {float(reference[at])!r}, Σ|a||b| {float(magnitudes[at])!r}"
            beyond = int((~(ratio <= 1)).sum())
            failures.append(
                f"{what}, {gemm}: {beyond} of {ratio.numel()} beyond the bound, up to {float(ratio.max()):.3g} x; {example}"
            )
    assert not failures, "\n".join(failures)


def quantiles(values: Tensor) -> dict[str, float]:
    flat = values.flatten().double()
    sample = flat[:: max(1, flat.numel() // _SAMPLED)].sort().values
    found = {f"{q}": float(sample[min(len(sample) - 1, int(q * len(sample)))]) for q in _QUANTILES}
    return found | {"1.0": float(flat.max())}


def record(**row: object) -> None:
    """Printed, and added to $OUT/accumulation.json where OUT is set."""
    print(json.dumps(row))
    if out := os.environ.get("OUT"):
        path = Path(out) / "accumulation.json"
        rows = json.loads(path.read_text()) if path.exists() else []
        path.write_text(json.dumps([*rows, row], indent=1))
