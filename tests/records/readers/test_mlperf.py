"""MLPerf's log: samples or epochs on x, an accuracy that is a loss, settings, and how the run ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from fp8migrate.errors import UsageError
from tests.records.readers.logs import read
from tests.records.readers.reading import claimed_by

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "logs" / "mlperf"


def event(key: str, value: Any, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    line = {
        "namespace": "",
        "time_ms": 1,
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "a", **metadata},
    }
    return f":::MLLOG {json.dumps(line)}\n"


def log(benchmark: str, status: str = "success", axis: str = "samples_count") -> str:
    return "".join(
        [
            'ENT": "POINT_IN_TIME", "key": "cache_clear", "value": true}\n',
            event("submission_benchmark", benchmark),
            event("seed", 77),
            event("global_batch_size", 4),
            event("gradient_accumulation_steps", 2),
            event("opt_base_learning_rate", 0.0004),
            event("run_start", None, "INTERVAL_START"),
            event("train_loss", 2.125, lr=0.0004, **{axis: 40}),
            "some other line\n",
            event("train_loss", 1.5, lr=0.0002, **{axis: 80}),
            event("eval_accuracy", 0.9375, **{axis: 80}),
            event("tracked_stats", {"throughput": 2.5}, step=80),
            event("run_stop", None, "INTERVAL_END", status=status),
        ]
    )


def test_losses_stand_at_samples(tmp_path: Path) -> None:
    (run,) = read(tmp_path, log("llama2_70b_lora"))
    loss = run.series["training_loss"]
    assert (run.format, loss.axis, loss.steps.tolist(), loss.values.tolist()) == ("mlperf", "samples", [40, 80], [2.125, 1.5])
    assert run.series["validation_loss"].values.tolist() == [0.9375]
    assert run.series["learning_rate"].values.tolist() == [0.0004, 0.0002]
    assert run.notes == ("eval_accuracy of llama2_70b_lora is its validation loss",)
    assert run.unused == ("tracked_stats",)
    assert run.failure == ""
    assert run.settings == {
        "submission_benchmark": "llama2_70b_lora",
        "seed": "77",
        "global_batch_size": "4",
        "gradient_accumulation_steps": "2",
        "opt_base_learning_rate": "0.0004",
        "run_stop": "success",
    }


def test_an_accuracy_of_another_benchmark_is_no_loss(tmp_path: Path) -> None:
    (run,) = read(tmp_path, log("resnet", axis="epoch_num"))
    assert "validation_loss" not in run.series
    assert "eval_accuracy" in run.unused
    assert run.series["training_loss"].axis == "epochs"


def test_how_a_run_ended(tmp_path: Path) -> None:
    (run,) = read(tmp_path, log("gpt3", status="aborted"))
    assert run.failure == "run_stop says aborted"
    (run,) = read(tmp_path, "".join(log("gpt3").splitlines(keepends=True)[:-1]))
    assert "the log has no run_stop: it ends before the run did" in run.notes


def test_two_runs_in_one_file_and_lines_that_were_cut(tmp_path: Path) -> None:
    first, second = read(tmp_path, log("gpt3") + log("gpt3") + ':::MLLOG {"key": "train_lo\n')
    assert first.series["training_loss"].steps.tolist() == second.series["training_loss"].steps.tolist() == [40, 80]
    assert second.settings["seed"] == "77"
    assert first.not_understood == 1


def test_epochs_that_are_tokens(tmp_path: Path) -> None:
    (run,) = read(tmp_path, event("train_loss", 2.5, epoch_num=1_000_000))
    assert "epoch_num is too large for epochs: it counts samples or tokens" in run.notes


def test_only_this_reader_takes_it() -> None:
    assert claimed_by(log("gpt3")) == ("mlperf", ["mlperf"])


@pytest.mark.parametrize("text", [":::MLLOG {" + "[" * 50_000 + "\n", ":::MLLOG {}\n", ':::MLLOG {"key": 5}\n'])
def test_what_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="holds no loss"):
        read(tmp_path, text)


def test_logs_of_a_submission(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")
    runs = [read(tmp_path, path.read_bytes())[0] for path in sorted(SHARED.glob("*.txt"))]
    assert [run.series["training_loss"].steps.size for run in runs] == [43, 43, 38]
    assert all(run.series["validation_loss"].values[-1] < 0.925 for run in runs)
    assert not any(run.failure for run in runs)
