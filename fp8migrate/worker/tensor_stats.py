"""What an operand would lose of a BF16 tensor: underflow, overflow, SQNR and the range of its scales, from some of its rows.

The quantiser is the emulation's own, over the tensors of several layers at once (vmap): in small models one layer's tensor is
too small to be worth an operation. Shapes: l layers, r rows that were taken, c columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor

from fp8migrate.facts.operands import Operand
from fp8migrate.worker.quantize import quantize, rotate
from fp8migrate.worker.scaling import next_scales

STATISTICS = ("sqnr_db", "underflow", "overflow", "least_log2_scale", "largest_log2_scale")
# Stochastic rounding draws the same chances at every look: a repeated run gives the same table.
_NOISE_SEED = 20_260_000


@dataclass(frozen=True)
class Rows:
    """The first rows of one tensor in each of l layers, BF16 [l, r, c].

    column_amax: BF16 [l, c], the largest magnitudes over all rows of the tensors; None where the rows are all there are.
    """

    values: Tensor
    column_amax: Tensor | None = None

    @cached_property
    def exact(self) -> Tensor:
        """The values as float32: mixed dtypes are five times as slow."""
        return self.values.to(torch.float32)

    @cached_property
    def signal(self) -> Tensor:
        return _norms(self.exact)

    @cached_property
    def nonzero(self) -> Tensor:
        return _nonzero(self.exact)

    def with_maxima(self) -> Tensor:
        """One more row that holds each column's maximum: scales that look beyond the rows taken come out as they would."""
        return self.values if self.column_amax is None else torch.cat((self.values, self.column_amax[:, None]), 1)


def take(values: Tensor, most_rows: int) -> Rows:
    """The first rows of a tensor [rows, c] of any float dtype, as a group of one."""
    rows = values[:most_rows].to(torch.bfloat16)[None]
    # Rounding is monotone: the maximum of the rounded values is the rounded maximum.
    return Rows(rows, None if len(values) <= most_rows else values.abs().amax(0).to(torch.bfloat16)[None])


def stacked(group: list[Rows]) -> Rows:
    """Groups of equal shapes as one."""
    if len(group) == 1:
        return group[0]
    maxima = [rows.column_amax for rows in group if rows.column_amax is not None]
    return Rows(torch.cat([rows.values for rows in group]), torch.cat(maxima) if maxima else None)


def losses(rows: Rows, operand: Operand, along: int, scale: Tensor | None = None) -> Tensor:
    """STATISTICS of each layer's tensor under an operand, float64 [len(STATISTICS), l]. scale: float32 [l], where delayed.

    underflow: share of the nonzero values that become zero. overflow: share of all values that are clipped: to nearest, a
    greater number of the format would have been nearer (IEEE 754, 7.4). SQNR: 10 log10(|x|² / |x - quantised|²), +Inf without
    noise, among rotated values where the operand is rotated. Scales: log2 of what a cast value is multiplied by.
    """
    values = rows.with_maxima() if _looks_beyond(operand, along) else rows.values
    if operand.constant is not None:
        scale = torch.full((len(values),), operand.constant, device=values.device)
    exact, back, grid, inverse = _over_layers(partial(_quantized, operand, along), values, scale)
    if operand.hadamard:
        signal, nonzero = _norms(exact), _nonzero(exact)
    else:
        taken = rows.values.shape[1]
        exact, signal, nonzero = rows.exact, rows.signal, rows.nonzero
        back, grid = back[:, :taken], grid[:, :taken]
    noise = _norms(back - exact)
    lost = nonzero - _nonzero(back)
    clipped = _clipped(exact, back, grid, operand) if _can_clip(operand) else torch.zeros_like(nonzero)
    used = inverse.reshape(len(inverse), -1).double()
    return torch.stack(
        (
            torch.where(noise == 0, torch.inf, 20 * torch.log10(signal / noise)),
            lost / nonzero.clamp(min=1),
            clipped / exact[0].numel(),
            torch.where(used > 0, used, torch.inf).amin(1).log2(),
            used.amax(1).log2(),
        )
    )


Parts = tuple[Tensor, ...]


def _over_layers(work: Callable[[Tensor, Tensor | None], Parts], values: Tensor, scale: Tensor | None) -> Parts:
    """`work` on each layer's values and scale, its results stacked: the same bits, all at once where torch can."""
    if _vmap_takes_views():
        found: Parts = torch.vmap(work, in_dims=(0, None if scale is None else 0))(values, scale)
        return found
    alone = [work(values[layer], None if scale is None else scale[layer]) for layer in range(len(values))]
    return tuple(map(torch.stack, zip(*alone, strict=True)))


@cache
def _vmap_takes_views() -> bool:
    """Rounding looks at a float's bits: torch 2.13 can under vmap, torch 2.11 cannot."""
    try:
        torch.vmap(lambda x: x.view(torch.int32))(torch.zeros(1, 1))
    except RuntimeError:
        return False
    return True


def _quantized(operand: Operand, along: int, values: Tensor, scale: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One tensor: what goes in (rotated, where it is), what comes back, the cast values, and what they are multiplied by."""
    seed = torch.tensor(_NOISE_SEED, device=values.device) if operand.stochastic else None
    found = quantize(values, operand, along, scale, seed)
    exact = rotate(values, operand.hadamard, along).to(torch.float32) if operand.hadamard else values
    inverse = found.inverse_scale if found.outer is None else found.inverse_scale * found.outer
    return exact, found.dequantized(), found.values, inverse


def _norms(x: Tensor) -> Tensor:
    """|x| of each layer, float64 [l]: squares of gradients leave float32's range."""
    found: Tensor = torch.linalg.vector_norm(x, dim=(1, 2), dtype=torch.float64)
    return found


def _nonzero(x: Tensor) -> Tensor:
    """Nonzero values of each layer, float64 [l]. A third of count_nonzero's time; NaN where there is one."""
    return x.sign().abs_().sum(2).double().sum(1)


def _looks_beyond(operand: Operand, along: int) -> bool:
    """Whether a scale depends on rows that were not taken. Of a rotated tensor the rest is not known without rotating it."""
    if operand.history is not None or operand.constant is not None or operand.hadamard:
        return False
    across, length = operand.tile
    return operand.scale == "e4m3" or (across if along == 1 else length) is None


def _can_clip(operand: Operand) -> bool:
    """Other scales come from the tile's own maximum and map it to the largest number at most."""
    return operand.history is not None or operand.constant is not None or operand.scale == "e4m3"


def _clipped(exact: Tensor, back: Tensor, grid: Tensor, operand: Operand) -> Tensor:
    """Values [l, r, c] beyond the largest number by more than half of its last step, counted by layer."""
    largest = operand.format.max_finite
    half_step = 2.0 ** (torch.tensor(largest).log2().floor().item() - operand.format.mantissa_bits - 1)
    at_the_end = (grid.abs() == largest) & (back != 0)
    return torch.count_nonzero(at_the_end & (exact.abs() > back.abs() * (1 + half_step / largest)), (1, 2)).double()


def delayed_scales(amaxes: list[list[float]], operand: Operand, device: torch.device) -> Tensor:
    """Scales float32 [l] from each layer's maxima of earlier passes, the newest first."""
    assert operand.history is not None
    history_lp = torch.tensor(amaxes, dtype=torch.float32, device=device)[:, : operand.history.length]
    return next_scales(history_lp, torch.ones(len(amaxes), device=device), operand.format.max_finite, operand.history)
