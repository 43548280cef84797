"""Curves made small enough to draw and to store, and the gap between two of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.schema import PairCurves
from fp8migrate.records.schema import Series

# Below this many points a curve is shown as logged; above, as medians of this many blocks at most.
MAX_BLOCKS = 100
MIN_POINTS_PER_BLOCK = 3


@dataclass(frozen=True, eq=False)
class Line:
    """Points in the order of their steps; NaN breaks the line."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def finite(self) -> NDArray[np.float64]:
        return self.values[np.isfinite(self.values)]


@dataclass(frozen=True, eq=False)
class Band:
    """The range between several lines at each step."""

    steps: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def line_of(series: Series) -> Line:
    return Line(series.steps.astype(np.float64), series.values.astype(np.float64))


def kept_points(values: NDArray[np.float64], max_points: int) -> NDArray[np.int64]:
    """Which points a decimated curve keeps: of each bucket the lowest, the highest and the first that is not finite.

    So no spike and no NaN disappears, however long the curve. The first and the last point always stay.
    """
    if values.size <= max_points:
        return np.arange(values.size, dtype=np.int64)
    kept = {0, values.size - 1}
    edges = np.linspace(0, values.size, max(1, max_points // 3) + 1).astype(np.int64)
    for first, last in pairwise(edges):
        finite = np.isfinite(values[first:last])
        where = first + np.flatnonzero(finite)
        if where.size:
            kept |= {int(where[np.argmin(values[where])]), int(where[np.argmax(values[where])])}
        if where.size < last - first:
            kept.add(int(first + np.argmin(finite)))
    return np.array(sorted(kept), dtype=np.int64)


def decimate(line: Line, max_points: int) -> Line:
    kept = kept_points(line.values, max_points)
    return Line(line.steps[kept], line.values[kept])


def gap_of(pair: PairCurves) -> Line:
    """(candidate - baseline) / baseline on the steps that both logged; NaN where either is not finite."""
    steps, left, right = np.intersect1d(pair.baseline.steps, pair.candidate.steps, return_indices=True)
    baseline, candidate = pair.baseline.values[left], pair.candidate.values[right]
    usable = np.isfinite(baseline) & np.isfinite(candidate) & (baseline != 0)
    values = np.full(steps.size, np.nan)
    values[usable] = (candidate[usable] - baseline[usable]) / baseline[usable]
    return Line(steps.astype(np.float64), values)


def block_edges(lines: Sequence[Line]) -> NDArray[np.float64]:
    """Edges of blocks that all lines share, so that they can be averaged block by block."""
    filled = [line for line in lines if line.steps.size]
    if not filled:
        return np.zeros(0)
    longest = max(line.steps.size for line in filled)
    blocks = int(np.clip(longest // MIN_POINTS_PER_BLOCK, 1, MAX_BLOCKS))
    first, last = min(line.steps[0] for line in filled), max(line.steps[-1] for line in filled)
    return np.linspace(first, last + 1, blocks + 1, dtype=np.float64)


def block_medians(line: Line, edges: NDArray[np.float64]) -> Line:
    """The median of the finite values of each block, at the block's middle; NaN where a block has none."""
    cuts = np.searchsorted(line.steps, edges)
    values = np.full(max(edges.size - 1, 0), np.nan)
    for block in range(values.size):
        part = line.values[cuts[block] : cuts[block + 1]]
        part = part[np.isfinite(part)]
        if part.size:
            values[block] = np.median(part)
    return Line((edges[:-1] + edges[1:]) / 2, values)


def mean_of(lines: Sequence[Line]) -> Line | None:
    """Block by block the mean over lines with the same steps. A block in which any line has broken off has no mean."""
    if not lines:
        return None
    return Line(lines[0].steps, np.mean(np.stack([line.values for line in lines]), axis=0))


def band_of(lines: Sequence[Line]) -> Band | None:
    """The range of lines with the same steps, over the blocks in which all are finite."""
    if len(lines) < 2:
        return None
    values = np.stack([line.values for line in lines])
    usable = np.isfinite(values).all(axis=0)
    if not usable.any():
        return None
    return Band(lines[0].steps[usable], values[:, usable].min(axis=0), values[:, usable].max(axis=0))


def first_non_finite(line: Line) -> float | None:
    """The first step whose value is NaN or infinite."""
    broken = np.flatnonzero(~np.isfinite(line.values))
    return float(line.steps[broken[0]]) if broken.size else None
