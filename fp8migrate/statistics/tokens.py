"""A loss gap told in training: how much longer the baseline's kind of run must be to make up for it."""

from math import exp

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_BLOCKS = 20


def share_to_make_up(gap: float, steps: NDArray[np.int64], losses: Array) -> float | None:
    """Extra training, as a share of the run so far, by which the loss falls by `gap` (relative, above zero).

    From the slope of the loss in log steps over the second half of the run (20 block medians, least squares): the loss
    falls by s per e-fold, so gap · L takes exp(gap · L / s) − 1 more. An estimate of scale: a decaying learning rate
    steepens the slope, so the true price is rather higher. None where the loss does not fall.
    """
    half = steps >= (steps[-1] + 1) // 2
    x, y = steps[half].astype(np.float64), losses[half]
    if x.size < 2 * _BLOCKS or not np.isfinite(y).all():
        return None
    log_steps = np.array([np.log(part.mean()) for part in np.array_split(x, _BLOCKS)])
    medians = np.array([np.median(part) for part in np.array_split(y, _BLOCKS)])
    slope = -float(np.polyfit(log_steps, medians, 1)[0])
    if slope <= 0:
        return None
    exponent = gap * float(medians[-1]) / slope
    return exp(exponent) - 1 if exponent < 50 else None
