"""What the Hugging Face Trainer prints, and Axolotl on top of it: one Python dict a line, without the step."""

import re
from collections.abc import Iterator

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token, is_number

_MAX_LINE = 8192
# A dict is read by pattern, not as Python: `nan` is no literal, and values keep the digits that they were printed with.
_ITEM = re.compile(r"'([^'\n]{1,200})': *(?:np\.float\d\d\(|tensor\()?(?:'([^'\n]*)'|([^\s,'{}()\[\]]+))")
_LOSSES = ("loss", "eval_loss")
_SUMMARY = "train_runtime"
_AVERAGING = "mean since the line before"

Row = dict[str, str]


def matches(source: Source) -> bool:
    lines = source.head.replace(b"\r", b"\n").split(b"\n")
    return any(_is_log(row) for line in lines if (row := _row(line)) is not None)


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    named = {label: quantity for quantity, label in options.columns.items() if quantity not in ("step", "run")}
    epochs: dict[int, float] = {}
    for line in source.lines():
        row = _row(line)
        if row is None:
            if line.startswith((b"{'loss':", b"{'eval_loss':")):
                collected.skip(line)
        elif _SUMMARY in row:
            if loss := row.get("train_loss"):
                collected.run.note(f"train_loss {loss} at the end is the mean of the run, not a point of it")
        elif _is_log(row) or named.keys() & row.keys():
            _points(_run(collected, row, epochs), row, named)
    return collected


def _row(line: bytes) -> Row | None:
    """The dict that a line ends with; None for any other line. Progress bars and ranks may stand before it."""
    start = line.find(b"{'")
    if start < 0 or len(line) > _MAX_LINE or not line.rstrip().endswith(b"}"):
        return None
    text = line[start:].decode("utf-8", "replace")
    return {match[1]: match[3] if match[2] is None else match[2] for match in _ITEM.finditer(text)}


def _is_log(row: Row) -> bool:
    """Whether a dict is of numbers that were logged, and not of arguments such as {'loss': 'mse'}."""
    return _SUMMARY in row or any(is_number(row[key]) for key in _LOSSES if key in row)


def _run(collected: Collector, row: Row, epochs: dict[int, float]) -> RawRun:
    """The run of a row: the epoch goes back to the beginning where another one starts. epochs: first and last, 0 and 1."""
    epoch = row.get("epoch", "")
    run = collected.run
    run.note("the log counts nothing: its rows were numbered from 1")
    if not is_number(epoch):
        return run
    now = float(epoch)
    if now < epochs.get(1, now):
        if now <= epochs[0]:
            run = collected.new_run()
            run.note("the log counts nothing: its rows were numbered from 1")
            epochs.clear()
        else:
            run.note(f"the epoch goes back to {epoch}: resumed, and the rows after it were numbered on")
    epochs.setdefault(0, now)
    epochs[1] = now
    return run


def _points(run: RawRun, row: Row, named: dict[str, str]) -> None:
    """Rows of training and of evaluation are numbered by themselves."""
    evaluation = any(label.startswith("eval_") for label in row) and "loss" not in row
    for label, value in _wanted(row, named):
        known = meaning(label)
        if known is None:
            if label != "epoch":
                run.unused[label] = None
        elif not evaluation or known.quantity == "validation_loss":
            column = run.column(label, "points", _AVERAGING if label == "loss" else "")
            column.steps.append(column.points + 1)
            column.values.append(value)


def _wanted(row: Row, named: dict[str, str]) -> Iterator[tuple[str, Token]]:
    taken = set(named.values())
    for label, value in row.items():
        known = meaning(label)
        if label in named:
            yield named[label], value
        elif known is None or known.quantity not in taken:
            yield label, value


READER = Reader(
    "hf-stdout",
    "the Hugging Face Trainer's output",
    matches,
    read,
    "Set logging_steps so that the Trainer prints its loss, or give its trainer_state.json.",
    takes_columns=True,
)
