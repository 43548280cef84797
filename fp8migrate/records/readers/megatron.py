"""Megatron-LM's standard output, and what prints the same lines: Megatron-Bridge, GPT-NeoX, Megatron-DeepSpeed."""

import re
from collections.abc import Iterator

import numpy as np

from fp8migrate.records.collect import Collector
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token, numbers

# Prefixes of launchers (`3: `, `[node:3]: `) and time stamps stand before, so a line is found anywhere in the text.
_STEP = re.compile(rb" iteration +(\d+)/ *(\d+) \|([^\n]*)")
# NeMo writes `Training epoch 0, iteration 12/99 | …`: no line of Megatron's.
_STEP_IN_HEAD = re.compile(rb"(?<!,) iteration +\d+/ *\d+ \|")
_VALIDATION = re.compile(rb"validation loss at ([^|\n]*)\|([^\n]*)")
_ITERATION = re.compile(rb"iteration (\d+)")
_ARGUMENT = re.compile(rb"(?m)^(?:\S+[ :]+)?  ([a-z][a-z0-9_]*) \.{3,} (.*)$")
_NAN_COUNT = b"number of nan iterations"
# Fields that hold nothing to compare.
_ASIDE = (b"consumed", b"global batch size", b"number of", b"num zeros", b"params norm")
_NAMES = {b"lm_loss": "lm loss"}
_LOSS = "lm loss"
_MAX_FIELDS = 64


def matches(source: Source) -> bool:
    return _STEP_IN_HEAD.search(source.head) is not None or _VALIDATION.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        _arguments(chunk, collected)
        _steps(chunk, collected)
        _validations(chunk, collected)
    for run in collected.runs:
        if column := run.columns.get(_LOSS):
            steps, _, _ = column.numbers()
            if steps.size > 1 and (interval := float(np.median(np.diff(steps)))) > 1:
                column.averaging = f"mean over {interval:g} steps"
    return collected


def _steps(chunk: bytes, collected: Collector) -> None:
    """Lines of a log interval: all at once where they are alike, else one by one."""
    first = _STEP.search(chunk)
    if first is None:
        return
    pattern, labels = _layout(first[3])
    found = pattern.findall(chunk)
    if labels and all(row[2] for row in found):
        columns = list(zip(*found, strict=True))
        steps = np.array(list(map(float, columns[0])))
        if collected.continues(steps):
            points = [(label, numbers(values), values) for label, values in zip(labels, columns[2:], strict=True)]
            collected.bulk(steps, points).expected_last_step = float(columns[1][-1])
            return
    for match in _STEP.finditer(chunk):
        collected.put(float(match[1]), _fields(match[3])).expected_last_step = float(match[2])


def _layout(rest: bytes) -> tuple[re.Pattern[bytes], list[str]]:
    """A pattern for lines with exactly the fields of this one, and the labels of those that it captures.

    Of a line with other fields it captures the steps alone. A line without a loss has other fields: it is NaN or skipped,
    and must be looked at by itself.
    """
    parts, labels = [], []
    for name, _ in _split(rest):
        if name != _NAN_COUNT and (name.startswith(_ASIDE) or meaning(name.decode("latin-1")) is None):
            parts.append(rb"[^|\n]*\|")
        elif name == _NAN_COUNT:
            parts.append(re.escape(b" " + name) + rb": *0 \|")
        else:
            parts.append(re.escape(b" " + name) + rb": *([^ |\n]+) \|")
            labels.append(_NAMES.get(name, name.decode("latin-1")))
    if _LOSS not in labels:
        labels = []
    return re.compile(rb" iteration +(\d+)/ *(\d+) \|(?:" + b"".join(parts) + rb")?"), labels


def _split(rest: bytes) -> Iterator[tuple[bytes, bytes]]:
    for part in rest.split(b"|")[:_MAX_FIELDS]:
        name, colon, value = part.rpartition(b":")
        if colon:
            yield name.strip(), value.strip()


def _fields(rest: bytes) -> list[tuple[str, Token]]:
    """The fields of one line. A loss that is NaN is not written at all: only the counter of NaN iterations tells."""
    found: list[tuple[str, Token]] = []
    nans = b""
    for name, value in _split(rest):
        if name == _NAN_COUNT:
            nans = value.strip(b"0")
        elif not name.startswith(_ASIDE) and meaning(name.decode("latin-1")):
            found.append((_NAMES.get(name, name.decode("latin-1")), value))
    if nans and all(name != _LOSS for name, _ in found):
        found.append((_LOSS, float("nan")))
    return found


def _validations(chunk: bytes, collected: Collector) -> None:
    """`validation loss at iteration 200 | lm loss value: 6.49E+00 | lm loss PPL: …`; at the end once more, without a number."""
    if b"validation loss at " not in chunk:
        return
    for where, rest in _VALIDATION.findall(chunk):
        run = collected.run
        step = _ITERATION.search(where)
        at = float(step[1]) if step else run.last_step
        value = next((value for name, value in _split(rest) if name in (b"lm loss value", b"lm_loss value")), None)
        if value is None or at is None:
            continue
        column = run.column("lm loss validation")
        if not column.steps or column.steps[-1] != at:
            column.steps.append(at)
            column.values.append(value)


def _arguments(chunk: bytes, collected: Collector) -> None:
    """The list of arguments at the head of a log: its configuration."""
    if b" ....." not in chunk:
        return
    for name, value in _ARGUMENT.findall(chunk):
        collected.run.settings[name.decode()] = value.decode("utf-8", "replace").strip()


READER = Reader(
    "megatron",
    "Megatron-LM's standard output",
    matches,
    read,
    "Megatron prints `lm loss:` every --log-interval steps; a log without it ended before the first.",
)
