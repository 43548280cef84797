"""The log of updates, one update behind: every line once and in order, and nothing that is not finite passes it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from fp8migrate.records.store import read_run
from fp8migrate.records.writer import RunWriter
from fp8migrate.worker import clock
from fp8migrate.worker.tasks.context import NonFinite
from fp8migrate.worker.tensor_watch import TensorWatch
from fp8migrate.worker.transfer import Readback, to_device
from fp8migrate.worker.update_log import UpdateLog
from tests.worker.runs import BF16, CPU, make_run, new_state, train_task


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", train_task(BF16))


@pytest.fixture
def log(run: Path) -> UpdateLog:
    writer = RunWriter(run)
    return UpdateLog(writer, TensorWatch(new_state(BF16).model, train_task(BF16), writer), CPU)


def take(log: UpdateLog, step: int, loss: float, norm: float = 1.0) -> None:
    with log.update_to(step, 0.1 * step) as done:
        done(torch.tensor(loss), torch.tensor(norm))


def logged(run: Path) -> tuple[list[int], list[float]]:
    series = read_run(run).series
    return ([], []) if "loss" not in series else (list(series["loss"].steps), list(series["loss"].values))


def test_lines_come_one_update_later_and_once(run: Path, log: UpdateLog) -> None:
    log.flush()
    assert logged(run)[0] == []
    take(log, 1, 5.5)
    assert logged(run)[0] == []
    take(log, 2, 5.25, 0.5)
    assert logged(run) == ([1], [5.5])
    log.flush()
    log.flush()
    assert logged(run) == ([1, 2], [5.5, 5.25])
    series = read_run(run).series
    assert list(series["grad_norm"].values) == [1.0, 0.5]
    assert list(series["learning_rate"].values) == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize(("loss", "norm", "what"), [(math.nan, 1.0, "loss is nan"), (2.0, math.inf, "gradient norm is inf")])
def test_what_is_not_finite_is_logged_and_raised_with_its_own_step(
    run: Path, log: UpdateLog, loss: float, norm: float, what: str
) -> None:
    take(log, 1, 3.0)
    take(log, 2, loss, norm)
    with pytest.raises(NonFinite, match=f"{what} at step 2"):
        take(log, 3, 1.0)
    assert logged(run)[0] == [1, 2]
    log.flush()
    assert logged(run)[0] == [1, 2], "the update after it is none"


def test_an_update_that_fails_does_not_hide_the_one_before_it(run: Path, log: UpdateLog) -> None:
    take(log, 1, math.nan)
    with pytest.raises(NonFinite, match="at step 1") as raised, log.update_to(2, 0.1):
        raise ZeroDivisionError
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    assert logged(run)[0] == [1]


def test_an_update_that_fails_after_a_good_one_is_raised_as_it_is(run: Path, log: UpdateLog) -> None:
    take(log, 1, 4.0)
    with pytest.raises(ZeroDivisionError), log.update_to(2, 0.1):
        raise ZeroDivisionError
    assert logged(run) == ([1], [4.0])


def test_seconds_are_of_each_update_and_pauses_after_a_flush_are_of_none(
    log: UpdateLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])
    for step, seconds in ((1, 2.0), (2, 3.0)):
        with log.update_to(step, 0.1) as done:
            now[0] += seconds
            done(torch.tensor(1.0), torch.tensor(1.0))
    log.flush()
    now[0] += 50
    with log.update_to(3, 0.1) as done:
        now[0] += 4
        done(torch.tensor(1.0), torch.tensor(1.0))
    now[0] += 50
    log.flush()
    assert log.seconds == [2.0, 3.0, 4.0]


def test_what_is_read_back_is_what_was_there_then() -> None:
    changing = torch.tensor(1.5)
    readback = Readback(changing, torch.tensor(2.0))
    changing += 1
    assert readback.read() == [1.5, 2.0]


def test_tokens_keep_their_numbers() -> None:
    tokens = torch.arange(256, dtype=torch.uint8).reshape(2, 128).numpy()
    assert torch.equal(to_device(tokens, CPU), torch.arange(256).reshape(2, 128))
