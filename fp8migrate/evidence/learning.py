"""What a logged loss curve shows by itself: that the run did not learn, and where it jumped."""

import numpy as np
from numpy.typing import NDArray

from fp8migrate.statistics.robust import robust_mean

Array = NDArray[np.float64]

# A model with more nats than this has untrained weights: no vocabulary in use gives a trained model as much.
UNTRAINED_NATS = 5.0
# Such a run must fall at least this far from its first loss; a uniform guess over 50k tokens has 10.8 nats.
LEARNED_SHARE_OF_FIRST = 0.95
# A run that ends this far above the best tenth of its own has lost what it had learned.
LOST_SHARE = 1.2
TENTHS = 10
# A fall must exceed its own standard error this many times, or it is noise.
ERRORS_TO_SHOW = 3.0
# A loss that jumps to more than this many times the largest of the eight before.
GROSS = 2.0
GROSS_HISTORY = 8


def not_learned(losses: Array) -> str:
    """Why a run, (steps,) of its training loss, did not learn; empty where it did or where there are too few points to tell.

    Of a run from random weights (first loss above 5 nats) a fall of 5 % is asked; no run may end far above its own best. That a
    run from a trained checkpoint falls at all is asked of all baseline runs together (`flat`): one alone may be too noisy.
    """
    finite = losses[np.isfinite(losses)]
    if finite.size < 2 * TENTHS:
        return "" if finite.size < 2 or finite[-1] < finite[0] else f"ends no lower than it begins ({finite[-1]:.4g} nats)"
    tenths = np.array_split(finite, TENTHS)
    first, last = float(finite[0]), robust_mean(tenths[-1])
    if first > UNTRAINED_NATS and last > LEARNED_SHARE_OF_FIRST * first:
        return f"ends at {last:.4g} nats, where it began at {first:.4g}"
    best = min(robust_mean(part) for part in tenths)
    if last > LOST_SHARE * best:
        return f"ends at {last:.4g} nats and had been at {best:.4g}: it diverged by itself"
    return ""


def flat(losses: Array) -> str:
    """Why the mean loss of the baseline runs, (steps,), does not fall by more than chance, nor by 5 %; empty where it does."""
    finite = losses[np.isfinite(losses)]
    if finite.size < 2 * TENTHS:
        return ""
    tenths = np.array_split(finite, TENTHS)
    head, tail = np.concatenate([finite[:1], tenths[0]]), tenths[-1]
    error = float(np.hypot(_error(head), _error(tail)))
    fall = float(head.mean() - tail.mean())
    if fall <= min(ERRORS_TO_SHOW * error, (1 - LEARNED_SHARE_OF_FIRST) * abs(float(head.mean()))):
        return f"does not fall: {head.mean():.4g} nats in its first tenth, {tail.mean():.4g} in its last"
    return ""


def _error(values: Array) -> float:
    """Standard error of a mean over steps whose noise is of their own batches, from differences of neighbours."""
    if values.size < 3:
        return 0.0
    return float(np.diff(values).std(ddof=1) / np.sqrt(2 * values.size))


def gross_jumps(losses: Array) -> list[int]:
    """Indices at which a loss is more than twice the largest of the eight before it; the first of each eight."""
    if losses.size <= GROSS_HISTORY:
        return []
    with np.errstate(invalid="ignore"):
        # More than twice the largest of eight is more than twice the last of them: few steps are left to look at.
        likely = np.flatnonzero(losses[GROSS_HISTORY:] > GROSS * losses[GROSS_HISTORY - 1 : -1]) + GROSS_HISTORY
        before = losses[likely[:, None] - np.arange(1, GROSS_HISTORY + 1)]
        jumps = likely[losses[likely] > GROSS * before.max(axis=1)] if likely.size else likely
    return [int(jump) for place, jump in enumerate(jumps) if place == 0 or jump - jumps[place - 1] > GROSS_HISTORY]
