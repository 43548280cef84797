"""The worker as a program: what it refuses before it trains."""

from pathlib import Path

import pytest

from fp8migrate.records.schema import Outcome
from fp8migrate.records.writer import load_run_file, save_run_file
from fp8migrate.worker.__main__ import main
from tests.worker.runs import BF16, make_run, train_task


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
