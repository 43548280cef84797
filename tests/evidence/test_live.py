"""A live run against BF16 logs: which gap, which floor, when it alarms, when it only warns, and how often for nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from fp8migrate.errors import UsageError
from fp8migrate.evidence.live import LiveState, Question, decorrelation_length, live_state, reference
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from tests.error_rates import MARGIN, STEPS, Noise

Array = NDArray[np.float64]

KNOWN = Question(MARGIN, forward_penalty=0.0)
PENALTY = 0.0024
QUIET = Noise(offset=0.0007)
RUNS = 300
PROGRESS = np.arange(1, STEPS + 1) / STEPS


def series(
    values: Array, name: Quantity = "training_loss", first: float = 1.0, interval: float = 1.0, **more: Any
) -> LogSeries:
    steps = first + interval * np.arange(values.size)
    return replace(LogSeries(name, "loss", "nats", "steps", steps, np.asarray(values, dtype=np.float64)), **more)


def record(values: Array, name: str = "run", end: float | None = None, first: float = 1.0, **others: LogSeries) -> LogRecord:
    found: dict[Quantity, LogSeries] = {"training_loss": series(values, first=first)}
    found |= {cast(Quantity, name): one for name, one in others.items()}
    return LogRecord(name, name, "jsonl", found, expected_last_step=end)


def simulated(
    count: int,
    rng: np.random.Generator,
    noise: Noise | None = None,
    wander: float = 0.0,
    forget: float = 3.0,
) -> Array:
    """Losses of `count` runs on one data order, (count, STEPS), nats.

    As tests/error_rates.py draws them, each run with 1/√2 of a pair's noise. wander: SD of an offset that comes and goes,
    relative to the persistent one; forget: blocks of 1 % in which it falls to 1/e.
    """
    noise = noise or Noise()
    early = 1 + (noise.early_factor - 1) * np.exp(-PROGRESS / 0.05)
    curve = 3.4 * (1 + 2 * np.exp(-PROGRESS * 8)) * rng.normal(1, noise.data, STEPS)
    own = rng.normal(0, noise.offset / np.sqrt(2), (count, 1)) + _wander(count, rng, wander * noise.offset / np.sqrt(2), forget)
    white = rng.normal(0, noise.step / np.sqrt(2), (count, STEPS))
    return np.asarray(curve * (1 + own * early + white), dtype=np.float64)


def _wander(count: int, rng: np.random.Generator, sd: float, forget: float) -> Array:
    if sd == 0:
        return np.zeros((count, STEPS))
    keep = np.exp(-1 / (forget * STEPS / 100))
    found = np.zeros((count, STEPS))
    found[:, 0] = rng.normal(0, 1, count)
    for step, shock in enumerate(rng.normal(0, np.sqrt(1 - keep**2), (STEPS - 1, count)), 1):
        found[:, step] = keep * found[:, step - 1] + shock
    return sd * found


def watched(runs: Array, candidate: Array, baselines: int = 1, question: Question = KNOWN) -> LiveState:
    """The first runs are baselines, the others floors."""
    records = [record(row, f"bf16-{i}") for i, row in enumerate(runs)]
    return live_state(reference(records[:baselines], records[baselines:]), record(candidate), question)


def alarms(states: Sequence[LiveState]) -> float:
    return float(np.mean([state.alarm is not None for state in states]))


def test_floor_of_baselines_is_a_prediction_interval_by_hand() -> None:
    """B = 99, 101, 103 (× 0.01): s = 0.02, relative to the mean 1.01; τ = s·√(1 + 1/3), ν = 2."""
    state = watched(np.array([[0.99], [1.01], [1.03]]) * np.ones((3, 1000)), np.full(1000, 1.01), baselines=3)
    assert state.floor is not None
    assert state.floor.degrees == 2
    np.testing.assert_allclose(state.floor.level, 0.02 / 1.01 * np.sqrt(4 / 3))
    np.testing.assert_allclose(state.blocks.limits, MARGIN + 4.302653 * 0.02 / 1.01 * np.sqrt(4 / 3), rtol=1e-6)


def test_floor_of_repeats_by_hand() -> None:
    state = watched(np.array([[1.0], [1.001], [0.999]]) * np.ones((3, 1000)), np.ones(1000) * 1.002)
    assert state.floor is not None
    assert state.floor.degrees == 2
    np.testing.assert_allclose(state.floor.level, 0.001)
    np.testing.assert_allclose(state.blocks.gaps, 0.002)


@pytest.mark.slow
@pytest.mark.parametrize(("baselines", "floors"), [(1, 1), (1, 4), (4, 0), (2, 3)])
@pytest.mark.parametrize("wander", [0.0, 1.0])
def test_false_alarms_over_a_whole_healthy_run(baselines: int, floors: int, wander: float) -> None:
    """At a true gap of 0 and at the worst of the null, a gap of just the margin: PARITY.md 6 allows 7.5 %."""
    rng = np.random.default_rng(7)
    at_zero, at_margin = [], []
    for _ in range(RUNS):
        runs = simulated(baselines + floors + 1, rng, wander=wander)
        at_zero.append(watched(runs[:-1], runs[-1], baselines))
        at_margin.append(watched(runs[:-1], runs[-1] * (1 + MARGIN), baselines))
    assert alarms(at_zero) <= 0.02
    assert alarms(at_margin) <= 0.075


def test_few_false_alarms_at_the_margin() -> None:
    rng = np.random.default_rng(8)
    drawn = (simulated(6, rng) for _ in range(60))
    assert alarms([watched(runs[:-1], runs[-1] * (1 + MARGIN)) for runs in drawn]) <= 0.075


def test_a_run_worse_by_four_margins_is_caught_in_its_first_half() -> None:
    rng = np.random.default_rng(9)
    found = [watched((runs := simulated(6, rng, QUIET))[:-1], runs[-1] * (1 + 4 * MARGIN)) for _ in range(40)]
    steps = [state.alarm.step for state in found if state.alarm]
    assert len(steps) == 40
    assert np.median(steps) < STEPS / 2


@pytest.mark.parametrize("leaves_at", [0.5, 0.8])
def test_a_run_that_leaves_late_is_caught_soon(leaves_at: float) -> None:
    rng = np.random.default_rng(10)
    away = np.clip(PROGRESS - leaves_at, 0, None)
    for _ in range(20):
        runs = simulated(6, rng)
        alarm = watched(runs[:-1], runs[-1] * (1 + away)).alarm
        assert alarm is not None
        assert leaves_at * STEPS < alarm.step <= (leaves_at + 0.15) * STEPS


def test_known_penalty_is_taken_off_and_unknown_penalty_warns_where_known_would_alarm() -> None:
    """Worse by 4 margins, and 0.24 % more of FP8 forward: an alarm where p is known; unknown, the loss could be all penalty."""
    runs = simulated(6, np.random.default_rng(11), QUIET)
    healthy, bad = runs[-1] * (1 + PENALTY), runs[-1] * (1 + PENALTY) * (1 + 3 * MARGIN)
    known, unknown = Question(MARGIN, forward_penalty=PENALTY), Question(MARGIN)
    assert watched(runs[:-1], healthy, question=known).alarm is None
    assert watched(runs[:-1], healthy, question=unknown).alarm is None
    assert watched(runs[:-1], bad, question=known).alarm is not None
    told = watched(runs[:-1], bad, question=unknown)
    assert told.alarm is None
    assert any("FP8 forward penalty alone" in warning for warning in told.warnings)
    # Eight times the largest penalty ever measured is none.
    assert watched(runs[:-1], runs[-1] * 1.0225, question=unknown).alarm is not None


def test_served_in_fp8_the_penalty_counts() -> None:
    runs = simulated(6, np.random.default_rng(11), QUIET)
    found = watched(runs[:-1], runs[-1] * (1 + PENALTY) * (1 + 3 * MARGIN), question=Question(MARGIN, "fp8"))
    assert found.alarm is not None
    assert found.alarm.kind == "wealth"


def test_a_live_run_is_shorter_than_its_baseline() -> None:
    runs = simulated(6, np.random.default_rng(12))
    whole = watched(runs[:-1], runs[-1])
    for points in (0, 1, 9, 10, 437, 999):
        state = watched(runs[:-1], runs[-1][:points])
        assert (state.alarm, state.over, state.warnings) == (None, "", ())
        assert state.blocks.complete == points // 10
        np.testing.assert_array_equal(state.blocks.gaps[: points // 10], whole.blocks.gaps[: points // 10])
        assert np.isnan(state.blocks.gaps[points // 10 :]).all()
    assert whole.over


def test_a_block_that_still_fills_does_not_count() -> None:
    baseline = np.ones((4, STEPS)) * np.array([[1.0], [1.001], [0.999], [1.0005]])
    assert watched(baseline, np.full(79, 1.02)).alarm is None
    found = watched(baseline, np.full(80, 1.02)).alarm
    assert found is not None
    assert (found.kind, found.step) == ("wealth", 80)


@pytest.mark.parametrize(("quantity", "value", "what"), [("training_loss", np.nan, "NaN"), ("grad_norm", np.inf, "infinite")])
def test_nan_and_inf_alarm_at_once(quantity: Quantity, value: float, what: str) -> None:
    runs = simulated(2, np.random.default_rng(13))
    spoiled = np.ones(300) if quantity == "grad_norm" else runs[1][:300].copy()
    spoiled[201] = value
    run = replace(record(runs[1][:300]), series={"training_loss": series(runs[1][:300]), quantity: series(spoiled, quantity)})
    alarm = live_state(reference([record(runs[0])]), run, KNOWN).alarm
    assert alarm is not None
    assert (alarm.kind, alarm.step) == ("non_finite", 202)
    assert what in alarm.what


def test_without_repeats_no_bets_but_divergence() -> None:
    runs = simulated(2, np.random.default_rng(14))
    worse = live_state(reference([record(runs[0])]), record(runs[1] * 1.008), KNOWN)
    assert worse.alarm is None
    assert worse.floor is None
    assert any("no bets" in note for note in worse.notes)
    left = live_state(reference([record(runs[0])]), record(runs[1] * 1.03), KNOWN).alarm
    assert left is not None
    # The first 5 % are ignored, then five blocks in a row.
    assert (left.kind, left.step) == ("diverged", 100)


def test_three_blocks_above_are_no_divergence_while_the_run_goes_on() -> None:
    """At the end of a run the last three decide; asked after every block they would make a rule of three blocks of it."""
    losses = np.ones(STEPS)
    losses[500:530] = 1.05
    for points in (530, 540, STEPS):
        assert live_state(reference([record(np.ones(STEPS))]), record(losses[:points]), KNOWN).alarm is None
    at_end = np.ones(STEPS)
    at_end[-30:] = 1.05
    alarm = live_state(reference([record(np.ones(STEPS))]), record(at_end), KNOWN).alarm
    assert alarm is not None
    assert alarm.kind == "diverged"


def test_data_that_is_not_shared_is_no_divergence() -> None:
    """Without a floor and on data of its own a block's gap has an SD of over 1 %, the least threshold."""
    curve = simulated(1, np.random.default_rng(15), Noise(data=0.0))[0]
    rng = np.random.default_rng(16)
    noisy = [curve * rng.normal(1, 0.03, STEPS) for _ in range(2)]
    assert live_state(reference([record(noisy[0])]), record(noisy[1]), KNOWN).alarm is None


