"""trainer_state.json: rows of training, of evaluation, and the summary that is no point."""

import json
from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from tests.records.readers.logs import read
from tests.records.readers.reading import claimed_by

HISTORY = [
    {"epoch": 0.5, "grad_norm": 2.5, "learning_rate": 0.001, "loss": 3.1409, "step": 50},
    {"epoch": 1.0, "grad_norm": 1.5, "learning_rate": 0.0005, "loss": 2.5, "step": 100},
    {"epoch": 1.0, "eval_loss": 2.75, "eval_runtime": 9.5, "step": 100},
    {"epoch": 1.5, "grad_norm": float("nan"), "learning_rate": 0.0001, "loss": float("nan"), "step": 150},
    {"epoch": 1.5, "step": 150, "train_loss": 2.9, "train_runtime": 99.5},
    {"predict_loss": 1.5, "predict_runtime": 3.0},
]
STATE = {"best_metric": None, "global_step": 150, "log_history": HISTORY, "logging_steps": 50, "max_steps": 200}


def test_series_settings_and_means(tmp_path: Path) -> None:
    (run,) = read(tmp_path, json.dumps(STATE, indent=2))
    loss = run.series["training_loss"]
    assert (run.format, loss.label, loss.averaging, loss.digits) == ("hf-state", "loss", "mean over 50 steps", 5)
    assert loss.steps.tolist() == [50, 100, 150]
    assert loss.values.tolist()[:2] == [3.1409, 2.5]
    assert np.isnan(loss.values[2])
    assert run.series["validation_loss"].steps.tolist() == [100]
    assert run.series["validation_loss"].values.tolist() == [2.75]
    assert run.series["grad_norm"].values.tolist()[:2] == [2.5, 1.5]
    assert run.expected_last_step == 200
    assert run.settings == {"max_steps": "200", "logging_steps": "50"}
    assert run.not_understood == 0


def test_one_evaluation_and_no_training_loss(tmp_path: Path) -> None:
    state = {"log_history": [{"eval_loss": 2.5, "step": 10}, {"train_loss": 2.0, "train_runtime": 1.0, "step": 10}]}
    (run,) = read(tmp_path, json.dumps(state))
    assert list(run.series) == ["validation_loss"]
    assert run.expected_last_step is None


@pytest.mark.parametrize("indent", [None, 2])
def test_no_other_reader_is_picked(indent: int | None) -> None:
    assert claimed_by(json.dumps(STATE, indent=indent))[0] == "hf-state"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"log_history": [', "not whole"),
        ('{"log_history": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        ('{"log_history": []}', "logging_steps"),
        ('{"log_history": [3, {"step": 1}]}', "holds no loss"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path, text)
