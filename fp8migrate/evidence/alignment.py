"""Curves of several logs on the same steps: what counts from 0 or 1, other intervals, averages, unequal lengths.

Nothing is compared on an intersection without a word: whatever a curve had and the common steps have not is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.schema import Obstacle
from fp8migrate.records.logs import LogSeries

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Aligned:
    """Curves on common steps. steps: (points,), counted from 1 where any log counts so; values: (curves, points).

    notes: what was done. problems: why the curves cannot be compared as they are; with any, a comparison has no PASS.
    shifts: of each curve what was added to its steps, 1 where it counts from 0 and others from 1.
    """

    steps: Array
    values: Array
    notes: tuple[str, ...] = ()
    problems: tuple[Obstacle, ...] = ()
    shifts: tuple[float, ...] = ()


def align(curves: Sequence[LogSeries], names: Sequence[str]) -> Aligned:
    """Bring curves to common steps. names: of their runs, for messages. At least one curve, each with a point."""
    axes = sorted({curve.axis for curve in curves})
    if len(axes) > 1:
        return _nothing(len(curves), f"the logs count different things: {', '.join(axes)}")
    units = sorted({curve.unit for curve in curves})
    if len(units) > 1:
        return _nothing(len(curves), f"losses in different units are never compared: {', '.join(units)}")
    steps, notes = _one_base([curve.steps for curve in curves], names)
    shifts = tuple(float(at[0] - curve.steps[0]) for at, curve in zip(steps, curves, strict=True))
    steps, values, interval = _averaged(curves, names, steps, axes[0], notes)
    if empty := next((name for name, at in zip(names, steps, strict=True) if at.size == 0), None):
        return _nothing(len(curves), f"{empty} fills no interval of {interval:g} {axes[0]} over which another log averages")
    problems = _unequal_ends(steps, [curve.interval or 1.0 for curve in curves], names, axes[0])
    common = steps[0]
    for other in steps[1:]:
        common = common if np.array_equal(common, other) else np.intersect1d(common, other, assume_unique=True)
    if common.size == 0:
        return _nothing(len(curves), f"the logs share none of their {axes[0]}")
    rows = [value if at.size == common.size else value[np.isin(at, common)] for at, value in zip(steps, values, strict=True)]
    for name, at in zip(names, steps, strict=True):
        if (left := at.size - common.size) > 0:
            notes.append(f"{name}: {left} of {at.size} points have no partner at the same step and are left out")
    return Aligned(common, np.array(rows), tuple(notes), tuple(problems), shifts)


def _averaged(
    curves: Sequence[LogSeries], names: Sequence[str], steps: list[Array], axis: str, notes: list[str]
) -> tuple[list[Array], list[Array], float]:
    """Where a log averages over its interval, the finer ones do too. Steps, values, and the longest interval of any log."""
    values = [curve.values for curve in curves]
    interval = max(curve.interval or 1.0 for curve in curves)
    coarse = next((at for at, curve in zip(steps, curves, strict=True) if curve.averaging.startswith("mean over")), None)
    if coarse is not None:
        for index, curve in enumerate(curves):
            if (curve.interval or interval) < interval:
                steps[index], values[index] = _means(steps[index], values[index], coarse, interval)
                notes.append(f"{names[index]}: averaged over {interval:g} {axis}, as the other logs are")
    return steps, values, interval


def _nothing(curves: int, problem: str) -> Aligned:
    return Aligned(np.empty(0), np.empty((curves, 0)), (), (Obstacle("INVALID_PAIR", problem),))


def _one_base(steps: Sequence[Array], names: Sequence[str]) -> tuple[list[Array], list[str]]:
    """Logs that count from 0 beside logs that count from 1: shifted only where that makes their steps the same.

    Evidence of it: as many points at the same interval, each exactly one step earlier than the other's.
    """
    shifted = list(steps)
    notes: list[str] = []
    whole = [at for at in steps if at.size > 1]
    if not whole:
        return shifted, notes
    latest = max(whole, key=lambda at: (at[0], at[-1]))
    for index, at in enumerate(steps):
        if at.size == latest.size and at.size > 1 and np.array_equal(at + 1, latest):
            shifted[index] = at + 1
            notes.append(f"{names[index]}: counts from 0 where others count from 1; shifted by one")
    return shifted, notes


def _means(steps: Array, values: Array, coarse: Array, interval: float) -> tuple[Array, Array]:
    """Means of a finer log over the intervals (s − interval, s] of a coarser one; those that it does not fill are left out."""
    start = np.searchsorted(steps, coarse - interval, side="right")
    stop = np.searchsorted(steps, coarse, side="right")
    own = float(np.median(np.diff(steps))) if steps.size > 1 else interval
    full = (stop - start) >= round(interval / own)
    # Each by itself: in a running sum one NaN would spoil every mean after it.
    means = [values[a:b].mean() for a, b in zip(start[full].tolist(), stop[full].tolist(), strict=True)]
    return coarse[full], np.array(means, dtype=np.float64)


def _unequal_ends(steps: Sequence[Array], intervals: Sequence[float], names: Sequence[str], axis: str) -> list[Obstacle]:
    """Runs that end earlier than the longest by as much as their own log interval: they would have had a further point."""
    last = [float(at[-1]) for at in steps]
    longest = max(last)
    ends = zip(names, last, intervals, strict=True)
    short = [(name, end) for name, end, interval in ends if longest - end >= interval * (1 - 1e-9)]
    if not short:
        return []
    shown = ", ".join(f"{name} at {_step(end)}" for name, end in short[:3]) + (
        f" and {len(short) - 3} more" if len(short) > 3 else ""
    )
    what = f"runs of unequal length: the longest ends at {axis.removesuffix('s')} {_step(longest)}, {shown}"
    return [Obstacle("TRUNCATED", what)]


def _step(step: float) -> str:
    return f"{step:.0f}" if step.is_integer() else f"{step:g}"
