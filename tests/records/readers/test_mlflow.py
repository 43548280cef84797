"""MLflow's file store: the metric's name is the file's."""

from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.logs import LogRecord
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.base import Options
from fp8migrate.records.source import Source
from tests.records.readers.reading import claimed_by

LINES = "1700000000001 5.25 10\n1700000000002 5.125 20\n1700000000003 nan 30\n"


def metric(folder: Path, name: str, text: str, options: Options | None = None) -> tuple[LogRecord, ...]:
    path = folder / "mlruns" / "metrics" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return read_log(Source(str(path), path), options)


@pytest.mark.parametrize(("name", "quantity"), [("train/loss", "training_loss"), ("eval_loss", "validation_loss")])
def test_a_file_a_metric(tmp_path: Path, name: str, quantity: str) -> None:
    (run,) = metric(tmp_path, name, LINES)
    (series,) = run.series.values()
    assert (run.format, series.name, series.label, series.digits) == ("mlflow", quantity, name, 4)
    assert series.steps.tolist() == [10, 20, 30]
    assert series.values[:2].tolist() == [5.25, 5.125]
    assert np.isnan(series.values[2])


def test_values_without_steps_are_numbered(tmp_path: Path) -> None:
    (run,) = metric(tmp_path, "loss", "1700000000001 5.25 0\n1700000000002 5.125 0\n")
    assert run.series["training_loss"].steps.tolist() == [1, 2]
    assert run.series["training_loss"].axis == "points"
    assert run.notes == ("every value was logged at step 0: they were numbered from 1",)


def test_a_metric_of_another_name_can_be_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--columns"):
        metric(tmp_path, "quality", LINES)
    (run,) = metric(tmp_path, "quality", LINES, Options(columns={"training_loss": "quality"}))
    assert run.series["training_loss"].values[0] == 5.25


def test_lines_that_were_cut_are_counted(tmp_path: Path) -> None:
    (run,) = metric(tmp_path, "loss", LINES + "17000\n")
    assert (run.not_understood, run.example) == (1, "17000")


def test_only_this_reader_takes_it() -> None:
    assert claimed_by(LINES) == ("mlflow", ["mlflow"])
