"""The worker as a program: what it refuses before it trains, and how it records that memory ran out."""

from pathlib import Path

import pytest
import torch

from fp8migrate.records.schema import Outcome
from fp8migrate.records.writer import load_run_file, save_run_file
from fp8migrate.worker import __main__ as program
from fp8migrate.worker.__main__ import main
from fp8migrate.worker.tasks import TASKS, TaskContext
from tests.worker.runs import BF16, Stop, make_run, train_task


@pytest.fixture(autouse=True)
def signals_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's handlers would stay with this process, and Ctrl-C would no longer end the tests."""
    monkeypatch.setattr(program, "StopSignal", Stop)


@pytest.mark.parametrize(("what", "words"), [("source_sha256", "training code"), ("torch", "torch")])
def test_a_run_planned_under_other_code_is_not_trained_with_this(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, words: str
) -> None:
    """An upgrade in the middle of a plan would else mix two programs under one name."""
    directory = make_run(tmp_path / "run", train_task(BF16))
    run = load_run_file(directory)
    save_run_file(directory, run.model_copy(update={"environment": run.environment.model_copy(update={what: "other"})}))
    assert main(["run", str(directory)]) == 5
    assert f"{words} changed while the plan was running" in capsys.readouterr().err
    assert load_run_file(directory).outcome == Outcome(status="running")
    assert not (directory / "metrics.jsonl").exists()


def test_out_of_memory_is_recorded_as_the_arms_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An outcome, so exit code 0: asked again, the same arm would run out of memory again."""

    def too_large(context: TaskContext) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB.\nGPU 0 has 80 GiB")

    monkeypatch.setitem(TASKS, "train", too_large)
    task = train_task(BF16)
    directory = make_run(tmp_path / "run", task)
    assert main(["run", str(directory)]) == 0
    outcome = load_run_file(directory).outcome
    assert (outcome.status, outcome.cause, outcome.exit_code) == ("failed", "out_of_memory", 0)
    size = task.training.micro_batch_size
    fits = f"micro_batch_size: {size // 2} fits, with the same global batch; recompute: true fits with micro_batch_size: {size}"
    assert outcome.detail.startswith(f"CUDA out of memory. Tried to allocate 90.00 GiB.; {fits}")
    assert "GPU 0 has 80 GiB" in capsys.readouterr().err
