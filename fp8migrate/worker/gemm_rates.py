"""How fast this GPU multiplies at a model's shapes: `torch.mm` in BF16, `torch._scaled_mm` in FP8 with a scale per tensor.

Nothing but the products is timed: no cast, no transposition. What a step could gain at most follows from these.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.units import units


class GemmShape(NamedTuple):
    """y [m, n] = a [m, k] · b [k, n], so many times in a step."""

    name: str
    gemm: Gemm
    m: int
    n: int
    k: int
    times: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


def step_gemms(model: LlamaModel, tokens: int) -> Iterator[GemmShape]:
    """Every product with a weight in one step of the packed model on so many tokens."""
    counts: dict[tuple[str, int, int], int] = {}
    for unit in units(gemm_sites(model, 1), "packed"):  # shapes of weights do not depend on the length of sequences
        key = (unit.name.rpartition(".")[2], unit.out_features, unit.in_features)
        counts[key] = counts.get(key, 0) + 1
    for (name, out, in_), count in counts.items():
        for gemm, (m, n, k) in zip(GEMMS, ((tokens, out, in_), (tokens, in_, out), (out, in_, tokens)), strict=True):
            yield GemmShape(name, gemm, m, n, k, count)


def measure(shape: GemmShape, device: torch.device) -> dict[str, object]:
    """Seconds of one product in BF16 and in FP8 (fast and exact accumulation); FP8 is None where this GPU has none."""
    row: dict[str, object] = {**shape._asdict(), "bf16": seconds(_bf16(shape, device))}
    for name, fast in (("fp8_fast", True), ("fp8_exact", False)):
        try:
            row[name] = seconds(_fp8(shape, device, fast))
        except RuntimeError as error:
            row[name], row[f"{name}_error"] = None, str(error).splitlines()[0]
    return row


def seconds(run: Callable[[], object], *, warm_up: int = 3, repeats: int = 10) -> float:
    """Of one run, from several in a row on the GPU."""
    for _ in range(warm_up):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000 / repeats


def _bf16(shape: GemmShape, device: torch.device) -> Callable[[], Tensor]:
    """Operands in the layouts in which training has them: rows of x, w and dy."""
    m, n, k = shape.m, shape.n, shape.k
    if shape.gemm == "forward":
        a, b = _normal(m, k, device), _normal(n, k, device).t()
    elif shape.gemm == "data_gradient":
        a, b = _normal(m, k, device), _normal(k, n, device)
    else:
        a, b = _normal(k, m, device).t(), _normal(k, n, device)
    return lambda: torch.mm(a, b)


def _fp8(shape: GemmShape, device: torch.device, fast: bool) -> Callable[[], Tensor]:
    """Hopper's FP8 products take both operands in rows along k. Gradients are E5M2, the rest E4M3, as in the hybrid recipe."""
    gradient = torch.float8_e4m3fn if shape.gemm == "forward" else torch.float8_e5m2
    a = _normal(shape.m, shape.k, device).to(gradient)
    b = _normal(shape.n, shape.k, device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)


def _normal(rows: int, columns: int, device: torch.device) -> Tensor:
    # Values matter: products of zeros draw less power, and the clock stays higher.
    return torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
