"""Megatron-LM's output: NaN without a loss field, prefixes, averages over the log interval, resumes, arguments."""

from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from tests.records.readers.logs import read


def line(step: int, loss: str | None, *, total: int = 40, nans: int = 0, prefix: str = " ", name: str = "lm loss") -> str:
    written = "" if loss is None else f" {name}: {loss} |"
    return (
        f"{prefix}[2026-01-02 03:04:05] iteration {step:8d}/{total:8d} | consumed samples: {step * 8:12d} | "
        f"elapsed time per iteration (ms): 250.5 | learning rate: 1.000000E-04 | global batch size:     8 |{written} "
        f"loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | number of nan iterations: {nans:3d} |\n"
    )


def test_series_with_their_units_and_digits(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "using world size: 8\n" + line(10, "5.500000E+00") + line(20, "4.250000E+00"))
    loss = run.series["training_loss"]
    assert loss.steps.tolist() == [10, 20]
    assert loss.values.tolist() == [5.5, 4.25]
    assert (loss.digits, loss.averaging, loss.unit) == (7, "mean over 10 steps", "nats")
    assert run.series["step_seconds"].values.tolist() == [0.2505, 0.2505]
    assert run.series["grad_norm"].values.tolist() == [1.25, 1.25]
    assert (run.format, run.expected_last_step) == ("megatron", 40)


@pytest.mark.parametrize("prefix", ["3: ", "[node:3]: ", ""])
@pytest.mark.parametrize("name", ["lm loss", "lm_loss"])
def test_prefixes_of_launchers_and_the_name_of_gpt_neox(tmp_path: Path, prefix: str, name: str) -> None:
    (run,) = read(tmp_path, line(1, "5.5E+00", prefix=prefix, name=name) + line(2, "5.4E+00", prefix=prefix, name=name))
    assert run.series["training_loss"].values.tolist() == [5.5, 5.4]


def test_a_nan_loss_is_not_written_but_counted_and_is_not_missing(tmp_path: Path) -> None:
    (run,) = read(tmp_path, line(1, "5.5E+00") + line(2, None, nans=1) + line(3, "5.3E+00"))
    assert run.series["training_loss"].steps.tolist() == [1, 2, 3]
    assert np.isnan(run.series["training_loss"].values).tolist() == [False, True, False]


def test_a_skipped_iteration_is_missing_and_not_nan(tmp_path: Path) -> None:
    (run,) = read(tmp_path, line(1, "5.5E+00") + line(2, None) + line(3, "5.3E+00"))
    assert run.series["training_loss"].steps.tolist() == [1, 3]
    assert np.isfinite(run.series["training_loss"].values).all()


def test_a_resume_replaces_what_it_logs_again(tmp_path: Path) -> None:
    logged = [(1, "5.0"), (2, "4.0"), (3, "3.0"), (2, "4.5"), (3, "3.5"), (4, "2.5")]
    (run,) = read(tmp_path, "".join(line(step, loss) for step, loss in logged))
    loss = run.series["training_loss"]
    assert loss.steps.tolist() == [1, 2, 3, 4]
    assert loss.values.tolist() == [5.0, 4.5, 3.5, 2.5]
    assert [(o.first, o.last, o.points) for o in loss.overlaps] == [(2, 3, 2)]


def test_several_runs_in_one_file(tmp_path: Path) -> None:
    first, second = read(tmp_path, "".join(line(step, "5.0") for step in (1, 2, 3, 1, 2)))
    assert first.series["training_loss"].steps.tolist() == [1, 2, 3]
    assert second.series["training_loss"].steps.tolist() == [1, 2]
    assert first.name != second.name


def test_validation_once_although_the_end_repeats_it(tmp_path: Path) -> None:
    text = line(1, "5.0") + line(2, "4.0")
    text += " validation loss at iteration 2 | lm loss value: 4.125000E+00 | lm loss PPL: 6.187E+01 | \n"
    text += " validation loss at the end of training for val data | lm loss value: 4.125000E+00 | lm loss PPL: 6.187E+01 |\n"
    (run,) = read(tmp_path, text)
    assert run.series["validation_loss"].steps.tolist() == [2]
    assert run.series["validation_loss"].values.tolist() == [4.125]


def test_arguments_are_settings(tmp_path: Path) -> None:
    text = "  fp8_format ............. hybrid\n  bf16 ................... True\n" + line(1, "5.0")
    (run,) = read(tmp_path, text)
    assert run.settings == {"fp8_format": "hybrid", "bf16": "True", "logged.global_batch_size": "8"}


def test_a_log_that_ended_before_its_first_loss_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no loss"):
        read(tmp_path, line(1, None))


def test_lines_in_bulk_and_one_by_one_are_the_same(tmp_path: Path) -> None:
    alike = "".join(line(step, f"{5 - step / 100:.6E}") for step in range(1, 30))
    (bulk,) = read(tmp_path, alike)
    (single,) = read(tmp_path, alike + line(30, None))
    left, right = bulk.series["training_loss"], single.series["training_loss"]
    assert left.steps.tolist() == right.steps.tolist()
    assert left.values.tolist() == right.values.tolist()
    assert left.digits == right.digits == 7


def test_each_run_of_a_file_keeps_its_own_validations(tmp_path: Path) -> None:
    """They stand between the steps of their run, and must not all fall to the last one."""
    said = " validation loss at iteration {} | lm loss value: {} | lm loss PPL: 1.0E+01 | \n"
    first = line(1, "5.0") + line(2, "4.5") + said.format(2, "4.75")
    second = line(1, "5.5") + said.format(1, "5.25") + line(2, "4.0")
    runs = read(tmp_path, first + second)
    found = [(run.series["validation_loss"].steps.tolist(), run.series["validation_loss"].values.tolist()) for run in runs]
    assert found == [([2], [4.75]), ([1], [5.25])]


def test_what_is_no_number_is_missing_in_bulk_too(tmp_path: Path) -> None:
    (run,) = read(tmp_path, line(1, "5.0") + line(2, "12:30") + line(3, "nan") + line(4, "4.0"))
    assert run.series["training_loss"].steps.tolist() == [1, 3, 4]
    assert np.isnan(run.series["training_loss"].values).tolist() == [False, True, False]


def test_a_printed_loss_beside_counted_nans_is_that_of_the_rest(tmp_path: Path) -> None:
    """Over a log interval Megatron prints the mean of the iterations that were finite, and counts the others."""
    text = "".join(
        f" iteration {step:8d}/      10 | lm loss: 3.000000E+00 | loss scale: 1.0 | number of nan iterations: {nans:3d} |\n"
        for step, nans in ((2, 0), (4, 10), (6, 1), (8, 0), (10, 0))
    )
    (run,) = read(tmp_path, text)
    losses = run.series["training_loss"]
    assert losses.steps.tolist() == [2, 4, 6, 8, 10]
    assert [value == value for value in losses.values.tolist()] == [True, False, False, True, True]
