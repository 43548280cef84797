"""Megatron-LM's standard output, and what prints the same lines: Megatron-Bridge, GPT-NeoX, Megatron-DeepSpeed."""

import re

import numpy as np

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import barred_fields, mean_over_interval
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

# Prefixes of launchers (`3: `, `[node:3]: `) and time stamps stand before, so a line is found anywhere in the text.
_STEP = re.compile(rb" iteration +(\d+)/ *(\d+) \|([^\n]*)")
# NeMo writes `Training epoch 0, iteration 12/99 | …`: no line of Megatron's.
_STEP_IN_HEAD = re.compile(rb"(?<!,) iteration +\d+/ *\d+ \|")
# `validation loss at iteration 200 | lm loss value: 6.49E+00 | lm loss PPL: …`; at the end once more, without a number.
_VALIDATION = re.compile(rb"validation loss at (?:iteration (\d+))?[^|\n]*\|([^\n]*)")
_EVENT = re.compile(_STEP.pattern + rb"|" + _VALIDATION.pattern)
_ARGUMENT = re.compile(rb"(?m)^(?:\S+[ :]+)?  ([a-z][a-z0-9_]*) \.{3,} (.*)$")
_NAN_COUNT = b"number of nan iterations"
# Fields that hold nothing to compare.
_ASIDE = (b"consumed", b"global batch size", b"number of", b"num zeros", b"params norm")
_NAMES = {b"lm_loss": "lm loss"}
_LOSS = "lm loss"
_VALIDATION_NAMES = (b"lm loss value", b"lm_loss value")


def matches(source: Source) -> bool:
    return _STEP_IN_HEAD.search(source.head) is not None or _VALIDATION.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        _arguments(chunk, collected)
        if not _alike(chunk, collected):
            _one_by_one(chunk, collected)
    mean_over_interval(collected, _LOSS)
    return collected


def _alike(chunk: bytes, collected: Collector) -> bool:
    """Take many lines of a log interval at once; False where they are not alike or belong to several runs."""
    first = _STEP.search(chunk)
    if first is None:
        return False
    pattern, labels = _layout(first[3])
    found = pattern.findall(chunk)
    if not labels or not all(row[2] for row in found):
        return False
    columns = list(zip(*found, strict=True))
    steps = np.array(list(map(float, columns[0])))
    if not collected.continues(steps):
        return False
    run = collected.bulk(steps, list(zip(labels, columns[2:], strict=True)))
    run.expected_last_step = float(columns[1][-1])
    if b"validation loss at " in chunk:
        for match in _VALIDATION.finditer(chunk):
            _validation(match[1], match[2], run)
    return True


def _one_by_one(chunk: bytes, collected: Collector) -> None:
    for match in _EVENT.finditer(chunk):
        if match[1]:
            collected.put(float(match[1]), _fields(match[3])).expected_last_step = float(match[2])
        else:
            _validation(match[4], match[5], collected.run)


def _layout(rest: bytes) -> tuple[re.Pattern[bytes], list[str]]:
    """A pattern for lines with exactly the fields of this one, and the labels of those that it captures.

    Of a line with other fields it captures the steps alone. A line without a loss has other fields: it is NaN or skipped,
    and must be looked at by itself.
    """
    parts, labels = [], []
    for name, _ in barred_fields(rest):
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


def _fields(rest: bytes) -> list[tuple[str, Token]]:
    """The fields of one line. A loss that is NaN is not written at all: only the counter of NaN iterations tells."""
    found: list[tuple[str, Token]] = []
    nans = b""
    for name, value in barred_fields(rest):
        if name == _NAN_COUNT:
            nans = value.strip(b"0")
        elif not name.startswith(_ASIDE) and meaning(name.decode("latin-1")):
            found.append((_NAMES.get(name, name.decode("latin-1")), value))
    if nans and all(name != _LOSS for name, _ in found):
        found.append((_LOSS, float("nan")))
    return found


def _validation(iteration: bytes | None, rest: bytes, run: RawRun) -> None:
    """A validation at its iteration, or at the last one. What stands twice for one iteration counts once."""
    at = float(iteration) if iteration else run.last_step
    value = next((value for name, value in barred_fields(rest) if name in _VALIDATION_NAMES), None)
    if value is None or at is None:
        return
    column = run.column("lm loss validation")
    if not column.steps or column.steps[-1] != at:
        run.add("lm loss validation", "steps", at, value)


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