def test_logs_from_zero_beside_logs_from_one() -> None:
    runs = simulated(3, np.random.default_rng(17))
    state = live_state(reference([record(runs[0]), record(runs[1])]), record(runs[2][:400], first=0), KNOWN)
    assert state.step == 400
    assert state.blocks.gaps[5] == pytest.approx(watched(runs[:2], runs[2][:400], 2).blocks.gaps[5])
    assert any("counts from 0" in note for note in state.notes)


def test_a_run_that_logs_means_over_ten_steps() -> None:
    runs = simulated(6, np.random.default_rng(18))
    means = runs[-1][:400].reshape(40, 10).mean(axis=1)
    coarse = series(means, first=10, interval=10, averaging="mean over 10 steps")
    records = [record(row, f"bf16-{i}") for i, row in enumerate(runs[:-1])]
    state = live_state(reference(records[:1], records[1:]), replace(record(means), series={"training_loss": coarse}), KNOWN)
    assert state.blocks.complete == 40
    gap = means[:10] / runs[0][:100].reshape(10, 10).mean(axis=1) - 1
    np.testing.assert_allclose(state.blocks.gaps[:10], gap)


def test_a_run_that_begins_at_a_checkpoint_of_the_baseline() -> None:
    """What lies before has no value and no bet."""
    runs = simulated(6, np.random.default_rng(19))
    state = live_state(
        reference([record(runs[0])], [record(row, f"f{i}") for i, row in enumerate(runs[1:5])]),
        record(runs[5][500:], first=501),
        KNOWN,
    )
    assert np.isnan(state.blocks.gaps[:50]).all()
    assert np.isfinite(state.blocks.gaps[50:]).all()
    assert state.alarm is None


