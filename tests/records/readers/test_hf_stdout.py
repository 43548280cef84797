"""What the Trainer prints: numbers or text for values, no step, evaluations, a mean at the end."""

from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.readers.base import Options
from tests.records.readers.logs import read
from tests.records.readers.reading import claimed_by

TRAINER = """***** Running training *****
{'mode': 'plain', 'loss': 'mse'}
  0%|  | 0/3\r 33%|# | 1/3{'loss': 3.2501, 'grad_norm': 2.5, 'learning_rate': 4e-05, 'epoch': 0.25}
{'loss': nan, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.5}
{'eval_loss': 3.5, 'eval_runtime': 1.5, 'eval_samples_per_second': 9.5, 'epoch': 0.5}
{'loss': 2.75, 'grad_norm': 1.25, 'learning_rate': 0.0, 'epoch': 0.75}
{'eval_loss': 3.25, 'eval_runtime': 1.5, 'epoch': 0.75}
{'train_runtime': 9.75, 'train_samples_per_second': 4.5, 'train_loss': 3.0, 'epoch': 0.75}
"""
AXOLOTL = """[rank0]: {'loss': '3.1250', 'grad_norm': '2.5', 'memory/max_mem_active(gib)': '1.5', 'epoch': '0.1'}
[rank0]: {'loss': '3.0', 'grad_norm': '2.25', 'memory/max_mem_active(gib)': '2.5', 'epoch': '0.2'}
"""


def test_rows_are_numbered(tmp_path: Path) -> None:
    (run,) = read(tmp_path, TRAINER)
    loss = run.series["training_loss"]
    assert (run.format, loss.axis, loss.digits, loss.averaging) == ("hf-stdout", "points", 5, "mean since the line before")
    assert loss.steps.tolist() == [1, 2, 3]
    assert np.isnan(loss.values[1])
    assert loss.values[[0, 2]].tolist() == [3.2501, 2.75]
    assert run.series["learning_rate"].values.tolist() == [4e-5, 2e-5, 0.0]
    assert run.series["validation_loss"].steps.tolist() == [1, 2]
    assert run.series["validation_loss"].values.tolist() == [3.5, 3.25]
    assert run.notes == (
        "the log counts nothing: its rows were numbered from 1",
        "train_loss 3.0 at the end is the mean of the run, not a point of it",
    )
    assert run.not_understood == 0


def test_values_may_be_text_and_ranks_stand_before(tmp_path: Path) -> None:
    (run,) = read(tmp_path, AXOLOTL)
    assert run.series["training_loss"].values.tolist() == [3.125, 3.0]
    assert run.series["training_loss"].digits == 5
    assert run.series["memory_bytes"].values.tolist() == [1.5 * 2**30, 2.5 * 2**30]


def test_numbers_of_numpy_and_torch(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "{'loss': np.float64(3.25), 'grad_norm': tensor(1.5, device='cuda:0'), 'epoch': 0.5}\n")
    assert run.series["training_loss"].values.tolist() == [3.25]
    assert run.series["grad_norm"].values.tolist() == [1.5]


def test_an_epoch_that_begins_anew_is_another_run(tmp_path: Path) -> None:
    rows = ["{'loss': 3.5, 'epoch': 0.1}", "{'loss': 3.0, 'epoch': 0.2}"]
    first, second = read(tmp_path, "\n".join([*rows, *rows, ""]))
    assert first.series["training_loss"].steps.tolist() == second.series["training_loss"].steps.tolist() == [1, 2]
    (run,) = read(tmp_path, "\n".join([*rows, "{'loss': 2.5, 'epoch': 0.3}", rows[1], ""]))
    assert run.series["training_loss"].steps.tolist() == [1, 2, 3, 4]
    assert "the epoch goes back to 0.2: resumed, and the rows after it were numbered on" in run.notes


def test_a_line_that_was_cut_is_counted(tmp_path: Path) -> None:
    (run,) = read(tmp_path, TRAINER + "{'loss': 2.5, 'grad_\n")
    assert (run.not_understood, run.example) == (1, "{'loss': 2.5, 'grad_")


def test_a_column_can_be_named(tmp_path: Path) -> None:
    text = "{'loss': 3.5, 'ce': 3.25, 'epoch': 0.1}\n"
    (run,) = read(tmp_path, text, Options(columns={"training_loss": "ce"}))
    assert run.series["training_loss"].values.tolist() == [3.25]


@pytest.mark.parametrize("text", [TRAINER, AXOLOTL])
def test_no_other_reader_takes_it(text: str) -> None:
    assert claimed_by(text) == ("hf-stdout", ["hf-stdout"])


@pytest.mark.parametrize("text", ["{'" * 40_000 + "\n", "{'a': " * 1000 + "}\n", "{'loss': 'mse'}\n"])
def test_other_text_is_not_taken(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="no log format"):
        read(tmp_path, text)


def test_a_run_without_a_line_of_training_holds_no_loss(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="logging_steps"):
        read(tmp_path, "{'train_runtime': 9.75, 'train_loss': 3.0, 'epoch': 1.0}\n")
