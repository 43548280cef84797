"""Has a run diverged from its partner? The block rule of PARITY.md 5, on the relative gap of the training losses."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fp8migrate.statistics.noninferiority import t_quantile
from fp8migrate.statistics.robust import block_medians

Array = NDArray[np.float64]

# PARITY.md 5.
BLOCKS = 100
LEAST_STEPS_FOR_BLOCKS = 500
LEAST_GAP = 0.01
MARGINS = 4
FLOORS = 4.0
# FP8 injects its noise at every step and may spread its pairs three times as far as one ulp does (PARITY.md 1 and 9). Four
# floors, taken from four floor pairs, then call one healthy pair in eight diverged: the quantile below keeps it at 1 in 500.
CANDIDATE_SPREAD = 3.0
ALPHA_PER_PAIR = 0.002
RUN_OF_BLOCKS = 5
# Below this a log's points are too few to be blocks.
LEAST_POINTS_OF_LOG = 20
# A gap this many times its threshold in the last block alone is no end to be judged, though too short for a divergence.
GROSS_END = 4.0
IGNORED_SHARE = 0.05
QUARTERS = 4


@dataclass(frozen=True)
class Divergence:
    """Where a run left its partner. share: of the run at the end of the block that decided; gap and threshold there."""

    share: float
    gap: float
    threshold: float


def num_blocks(num_steps: int) -> int:
    """Blocks of 1 % of the run; below 500 steps its four quarters."""
    return BLOCKS if num_steps >= LEAST_STEPS_FOR_BLOCKS else QUARTERS


def gap_blocks(gap: Array) -> Array:
    """Block medians of a relative gap over a run's steps: (BLOCKS,), or (4,) for a run below 500 steps."""
    return block_medians(gap, num_blocks(gap.size))


def log_blocks(points: int) -> int:
    """Blocks of somebody's log, which may hold few points of a long run: 1 % of the run, a point each below 100 points."""
    return min(BLOCKS, points) if points >= LEAST_POINTS_OF_LOG else QUARTERS


def floor_level(floor_blocks: Array) -> Array:
    """τ(t): root mean square over the floor's pairs, (pairs, blocks) → (blocks,). Blocks without a value count as 0.

    Around zero, not around their mean: two BF16 runs one ulp apart have no true gap.
    """
    finite = np.isfinite(floor_blocks)
    squares = np.where(finite, floor_blocks, 0.0) ** 2
    return np.asarray(np.sqrt(squares.sum(axis=0) / np.maximum(finite.sum(axis=0), 1)), dtype=np.float64)


def block_noise(gap: Array, blocks: int) -> float:
    """SE of a block median from the noise between neighbouring steps of a relative gap, (steps,): data that is not shared.

    Differences of neighbours have √2 times the SD of a step; a median's SE is √(π/2) of a mean's. 0 with too few steps.
    """
    finite = gap[np.isfinite(gap)]
    if finite.size < 2 * QUARTERS:
        return 0.0
    per_block = max(1.0, gap.size / blocks)
    return float(np.diff(finite).std(ddof=1) / np.sqrt(2.0) * np.sqrt(np.pi / 2) / np.sqrt(per_block))


@lru_cache
def floor_factor(floor_pairs: int) -> float:
    """Floors that a gap must exceed: a t quantile (ν = pairs: τ is taken around zero) of a spread three times the floor.

    A single floor pair counts as two: its own quantile, 159, would excuse anything.
    """
    if floor_pairs == 0:
        return FLOORS
    return max(FLOORS, CANDIDATE_SPREAD * t_quantile(1 - ALPHA_PER_PAIR, max(2, floor_pairs)))


def threshold(margin: float, floor: Array, floor_pairs: int, penalty: float = 0.0) -> Array:
    """max(1 %, 4m, m + k·τ(t)), (blocks,), above the forward penalty.

    The noise counts from the margin on: a candidate that is worse by the margin has not diverged.
    penalty: what the FP8 forward alone adds to the candidate's training loss: no lost quality (PARITY.md 1). It counts up to
    the least threshold itself, so that a forward that falls apart is not excused by its own size.
    """
    least = max(LEAST_GAP, MARGINS * margin)
    return np.maximum(least, margin + floor_factor(floor_pairs) * floor) + min(max(penalty, 0.0), least)


def divergence(gaps: Array, thresholds: Array) -> Divergence | None:
    """Judge block medians `gaps` against `thresholds`, both (blocks,) as from `gap_blocks` and `threshold`.

    The tail of a run that was cut short is NaN: its last blocks are the last that have a value.
    """
    if gaps.size == QUARTERS:
        return _screen_divergence(gaps, thresholds)
    above = np.nan_to_num(gaps, nan=-np.inf) > thresholds
    above[: round(IGNORED_SHARE * gaps.size)] = False
    index = _end_of_first_run(above, RUN_OF_BLOCKS)
    if index is None:
        index = _last_if_still_above(gaps, above)
    return None if index is None else Divergence((index + 1) / gaps.size, float(gaps[index]), float(thresholds[index]))


def _last_if_still_above(gaps: Array, above: NDArray[np.bool_]) -> int | None:
    """Index of the last block that has a value, where it and the two before are above and not falling."""
    present = np.flatnonzero(np.isfinite(gaps))
    if present.size < 3:
        return None
    last_three = present[-3:]
    not_falling = gaps[last_three[-1]] >= gaps[last_three[0]]
    return int(last_three[-1]) if above[last_three].all() and not_falling else None


def _screen_divergence(quarters: Array, thresholds: Array) -> Divergence | None:
    """Short runs: the last quarter is above the threshold and above the third."""
    if quarters[3] > thresholds[3] and quarters[3] > quarters[2]:
        return Divergence(1.0, float(quarters[3]), float(thresholds[3]))
    return None


def _end_of_first_run(flags: NDArray[np.bool_], length: int) -> int | None:
    """Index at which `length` flags in a row are reached for the first time."""
    count = 0
    for index, flag in enumerate(flags):
        count = count + 1 if flag else 0
        if count == length:
            return index
    return None
