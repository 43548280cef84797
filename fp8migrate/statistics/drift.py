"""Does a gap still widen at the end of the run, and where would it be later? Linear in the logarithm of the steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fp8migrate.statistics.noninferiority import Bounds, bounds, welch_difference

Array = NDArray[np.float64]

# PARITY.md 5: gap(last 10 %) − gap(50–60 %).
EARLY, LATE = (0.5, 0.6), (0.9, 1.0)


@dataclass(frozen=True)
class Drift:
    """widening: bounds of the growth between the two windows, over pairs. projected: of the gap at `horizon` × the run."""

    widening: Bounds
    projected: Bounds
    horizon: float


def widening(gap: Array) -> float:
    """Growth of one pair's relative gap, (steps,), from the window 50–60 % to the last 10 %: difference of their medians."""
    return float(np.median(_window(gap, LATE)) - np.median(_window(gap, EARLY)))


def drift(growth: Array, final_gaps: Array, horizon: float, sampling_error: float = 0.0) -> Drift:
    """Project each pair's final gap along its own growth. growth, final_gaps: (pairs,), relative.

    A gap that grew by `growth` between the windows' centres, 55 % and 95 % of the run, grows by
    growth · ln(horizon) / ln(0.95/0.55) until `horizon` times the run.
    """
    factor = np.log(horizon) / np.log(sum(LATE) / sum(EARLY))
    return Drift(bounds(growth), bounds(final_gaps + factor * growth, sampling_error), horizon)


def drift_of_groups(growths: tuple[ArrayLike, ArrayLike], finals: tuple[ArrayLike, ArrayLike], horizon: float) -> Drift:
    """As `drift`, of unpaired groups, (baseline, candidate) each. growths: ln(late loss) − ln(early loss) of each run; finals:
    ln of its final loss. Differences of logarithms are relative gaps, and Welch's bounds are of their difference.
    """
    factor = np.log(horizon) / np.log(sum(LATE) / sum(EARLY))
    ahead = [np.asarray(final) + factor * np.asarray(growth) for final, growth in zip(finals, growths, strict=True)]
    return Drift(welch_difference(*growths), welch_difference(*ahead), horizon)


def _window(gap: Array, shares: tuple[float, float]) -> Array:
    start, stop = (round(share * gap.size) for share in shares)
    return gap[start:stop]
