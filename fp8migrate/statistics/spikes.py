"""Loss spikes, and whether the candidate has more of its own than the baseline (PARITY.md 5)."""

from dataclasses import dataclass

import numpy as np
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
    likely = _likely(np.asarray(values, dtype=np.float64))
    found = [_confirmed(values, part) for part in np.array_split(likely, max(1, likely.size // _AT_ONCE))]
    return np.concatenate(found) if found else likely


# Rounding in running sums must not decide: they only choose which steps are looked at.
_SLACK = 0.9
_AT_ONCE = 1 << 14
_ABSURD = 1e100


def _likely(values: Array) -> NDArray[np.int64]:
    """Indices that may be spikes, by running sums: the exact windows of a million steps would fill a gigabyte."""
    # The square of what is larger would leave float64, and a running sum never comes back from that.
    finite = np.abs(values) < _ABSURD
    centre = float(np.median(values[finite])) if finite.any() else 0.0
    shifted = np.where(finite, values - centre, 0.0)
    sums, squares, lacking = (_window_sums(part) for part in (shifted, shifted**2, (~finite).astype(np.float64)))
    mean = sums / HISTORY
    variance = np.maximum(squares - HISTORY * mean**2, 0.0) / (HISTORY - 1)
    with np.errstate(invalid="ignore"):
        above = shifted[HISTORY:] > mean + _SLACK * DEVIATIONS * np.sqrt(variance) - 1e-9 * (np.abs(mean) + abs(centre))
    above = (above & finite[HISTORY:]) | (values[HISTORY:] >= _ABSURD)
    return np.flatnonzero(above & (lacking < 0.5)) + HISTORY


def _window_sums(values: Array) -> Array:
    """Sum of the HISTORY values before each, from the HISTORYth on: (n,) → (n − HISTORY,)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray((total[HISTORY:-1] - total[: -HISTORY - 1]), dtype=np.float64)


def _confirmed(values: Array, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the indices that are spikes, by their own windows."""
    history = np.asarray(values, dtype=np.float64)[indices[:, None] - np.arange(HISTORY, 0, -1)]
    with np.errstate(over="ignore", invalid="ignore"):
        limit = history.mean(axis=1) + DEVIATIONS * history.std(axis=1, ddof=1)
    return np.asarray(indices[values[indices] > limit], dtype=np.int64)


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
