"""A stored baseline is what it was stored from: every number, and all that a verdict hangs on."""

from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.logs import LogRecord, LogSeries, Overlap
from fp8migrate.records.stored_baseline import load, store


def record() -> LogRecord:
    series = LogSeries(
        name="training_loss",
        label="ce",
        unit="nats",
        axis="samples",
        steps=np.array([8.0, 16.0, 24.0]),
        values=np.array([1 / 3, np.nan, 1e-300]),
        digits=6,
        averaging="mean over 8 samples",
        overlaps=(Overlap(16.0, 24.0, 2, non_finite=16.0, excess=0.25), Overlap(8.0, 9.0, 1)),
    )
    settings = {"lr": "0.001"}
    return LogRecord("nowhere.log", "a run", "jsonl", {"training_loss": series}, 24.0, "failed", "OutOfMemoryError", settings)


@pytest.mark.parametrize("name", ["b.json", "b.json.gz"])
def test_there_and_back(tmp_path: Path, name: str) -> None:
    """Also what a resume wrote over: a baseline that went NaN and was rolled back has gone NaN."""
    store([record()], tmp_path / name, version="1", created="now")
    (found,) = load(tmp_path / name)
    before, after = record().series["training_loss"], found.series["training_loss"]
    assert after.values.tobytes() == before.values.tobytes()
    assert after.steps.tobytes() == before.steps.tobytes()
    same = ("name", "label", "unit", "axis", "digits", "averaging", "overlaps")
    assert [getattr(after, field) for field in same] == [getattr(before, field) for field in same]
    whole = ("source", "name", "format", "expected_last_step", "failure", "crash", "settings")
    assert [getattr(found, field) for field in whole] == [getattr(record(), field) for field in whole]


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        store([record()], tmp_path / "b.json", version="1", created="now")
    assert (tmp_path / "b.json").read_text() == "mine"
