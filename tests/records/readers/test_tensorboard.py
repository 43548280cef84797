"""Event files: every scalar, also of TensorFlow 2; and what is said where the package or half of the file lacks."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.readers import read_log, reader_of
from fp8migrate.records.readers.base import Options
from fp8migrate.records.source import Source

START = b"\x18\0\0\0\0\0\0\0abcd\x09\0\0\0\0\0\0\0\0\x1a\x0dbrain.Event:2abcd"


def write(folder: Path, points: list[tuple[str, int, Any]]) -> Source:
    """An event file of these tags, steps and values; an array is written as TensorFlow 2 writes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("tensorboard", reason="tensorboard is not installed")
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util.tensor_util import make_tensor_proto
    writer = EventFileWriter(str(folder))
    for tag, step, value in points:
        kind = "tensor" if isinstance(value, np.ndarray) else "simple_value"
        content = make_tensor_proto(value) if kind == "tensor" else value
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag=tag, **{kind: content})])))
    writer.close()
    (path,) = folder.glob("*tfevents*")
    return Source(path.name, path)


def test_tags(tmp_path: Path) -> None:
    rows = [("lm loss", 1, 5.5), ("lm loss", 2, float("nan")), ("lm loss vs samples", 64, 5.5), ("mood", 1, 1.0)]
    (run,) = read_log(write(tmp_path, [*rows, ("eval/loss", 2, np.float32(5.25).reshape(()))]))
    loss = run.series["training_loss"]
    assert (run.format, loss.label, loss.steps.tolist(), loss.values[0]) == ("tensorboard", "lm loss", [1, 2], 5.5)
    assert np.isnan(loss.values[1])
    assert run.series["validation_loss"].values.tolist() == [5.25]
    assert run.unused == ("lm loss vs samples", "mood")


def test_no_point_is_left_out(tmp_path: Path) -> None:
    (run,) = read_log(write(tmp_path, [("train/loss", step, 5.0) for step in range(12_000)]))
    assert run.series["training_loss"].steps.size == 12_000


def test_a_resume_is_kept_for_assembly(tmp_path: Path) -> None:
    (run,) = read_log(write(tmp_path, [("loss", step, float(value)) for value, step in enumerate([1, 2, 3, 2, 3])]))
    assert run.series["training_loss"].values.tolist() == [0, 3, 4]
    assert run.series["training_loss"].overlaps[0].points == 2


def test_a_tag_can_be_named(tmp_path: Path) -> None:
    (run,) = read_log(write(tmp_path, [("quality", 1, 5.5)]), Options(columns={"training_loss": "quality"}))
    assert run.series["training_loss"].values.tolist() == [5.5]


def test_a_file_that_was_cut_holds_what_is_whole(tmp_path: Path) -> None:
    source = write(tmp_path, [("loss", step, 5.0) for step in range(100)])
    assert source.path
    source.path.write_bytes(source.path.read_bytes()[:-10])
    (run,) = read_log(source)
    assert run.series["training_loss"].steps[-1] == 98


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.out"
    path.write_bytes(START)
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    assert reader_of(Source("events.out", path)).name == "tensorboard"
    with pytest.raises(UsageError, match=r"pip install 'fp8migrate\[logs\]'"):
        read_log(Source("events.out", path))
    with pytest.raises(UsageError, match="its own path"):
        read_log(Source("standard input", None, START))
