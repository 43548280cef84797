"""Summaries of a stretch of a training curve that one spike cannot move."""

from itertools import pairwise
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
    found = np.full(blocks, np.nan)
    for index, (start, stop) in enumerate(pairwise(edges)):
        block = values[start:stop]
        block = block[np.isfinite(block)]
        if block.size:
            found[index] = np.median(block)
    return found
