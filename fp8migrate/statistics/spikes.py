"""Loss spikes, and whether the candidate has more of its own than the baseline (PARITY.md 5)."""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import special

Array = NDArray[np.float64]

HISTORY = 128
DEVIATIONS = 6.0
SEPARATION = 50
EXCESS_ALPHA = 0.01


@dataclass(frozen=True)
class OwnSpikes:
    """Spikes that only one arm has. shared: those at the same step in both, which are data."""

    baseline: int
    candidate: int
    shared: int


def spike_steps(values: Array) -> NDArray[np.int64]:
    """Indices whose value is above the mean of the previous 128 values by 6 of their SDs. NaN is no spike and no history.

    A spike inside the history widens its SD, so what follows within 128 steps counts only if it is larger still.
    """
    if values.size <= HISTORY:
        return np.empty(0, dtype=np.int64)
    history = sliding_window_view(np.asarray(values, dtype=np.float64), HISTORY)[:-1]
    limit = history.mean(axis=1) + DEVIATIONS * history.std(axis=1, ddof=1)
    return np.flatnonzero(values[HISTORY:] > limit) + HISTORY


def spike_events(steps: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Spikes less than 50 steps apart are one: the steps of each."""
    if steps.size == 0:
        return []
    return np.split(steps, np.flatnonzero(np.diff(steps) >= SEPARATION) + 1)


def own_spikes(baseline: Array, candidate: Array) -> OwnSpikes:
    """Spikes of each arm that share no step with a spike of the other. Both (steps,), on the same steps."""
    in_b, in_c = spike_steps(baseline), spike_steps(candidate)
    events_b, events_c = spike_events(in_b), spike_events(in_c)
    only_b = sum(not np.isin(event, in_c).any() for event in events_b)
    only_c = sum(not np.isin(event, in_b).any() for event in events_c)
    return OwnSpikes(only_b, only_c, len(events_c) - only_c)


def excess_p_value(candidate: int, baseline: int, share: float = 0.5) -> float:
    """P(Bin(n_F + n_B, share) ≥ n_F): how likely so many of all spikes fall to the candidate by chance.

    share: the candidate's share of the runs that were watched, ½ for pairs; 3 candidate runs against 5 have ⅜.
    """
    if not 0 < share < 1:
        raise ValueError(f"the candidate's share of the runs lies between 0 and 1, not at {share}")
    return float(special.bdtrc(candidate - 1, candidate + baseline, share))