def test_where_the_floor_ends_bets_end() -> None:
    runs = simulated(5, np.random.default_rng(20))
    floors = [record(row[:600], f"f{i}") for i, row in enumerate(runs[1:4])]
    state = live_state(reference([record(runs[0])], floors), record(runs[4] * 1.02), KNOWN)
    assert state.floor is not None
    assert state.floor.known[:60].all()
    assert not state.floor.known[60:].any()
    assert np.isnan(state.blocks.limits[60:]).all()
    assert any("cover 60 of 100 blocks" in note for note in state.notes)


@pytest.mark.parametrize(
    ("end", "points", "over"), [(1000.0, 1000, True), (1000.0, 999, False), (2000.0, 1000, False), (None, 1000, True)]
)
def test_when_a_run_is_at_its_end(end: float | None, points: int, over: bool) -> None:
    state = live_state(reference([record(np.ones(1000))]), record(np.ones(points) * 1.001, end=end), KNOWN)
    assert bool(state.over) is over


def test_spikes_of_its_own_are_a_warning() -> None:
    runs = simulated(2, np.random.default_rng(21), Noise(data=0.001))
    spiky = runs[1].copy()
    spiky[140::130] *= 4
    state = live_state(reference([record(runs[0])]), record(spiky), KNOWN)
    assert state.spikes == (7, 0, 1)
    assert any("more spikes than chance" in warning for warning in state.warnings)
    assert state.alarm is None
    both = runs[0].copy()
    both[140::130] *= 4
    assert live_state(reference([record(both)]), record(spiky), KNOWN).spikes == (0, 0, 1)


