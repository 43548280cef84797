"""JSON lines: columns by name, NaN against missing, runs, axes, resumes; and what any source may throw at a reader."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8migrate.errors import UsageError
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.base import Options, parse_columns
from fp8migrate.records.source import MAX_LINE_BYTES, Source
from tests.records.readers.logs import read, source_of


def rows(*objects: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in objects)


def test_columns_by_their_usual_names(tmp_path: Path) -> None:
    text = rows(
        {"step": 1, "train/loss": 5.25, "val_loss": 5.5, "lr": 1e-3, "dt_ms": 20.0, "host": "a"},
        {"step": 2, "train/loss": 5.125, "val_loss": 5.25, "lr": 5e-4, "dt_ms": 30.0, "host": "a"},
    )
    (run,) = read(tmp_path, text)
    assert run.series["training_loss"].values.tolist() == [5.25, 5.125]
    assert run.series["validation_loss"].values.tolist() == [5.5, 5.25]
    assert run.series["step_seconds"].values.tolist() == [0.02, 0.03]
    assert run.unused == ("host",)


def test_named_columns_take_the_place_of_guesses(tmp_path: Path) -> None:
    text = rows({"t": 10, "loss": 9.0, "ce": 3.0}, {"t": 20, "loss": 9.0, "ce": 2.0})
    (run,) = read(tmp_path, text, Options(columns=parse_columns(["training_loss=ce,step=t"])))
    assert run.series["training_loss"].steps.tolist() == [10, 20]
    assert run.series["training_loss"].values.tolist() == [3.0, 2.0]


@pytest.mark.parametrize("word", ["NaN", '"NaN"', '"nan"'])
def test_a_nan_that_was_logged_is_a_value(tmp_path: Path, word: str) -> None:
    (run,) = read(tmp_path, f'{{"step": 1, "loss": 2.5}}\n{{"step": 2, "loss": {word}}}\n{{"step": 3, "loss": 2.0}}\n')
    assert [math.isnan(value) for value in run.series["training_loss"].values] == [False, True, False]


@pytest.mark.parametrize("word", ["null", '""', '"n/a"', "[1]"])
def test_what_is_no_number_is_missing(tmp_path: Path, word: str) -> None:
    (run,) = read(tmp_path, f'{{"step": 1, "loss": 2.5}}\n{{"step": 2, "loss": {word}}}\n{{"step": 3, "loss": 2.0}}\n')
    assert run.series["training_loss"].steps.tolist() == [1, 3]


def test_infinity_is_a_value(tmp_path: Path) -> None:
    (run,) = read(tmp_path, '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": Infinity}\n')
    assert run.series["training_loss"].values.tolist() == [2.5, math.inf]


def test_a_run_column_tells_runs_apart(tmp_path: Path) -> None:
    text = rows(*({"run": name, "step": step, "loss": float(step)} for step in (1, 2) for name in ("a", "b")))
    found = read(tmp_path, text)
    assert [run.name for run in found] == ["a", "b"]
    assert all(run.series["training_loss"].values.tolist() == [1.0, 2.0] for run in found)


def test_tokens_on_the_x_axis(tmp_path: Path) -> None:
    (run,) = read(tmp_path, rows({"tokens": 1000, "loss": 3.0}, {"tokens": 2000, "loss": 2.0}))
    assert run.series["training_loss"].axis == "tokens"


def test_torn_lines_are_counted(tmp_path: Path) -> None:
    (run,) = read(tmp_path, rows({"step": 1, "loss": 3.0}) + '{"step": 2, "lo\n' + rows({"step": 3, "loss": 2.0}))
    assert run.series["training_loss"].steps.tolist() == [1, 3]
    assert (run.not_understood, run.example) == (1, '{"step": 2, "lo')


def test_digits_as_written(tmp_path: Path) -> None:
    (run,) = read(tmp_path, rows({"step": 1, "loss": 3.25}, {"step": 2, "loss": 2.875}))
    assert run.series["training_loss"].digits == 4


def test_compressed_logs(tmp_path: Path) -> None:
    text = rows({"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0})
    assert read(tmp_path, gzip.compress(text.encode()))[0].series["training_loss"].values.tolist() == [3.0, 2.0]
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path, gzip.compress(text.encode() * 1000)[:-20])


def test_very_long_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    text = rows({"step": 1, "loss": 3.0}) + '{"x": "' + "a" * (3 * MAX_LINE_BYTES) + '"}\n' + rows({"step": 2, "loss": 2.0})
    (run,) = read(tmp_path, text)
    assert run.series["training_loss"].steps.tolist() == [1, 2]
    assert run.not_understood == 1


@pytest.mark.parametrize("step", ["1e300", "-5", "1e999", '"x"', "null"])
def test_impossible_steps_leave_no_point(tmp_path: Path, step: str) -> None:
    (run,) = read(tmp_path, f'{{"step": 1, "loss": 2.5}}\n{{"step": {step}, "loss": 9.0}}\n{{"step": 3, "loss": 2.0}}\n')
    assert run.series["training_loss"].steps.tolist() == [1, 3]


@pytest.mark.parametrize("content", ["", "  \n\n", "\x00\x01\x02", "hello\n", "[" * 100_000, '{"a":' * 10_000])
def test_what_is_no_log_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, content)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    for head in (b"", b'{"step": 1, "loss": 2.5}\n', b" iteration        1/      9 | lm loss: 2.5E+00 |\n"):
        source = source_of(folder, head + content)
        try:
            found = read_log(source)
        except UsageError:
            continue
        for run in found:
            for series in run.series.values():
                assert (np.diff(series.steps) > 0).all()


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("standard input", None, rows({"step": 1, "loss": 3.0}).encode())
    assert read_log(source)[0].series["training_loss"].values.tolist() == [3.0]


def test_digits_are_those_at_the_size_of_the_last_values(tmp_path: Path) -> None:
    """Four decimals: six digits above 10, five below, of which the last can be zeros that JSON does not write."""
    losses = [10.8125, 9.1234, 3.2512, 3.25]
    (run,) = read(tmp_path, rows(*({"step": step, "loss": loss} for step, loss in enumerate(losses, 1))))
    assert run.series["training_loss"].digits == 5


def test_a_row_without_a_step_is_no_step_of_a_log_that_counts(tmp_path: Path) -> None:
    text = rows({"loss": 11.0}, {"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"loss": 9.0})
    (run,) = read(tmp_path, text)
    assert (run.series["training_loss"].axis, run.series["training_loss"].values.tolist()) == ("steps", [3.0, 2.0])
    assert any("left out" in note for note in run.notes)


def test_rows_that_count_nothing_are_numbered_on(tmp_path: Path) -> None:
    (run,) = read(tmp_path, rows(*({"loss": float(loss)} for loss in (5, 4, 3))))
    assert (run.series["training_loss"].axis, run.series["training_loss"].steps.tolist()) == ("points", [1, 2, 3])


def test_a_run_of_a_name_that_begins_again_is_another_run(tmp_path: Path) -> None:
    text = rows(*({"run": "a", "step": step, "loss": float(step)} for step in (1, 2, 3, 1, 2)))
    first, second = read(tmp_path, text)
    assert (first.name, second.name) == ("a", "a#2")
    assert [len(run.series["training_loss"].steps) for run in (first, second)] == [3, 2]


@pytest.mark.parametrize("columns", ["training_loss=cee", "training_loss=ce,step=tt"])
def test_a_named_column_that_is_not_there_is_an_error(tmp_path: Path, columns: str) -> None:
    text = rows({"t": 1, "ce": 2.5, "loss": 3.5}, {"t": 2, "ce": 2.25, "loss": 3.5})
    with pytest.raises(UsageError, match="has no column"):
        read(tmp_path, text, Options(columns=parse_columns([columns])))


def test_formats_with_their_own_names_take_no_columns(tmp_path: Path) -> None:
    text = " iteration        1/      9 | lm loss: 2.5E+00 |\n"
    with pytest.raises(UsageError, match="names of its own"):
        read(tmp_path, text, Options(columns={"training_loss": "ce"}))


@pytest.mark.parametrize("label", ["train/z_loss", "eval/aux_loss", "train/moe_balance_loss"])
def test_parts_of_a_loss_are_not_taken_for_the_loss(tmp_path: Path, label: str) -> None:
    with pytest.raises(UsageError, match="holds no loss"):
        read(tmp_path, rows({"step": 1, label: 3.0}))
