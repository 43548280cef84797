"""Speed, memory and gradient norm of both arms, from what their logs hold."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.schema import Efficiency
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from fp8migrate.statistics.noninferiority import Bounds, bounds, welch_difference
from fp8migrate.statistics.robust import final_window

Array = NDArray[np.float64]
Pairs = Sequence[tuple[int, int]]
Metric = Literal["speed", "memory", "grad_norm"]

# Warm-up and compilation: the first twentieth of a run's points, ten at least, never more than half.
WARMUP_SHARE, LEAST_WARMUP = 0.05, 10
# A pause (evaluation, checkpoint, recompilation): a step that takes this many times the median of its neighbourhood. Steps
# may well grow twelvefold over a run whose batch or sequence grows, so that one median for all would not do.
PAUSE, NEIGHBOURHOOD = 3.0, 20
BLOCKS = 10
SPEEDS: tuple[Quantity, ...] = ("tokens_per_second", "samples_per_second", "step_seconds")


def efficiency(baseline: Sequence[LogRecord], candidate: Sequence[LogRecord], pairs: Pairs = ()) -> tuple[Efficiency, ...]:
    """Every measure that all runs of both arms hold. pairs: (baseline, candidate) indices where runs belong together."""
    found = [
        _speed(baseline, candidate, pairs),
        _measure("memory", "memory_bytes", baseline, candidate, pairs),
        _measure("grad_norm", "grad_norm", baseline, candidate, pairs),
    ]
    return tuple(one for one in found if one is not None)


def _speed(baseline: Sequence[LogRecord], candidate: Sequence[LogRecord], pairs: Pairs) -> Efficiency | None:
    for quantity in SPEEDS:
        if found := _measure("speed", quantity, baseline, candidate, pairs):
            return found
    return None


def _measure(
    metric: Metric, quantity: Quantity, baseline: Sequence[LogRecord], candidate: Sequence[LogRecord], pairs: Pairs
) -> Efficiency | None:
    parts = [[_counted(record.series.get(quantity), metric) for record in side] for side in (baseline, candidate)]
    if any(part is None or part.size == 0 for side in parts for part in side):
        return None
    left, right = ([part for part in side if part is not None] for side in parts)
    typical = _TYPICAL[metric]
    logs = [np.log([typical(part) for part in side]) for side in (left, right)]
    within = min(len(left), len(right)) < 2
    ratio = _within(left, right, typical) if within else _between(logs[0], logs[1], pairs)
    return Efficiency(
        metric=metric,
        measure="steps_per_second" if quantity == "step_seconds" else quantity,
        baseline=tuple(np.exp(logs[0]).tolist()),
        candidate=tuple(np.exp(logs[1]).tolist()),
        bounds=_exponential(ratio),
        within=within,
        excluded=_EXCLUDED[metric],
    )


def _counted(series: LogSeries | None, metric: Metric) -> Array | None:
    """The points that count. Of speed: rates of the steps after the warm-up that are no pauses; whatever was logged."""
    if series is None:
        return None
    values = series.values
    if metric == "speed":
        values = values[min(max(LEAST_WARMUP, round(WARMUP_SHARE * values.size)), values.size // 2) :]
    elif metric == "grad_norm":
        values = values[final_window(values.size)]
    usable = np.asarray(values[np.isfinite(values) & (values > 0)], dtype=np.float64)
    if metric != "speed":
        return usable
    # Where seconds were logged, rates: a ratio above 1 is faster whatever was logged.
    return without_pauses(1 / usable if series.name == "step_seconds" else usable)


def without_pauses(rates: Array) -> Array:
    """Rates, (steps,), without those of steps that took more than three times the median of the twenty around them."""
    blocks = np.array_split(rates, max(1, rates.size // NEIGHBOURHOOD)) if rates.size else []
    kept = [block[block * PAUSE >= np.median(block)] for block in blocks]
    return np.concatenate(kept) if kept else rates


def _total_rate(rates: Array) -> float:
    """Work over time: the harmonic mean, every point standing for the same work."""
    return float(rates.size / (1 / rates).sum())


_TYPICAL: dict[Metric, Callable[[Array], float]] = {
    "speed": _total_rate,
    "memory": lambda values: float(values.max()),
    "grad_norm": lambda values: float(np.median(values)),
}
_EXCLUDED: dict[Metric, str] = {
    "speed": f"first {100 * WARMUP_SHARE:g} % of the points (at least {LEAST_WARMUP}) and pauses left out",
    "memory": "largest value of each run",
    "grad_norm": "median of the last tenth",
}


def _between(left: Array, right: Array, pairs: Pairs) -> Bounds:
    if len(pairs) > 1:
        return bounds(np.array([right[c] - left[b] for b, c in pairs]))
    return welch_difference(left, right)


def _within(left: Sequence[Array], right: Sequence[Array], typical: Callable[[Array], float]) -> Bounds:
    """An interval where an arm has only one run: over ten blocks of it, which tell how steady it was, not how it repeats."""
    blocks = [
        np.concatenate([np.log([typical(part) for part in np.array_split(run, min(BLOCKS, run.size))]) for run in side])
        for side in (left, right)
    ]
    return welch_difference(blocks[0], blocks[1])


def _exponential(of_logs: Bounds) -> Bounds:
    """Bounds of a ratio from those of its logarithm."""
    with np.errstate(over="ignore"):
        lower, upper = float(np.exp(of_logs.lower)), float(np.exp(of_logs.upper))
    return replace(of_logs, mean=exp(of_logs.mean), lower=lower, upper=upper)