def test_what_can_never_be_compared_is_refused() -> None:
    runs = simulated(2, np.random.default_rng(22))
    bits = replace(record(runs[1]), series={"training_loss": series(runs[1], unit="bits")})
    samples = replace(record(runs[1]), series={"training_loss": series(runs[1], axis="samples")})
    with pytest.raises(UsageError, match="never compared"):
        live_state(reference([record(runs[0])]), bits, KNOWN)
    with pytest.raises(UsageError, match="counts samples"):
        live_state(reference([record(runs[0])]), samples, KNOWN)
    with pytest.raises(UsageError, match="tells nothing of the noise"):
        reference([record(runs[0], "a")], [record(runs[0], "a")])
    with pytest.raises(UsageError, match="ends at 500"):
        reference([record(runs[0], "a"), record(runs[1][:500], "b")])
    with pytest.raises(UsageError, match="no finite loss"):
        reference([record(np.full(100, np.nan))])


def test_odd_logs_are_warned_of() -> None:
    runs = simulated(1, np.random.default_rng(23))
    assert any("is it the FP8 run" in warning for warning in watched(runs, runs[0]).warnings)
    rounded = series(np.array([float(f"{value:.2f}") for value in runs[0]]), digits=3)
    run = replace(record(runs[0]), series={"training_loss": rounded}, failure="CUDA out of memory")
    state = live_state(reference([record(runs[0])]), run, KNOWN)
    assert any("3 digits" in warning for warning in state.warnings)
    assert any("out of memory" in warning for warning in state.warnings)


@pytest.mark.parametrize(("forget", "expected"), [(0.01, {1}), (3.0, {2, 3, 4}), (20.0, {5})])
def test_decorrelation_length(forget: float, expected: set[int]) -> None:
    """Of independent blocks 1; of an exponential memory of three blocks about three; never above 5."""
    rng = np.random.default_rng(24)
    keep = np.exp(-1 / forget)
    rows = np.zeros((6, 100))
    for step in range(1, 100):
        rows[:, step] = keep * rows[:, step - 1] + rng.normal(0, 1, 6)
    assert decorrelation_length(rows + rng.normal(0, 10, (6, 1))) in expected
    assert decorrelation_length(np.zeros((2, 100))) == 1
    assert decorrelation_length(np.full((2, 100), np.nan)) == 1


def test_absurd_losses_never_raise() -> None:
    rng = np.random.default_rng(25)
    for values in (
        np.full(STEPS, 1e300),
        np.full(STEPS, -1.0),
        np.where(rng.random(STEPS) < 0.5, np.inf, -np.inf),
        np.zeros(STEPS),
    ):
        assert live_state(reference([record(np.ones(STEPS)), record(np.full(STEPS, 1.001), "b")]), record(values), KNOWN)
