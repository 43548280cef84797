"""Formats that users describe: what is read, and what is refused with the place and the way out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.logs import LogRecord
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.described import MAX_LINE, load_described
from tests.records.readers.reading import source

BOTH = r"""
name: ours
line: 'it (?P<step>[\d,]+): ce (?P<training_loss>\S+)(?: gn (?P<grad_norm>\S+))?'
validation_line: 'held out ce (?P<validation_loss>\S+)'
averaging: mean over 10 steps
"""
LOG = """it 1,000: ce 5.2500 gn 2.5
held out ce 5.5
it 1,010: ce nan
noise
it 1,020: ce 5.0 gn 1.5
"""


def read(folder: Path, yaml: str, log: str) -> tuple[LogRecord, ...]:
    path = folder / "format.yaml"
    path.write_text(yaml)
    reader = load_described(path)
    return read_log(source(log), None, (reader,))


def test_training_and_validation(tmp_path: Path) -> None:
    (run,) = read(tmp_path, BOTH, LOG)
    loss = run.series["training_loss"]
    assert (run.format, loss.averaging, loss.digits, loss.axis) == ("ours", "mean over 10 steps", 5, "steps")
    assert loss.steps.tolist() == [1000, 1010, 1020]
    assert np.isnan(loss.values[1])
    assert run.series["grad_norm"].steps.tolist() == [1000, 1020]
    assert run.series["validation_loss"].steps.tolist() == [1000]
    assert run.series["validation_loss"].averaging == ""


def test_axes_runs_and_lines_without_a_step(tmp_path: Path) -> None:
    yaml = r"line: 't (?P<step>\d+) l (?P<training_loss>\S+)'" + "\naxis: tokens\n"
    first, second = read(tmp_path, yaml, "t 1 l 5.5\nt 2 l 5.0\nt 1 l 4.5\n")
    assert first.series["training_loss"].axis == "tokens"
    assert second.series["training_loss"].values.tolist() == [4.5]
    (run,) = read(tmp_path, r"line: 'l (?P<training_loss>\S+)'", "l 5.5\nl 5.0\n")
    assert run.series["training_loss"].steps.tolist() == [1, 2]
    assert run.series["training_loss"].axis == "points"
    assert run.notes == ("the log counts nothing: its lines were numbered from 1",)


def test_steps_that_are_no_numbers_are_counted(tmp_path: Path) -> None:
    (run,) = read(tmp_path, r"line: 's=(?P<step>\S+) l=(?P<training_loss>\S+)'", "s=x l=5.5\ns=1 l=5.0\n")
    assert (run.not_understood, run.example) == (1, "s=x l=5.5")


def test_long_lines_are_not_searched(tmp_path: Path) -> None:
    log = "l 5.5\n" + "l " * MAX_LINE + "\n"
    (run,) = read(tmp_path, r"line: '(?:l *)+ (?P<training_loss>[\d.]+)'", log)
    assert f"1 lines longer than {MAX_LINE} bytes were not searched" in run.notes


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("", "no keys"),
        ("[1", "no YAML"),
        ("name: a\n", "has no line"),
        ("line: 'a'\nlines: b\n", "'lines' that is not known"),
        ("line: 'a (?P<step>'\n", "no regular expression"),
        ("line: '(?P<loss>.)'\n", "group 'loss'"),
        (r"line: '(?P<step>\d)'", "captures no quantity"),
        ("line: 5\n", "line is no text"),
        ("line: '(?P<training_loss>.)'\naxis: days\n", "axis 'days'"),
        ("line: !!python/object/apply:os.system ['true']\n", "no YAML"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, yaml: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read(tmp_path, yaml, LOG)
    assert str(caught.value.where).endswith("format.yaml")
    assert caught.value.next_step


def test_a_description_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_described(tmp_path / "no.yaml")


def test_where_no_line_matches_the_description_is_named(tmp_path: Path) -> None:
    path = tmp_path / "format.yaml"
    path.write_text(BOTH)
    reader = load_described(path)
    assert not reader.matches(source("step 1 loss 5.5\n"))
    with pytest.raises(UsageError, match=r"No line matched in .*format\.yaml"):
        read_log(source("step 1 loss 5.5\n"), None, (replace(reader, matches=bool),))
