"""The live watch of a production run (PARITY.md 6): a betting process over block gaps that may be looked at after every block.

Null: given the blocks before it, the median of a block's gap is at or below its threshold. Each block above multiplies a bet by
1.6, each other by 0.4: fair at worst. The change-point mixture places a bet of weight w_j = 1/((j+1)(j+2)), j from 0, at every
block, since nobody knows when the candidate begins to leave; the weights add up to 1. The wealth is a supermartingale that
starts at 1, so that over the whole run, however long, it reaches 20 with a probability of at most 1/20 (Ville 1939).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fp8migrate.statistics.noninferiority import t_quantile

Array = NDArray[np.float64]

ALARM = 20.0
STAKE = 0.6
FLOOR_QUANTILE = 0.975


@dataclass(frozen=True, eq=False)
class Watch:
    """wealth: M after each block, (blocks,), 1 before the first. alarm: index of the first block with M ≥ 20, or None."""

    wealth: Array
    alarm: int | None


def watch_thresholds(margin: float, floor: Array, floor_pairs: int) -> Array:
    """m + t_.975,ν · τ(t), (blocks,), relative. floor: τ(t) as from `divergence.floor_level`, so ν = the floor's pairs.

    τ is around zero: it takes no degree of freedom for a mean. The quantile leaves 2.5 % for the run's own offset.
    """
    if floor_pairs < 1:
        raise ValueError("a watch needs the noise floor: at least one pair of BF16 runs")
    return margin + t_quantile(FLOOR_QUANTILE, floor_pairs) * np.asarray(floor, dtype=np.float64)


def watch(gaps: ArrayLike, thresholds: ArrayLike) -> Watch:
    """Wealth over block gaps X_j against their thresholds, both (blocks,), relative; a single threshold serves every block.

    Blocks have to be thinned to the decorrelation length first: the null is about each block given those before it.
    A block without a value (NaN) places no bet and moves none. A gap at its threshold is not above it.
    """
    x = np.asarray(gaps, dtype=np.float64)
    limits = np.broadcast_to(np.asarray(thresholds, dtype=np.float64), x.shape)
    if x.ndim != 1 or np.isnan(limits).any():
        raise ValueError(f"expected a row of gaps and a threshold for each, got shapes {x.shape} and {np.shape(thresholds)}")
    present = ~np.isnan(x)
    wealth = np.fromiter(_wealth((x > limits).tolist(), present.tolist()), dtype=np.float64, count=x.size)
    reached = np.flatnonzero(wealth >= ALARM)
    return Watch(wealth, int(reached[0]) if reached.size else None)


def _wealth(above: list[bool], present: list[bool]) -> Iterator[float]:
    """M_j = A_j + 1 − Σ_{i≤j} w_i, with A_j = (A_{j−1} + w_j) · e_j; the weights not yet staked add up to 1/(j + 2)."""
    staked, unstaked, bets = 0.0, 1.0, 0
    for is_above, has_value in zip(above, present, strict=True):
        if has_value:
            weight = 1 / ((bets + 1) * (bets + 2))
            staked = (staked + weight) * (1 + STAKE if is_above else 1 - STAKE)
            unstaked = 1 / (bets + 2)
            bets += 1
        yield staked + unstaked
