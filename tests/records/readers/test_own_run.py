"""Our own run directories: a folder is one log, read through its run.json."""

import json
from pathlib import Path

import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.find import find_sources
from fp8migrate.records.readers import read_log
from fp8migrate.records.source import Source

TASK = {
    "kind": "train",
    "training": {"learning_rate": 0.004, "num_steps": 4},
    "precision": {"backend": "emulated", "recipe": {"kind": "delayed", "margin": 0}, "keep_bf16": ["lm_head"]},
    "data_order": {"split": "trunk", "seed": 7},
    "last_step": 4,
}


def run_directory(folder: Path, *, status: str = "completed", cause: str | None = None, task: object = TASK) -> Path:
    folder.mkdir(parents=True)
    described = {
        "schema_version": 1,
        "key": "0" * 64,
        "job": {"task": task},
        "environment": {"torch": "2.13.0", "variables": {}},
        "outcome": {"status": status, "cause": cause, "detail": ""},
    }
    (folder / "run.json").write_text(json.dumps(described, indent=2))
    rows = [{"step": s, "loss": "NaN" if s == 3 else 5.0 - s, "grad_norm": 1.0, "step_seconds": 0.5} for s in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 5, "lo')
    evals = [{"step": 4, "forward": forward, "loss": loss} for forward, loss in (("bf16", 1.25), ("fp8", 1.5))]
    (folder / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in evals))
    (folder / "tables").mkdir()
    (folder / "tables" / "gradients.jsonl").write_text('{"name": "w", "loss": 3}\n')
    (folder / "worker.log").write_text("step 1 loss 3\n")
    return folder


def test_a_folder_of_runs_is_as_many_logs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_directory(tmp_path / name)
    found = find_sources([str(tmp_path)])
    assert [source.name for source in found.sources] == [str(tmp_path / name / "run.json") for name in ("a", "b")]
    assert found.passed_over == ()
    (record,) = read_log(found.sources[0])
    assert record.series["training_loss"].steps.tolist() == [1, 2, 3, 4]
    assert record.series["training_loss"].values.tolist()[:2] == [4.0, 3.0]
    assert str(record.series["training_loss"].values[2]) == "nan"
    assert record.series["validation_loss"].values.tolist() == [1.25]  # under a BF16 forward alone
    assert (record.expected_last_step, record.failure, record.not_understood) == (4, "", 1)


def test_settings_tell_the_precision_apart(tmp_path: Path) -> None:
    (record,) = read_log(find_sources([str(run_directory(tmp_path / "a"))]).sources[0])
    assert record.settings["training.learning_rate"] == "0.004"
    assert record.settings["fp8"] == "delayed (emulated)"
    assert record.settings["torch"] == "2.13.0"
    assert not any(name.startswith("precision") for name in record.settings)
    plain = {**TASK, "precision": {"backend": "bf16", "recipe": None}}
    (record,) = read_log(find_sources([str(run_directory(tmp_path / "b", task=plain))]).sources[0])
    assert record.settings["fp8"] == "off"


def test_how_it_failed(tmp_path: Path) -> None:
    (record,) = read_log(find_sources([str(run_directory(tmp_path / "a", status="failed", cause="out_of_memory"))]).sources[0])
    assert record.failure == "out_of_memory"


def test_a_run_that_logged_nothing_is_refused_in_words(tmp_path: Path) -> None:
    folder = run_directory(tmp_path / "a")
    for name in ("metrics.jsonl", "evals.jsonl"):
        (folder / name).unlink()
    with pytest.raises(UsageError, match="holds no loss"):
        read_log(find_sources([str(folder)]).sources[0])


@pytest.mark.parametrize("task", [None, 3, [], {"precision": 7, "last_step": "x"}, {"precision": {"recipe": "x"}}])
def test_a_strange_task_is_no_crash(tmp_path: Path, task: object) -> None:
    (record,) = read_log(find_sources([str(run_directory(tmp_path / "a", task=task))]).sources[0])
    assert record.series["training_loss"].steps.size == 4


def test_without_its_folder_it_is_nothing() -> None:
    content = b'{"schema_version": 1, "key": "' + b"0" * 64 + b'", "job": {}}'
    with pytest.raises(UsageError, match=r"without its folder"):
        read_log(Source("standard input", None, content))
