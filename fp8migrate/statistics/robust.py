"""Summaries of a stretch of a training curve that one spike cannot move."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def final_window(num_points: int, share: float = 0.1, least: int = 50) -> slice:
    """The last `share` of the points or the last `least`, whichever is longer, never more than there are (PARITY.md 3)."""
    # Rounded first: 0.1 × 1230 is 123.00000000000001 in binary.
    length = min(num_points, max(ceil(round(share * num_points, 6)), least))
    return slice(num_points - length, num_points)


def robust_mean(values: Array, blocks: int = 10) -> float:
    """Median of the means of `blocks` consecutive blocks (PARITY.md 3). Fewer points than blocks: the median of the points."""
    if values.size == 0:
        raise ValueError("robust_mean of no values")
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(blocks, values.size))
    return float(np.median([part.mean() for part in parts]))


def block_medians(values: Array, blocks: int) -> Array:
    """Medians of `blocks` consecutive blocks of nearly equal length, (blocks,). NaN is no value; an empty block is NaN."""
    edges = np.linspace(0, values.size, blocks + 1).round().astype(int)
    lengths = np.diff(edges)
    place = edges[:-1, None] + np.arange(max(1, int(lengths.max())))
    inside = place < edges[1:, None]
    padded = np.where(np.isfinite(values), values, np.nan) if values.size else np.full(1, np.nan)
    # Sorting puts NaN last, so the values of a row stand at its start.
    rows = np.sort(np.where(inside, padded[np.minimum(place, padded.size - 1)], np.nan), axis=1)
    count = np.isfinite(rows).sum(axis=1)
    row = np.arange(blocks)
    return np.asarray((rows[row, np.maximum(count - 1, 0) // 2] + rows[row, count // 2 * (count > 0)]) / 2, dtype=np.float64)


def trailing_mean(values: Array, length: int) -> Array:
    """Mean of each value and the `length` − 1 before it; the first ones of what there is. Same shape."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    stop = np.arange(1, values.size + 1)
    start = np.maximum(stop - length, 0)
    return np.asarray((total[stop] - total[start]) / (stop - start), dtype=np.float64)
