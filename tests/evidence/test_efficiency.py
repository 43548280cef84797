"""Speed, memory and gradient norm as logs hold them."""

from typing import cast

import numpy as np
import pytest
from numpy.typing import ArrayLike

from fp8migrate.evidence.efficiency import efficiency, without_pauses
from fp8migrate.evidence.schema import Efficiency
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity


def record(**columns: ArrayLike) -> LogRecord:
    series: dict[Quantity, LogSeries] = {}
    for label, values in columns.items():
        array, name = np.asarray(values, dtype=np.float64), cast(Quantity, label)
        series[name] = LogSeries(name, label, "", "steps", np.arange(1.0, array.size + 1), array)
    return LogRecord("log", "log", "jsonl", series)


def measured(baseline: list[LogRecord], candidate: list[LogRecord], metric: str = "speed") -> Efficiency:
    return next(one for one in efficiency(baseline, candidate) if one.metric == metric)


def test_step_times_and_rates_say_the_same() -> None:
    """200 steps of half a second against 200 of 0.4 s: 1.25 times as fast, whichever of the two was logged."""
    seconds = measured([record(step_seconds=np.full(200, 0.5))] * 2, [record(step_seconds=np.full(200, 0.4))] * 2)
    rates = measured([record(tokens_per_second=np.full(200, 1000.0))] * 2, [record(tokens_per_second=np.full(200, 1250.0))] * 2)
    assert seconds.bounds.mean == pytest.approx(1.25)
    assert rates.bounds.mean == pytest.approx(1.25)
    assert (seconds.measure, rates.measure, seconds.within) == ("steps_per_second", "tokens_per_second", False)


def test_work_over_time_not_the_typical_step() -> None:
    """Steps that grow from 0.1 to 1 s over the run: the clock runs in the long ones. Faster only there: 1.1 / 0.85 seconds."""
    slow = np.repeat([0.1, 1.0], 100)
    fast = np.repeat([0.1, 0.75], 100)
    found = measured([record(step_seconds=slow)] * 2, [record(step_seconds=fast)] * 2)
    # Of 200 points the first 10 are left out: 90 · 0.1 + 100 · 1.0 = 109 s against 84 s.
    assert found.bounds.mean == pytest.approx(109 / 84)


def test_warm_up_and_pauses_are_left_out() -> None:
    seconds = np.full(400, 0.5)
    seconds[:20] = 30.0
    seconds[200] = 60.0
    assert measured(
        [record(step_seconds=np.full(400, 0.5))] * 2, [record(step_seconds=seconds)] * 2
    ).bounds.mean == pytest.approx(1.0)
    assert without_pauses(1 / seconds[20:]).size == 379


def test_one_run_in_an_arm_has_an_interval_of_its_blocks_and_says_so() -> None:
    rng = np.random.default_rng(0)
    runs = [record(tokens_per_second=speed * (1 + 0.02 * rng.standard_normal(500))) for speed in (1000.0, 1200.0)]
    found = measured(runs[:1], runs[1:])
    assert found.within
    assert found.bounds.lower < 1.2 < found.bounds.upper
    assert found.bounds.upper - found.bounds.lower < 0.02


def test_memory_is_the_peak_and_gradients_those_of_the_end() -> None:
    falling = np.linspace(10.0, 1.0, 1000)
    left = record(memory_bytes=[1e9, 8e9, 2e9], grad_norm=falling)
    right = record(memory_bytes=[6e9, 1e9, 1e9], grad_norm=2 * falling)
    assert measured([left] * 2, [right] * 2, "memory").bounds.mean == pytest.approx(0.75)
    assert measured([left] * 2, [right] * 2, "grad_norm").bounds.mean == pytest.approx(2.0)


def test_what_one_run_lacks_is_not_compared() -> None:
    whole, bare = record(tokens_per_second=np.full(100, 1.0)), record(grad_norm=np.full(100, 1.0))
    assert efficiency([whole, bare], [whole, whole]) == ()
    broken = record(tokens_per_second=np.full(100, np.nan))
    assert efficiency([whole, whole], [whole, broken]) == ()


def test_between_runs_the_interval_is_welch_s_on_logarithms() -> None:
    """By hand: logs 0, 0.02 against 0.1, 0.12; difference 0.1, SE² = 2·(0.0002/2), ν = 2, t(.95, 2) = 2.91999."""
    left = [record(tokens_per_second=np.full(100, np.exp(x))) for x in (0.0, 0.02)]
    right = [record(tokens_per_second=np.full(100, np.exp(x))) for x in (0.1, 0.12)]
    found = measured(left, right).bounds
    half = 2.91999 * np.sqrt(0.0002)
    assert (found.mean, found.lower, found.upper) == pytest.approx(tuple(np.exp([0.1, 0.1 - half, 0.1 + half])), rel=1e-5)
