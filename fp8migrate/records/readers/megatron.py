"""Megatron-LM's standard output, and what prints the same lines: Megatron-Bridge, GPT-NeoX, Megatron-DeepSpeed."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.barred import Alike, BarredLines, in_order, of_step_bars
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import barred_fields, mean_over_interval
from fp8migrate.records.source import Source
from fp8migrate.records.spans import Flags, Places, Text, read_points
from fp8migrate.records.tokens import Array, Token

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
_VALIDATION_WORDS = b"validation loss at "
_VALIDATION_NAMES = (b"lm loss value", b"lm_loss value")
_VALIDATION_LABEL = "lm loss validation"
_NAN = b"nan"
# Lines that must be taken by themselves part those that are taken together: so many a chunk, and of so many lines one more.
_FEW, _SHARE = 8, 64


def matches(source: Source) -> bool:
    return _STEP_IN_HEAD.search(source.head) is not None or _VALIDATION.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        _arguments(chunk, collected)
        if not _at_once(chunk, collected):
            _one_by_one(chunk, collected)
    mean_over_interval(collected, _LOSS)
    _batch_size(source, collected)
    return collected


@dataclass(frozen=True)
class _Chunk:
    """A chunk's lines by what they hold. lines, steps: of all groups, in order. odd: steps of no group; validations: both by
    their line.
    """

    text: Text
    groups: list[Alike]
    lines: Places
    steps: Array
    odd: dict[int, re.Match[bytes]]
    validations: dict[int, re.Match[bytes]]


@dataclass(frozen=True)
class _Values:
    """A field's values in lines of one layout: the lines and their steps, and where the values stand. field: its place."""

    lines: Places
    steps: Array
    starts: Places
    ends: Places
    field: int


def _at_once(chunk: bytes, collected: Collector) -> bool:
    """Take the lines of each layout together; False, with nothing taken, where too few lines are alike for that."""
    parted = _parted(chunk) if chunk else None
    if parted is None:
        return False
    back = parted.lines[1:][np.diff(parted.steps) < 0]
    if len(parted.odd) + back.size > _FEW + parted.lines.size // _SHARE:
        return False
    # Between these lines the steps rise, so that all belong to one run.
    cuts = sorted({0, *parted.odd, *back.tolist()})
    for first, last in zip(cuts, [*cuts[1:], sys.maxsize], strict=True):
        if match := parted.odd.get(first):
            _step(match, collected)
        _part(parted, first, last, collected)
    return True


def _parted(chunk: bytes) -> _Chunk | None:
    """The lines of a chunk by layout, with all others that matter; None where this cannot be said of each line for sure."""
    barred = BarredLines(chunk + _NAN)
    groups, others = barred.alike(barred.containing(_VALIDATION_WORDS))
    for group in groups:
        labels = {*map(_label, group.layout.names)}
        if len(labels) < len(group.layout.names) or _VALIDATION_LABEL in labels:
            return None
    odd: dict[int, re.Match[bytes]] = {}
    validations: dict[int, re.Match[bytes]] = {}
    for line in others.tolist():
        if match := _EVENT.search(chunk, int(barred.starts[line]), int(barred.ends[line])):
            (odd if match[1] else validations)[line] = match
    if not groups:
        return None
    lines, steps = in_order(groups)
    # GPT-NeoX's lines have a field before the step. That none of these is a step itself is seen by counting.
    if any(group.layout.before for group in groups) and of_step_bars(chunk) != lines.size + len(odd):
        return None
    return _Chunk(barred.text, groups, lines, steps, odd, validations)


def _part(chunk: _Chunk, first: int, last: int, collected: Collector) -> None:
    """Take the lines from first to before last, whose steps rise, and the validations between them."""
    start, stop = np.searchsorted(chunk.lines, [first, last]).tolist()
    lines, steps = chunk.lines[start:stop], chunk.steps[start:stop]
    begin = int(lines[0]) if lines.size else last
    validations = [(line, match) for line, match in chunk.validations.items() if first <= line < last]
    for line, match in validations:
        if line < begin:
            _validation(match, collected.run)
    if not lines.size:
        return
    later = [(line, match) for line, match in validations if line > begin]
    groups = [part for group in chunk.groups if (part := group.within(first, last)).lines.size]
    run = collected.at(float(steps[0]))
    _columns(chunk.text, groups, later, run)
    for line, match in later:
        run.last_step = float(steps[np.searchsorted(lines, line) - 1])
        _validation(match, run)
    run.last_step = float(steps[-1])
    run.expected_last_step = next(group.total for group in groups if group.lines[-1] == lines[-1])


def _columns(text: Text, groups: list[Alike], validations: list[tuple[int, re.Match[bytes]]], run: RawRun) -> None:
    """Add the points of each label. New columns stand in the order in which the log has them."""
    found: dict[str, list[_Values]] = {}
    for group in groups:
        for label, values in _values(text, group):
            found.setdefault(label, []).append(values)
    columns = []
    for label, several in found.items():
        lines, steps, starts, ends = _merged(several)
        points = read_points(text, steps, starts, ends, bytes.strip)
        if points.first is not None:
            line = int(lines[points.first])
            field = next(values.field for values in several if line in values.lines)
            columns.append((line, field, label, points))
    new = [(line, field, label) for line, field, label, _ in columns]
    new += [(line, 0, _VALIDATION_LABEL) for line, match in validations if _validation_value(match) is not None]
    for _, _, label in sorted(new):
        run.column(label)
    for _, _, label, points in columns:
        run.column(label).add_read(points.block, points.missing)


def _values(text: Text, group: Alike) -> Iterator[tuple[str, _Values]]:
    """Of each field that counts its label, and where its values stand."""
    names = group.layout.names
    nan = _nan_lines(text, group) if _NAN_COUNT in names else None
    for field, name in enumerate(names):
        if _counts(name):
            starts, ends = group.places(text, field)
            if nan is not None and nan.any() and _label(name) == _LOSS:
                # The printed loss is the mean of the iterations that were left.
                starts = np.where(nan, len(text.content) - len(_NAN), starts)
                ends = np.where(nan, len(text.content), ends)
            yield _label(name), _Values(group.lines, group.steps, starts, ends, field)
    if nan is not None and _LOSS not in map(_label, names):
        # They are not written: the word that was put after the chunk stands for them.
        ends = np.full(int(nan.sum()), len(text.content))
        yield _LOSS, _Values(group.lines[nan], group.steps[nan], ends - len(_NAN), ends, len(names))


def _nan_lines(text: Text, group: Alike) -> Flags:
    """Of a group's lines those that count NaN iterations."""
    starts, ends = group.places(text, group.layout.names.index(_NAN_COUNT))
    codes = text.codes
    # Nearly all say ` 0`.
    nan: Flags = ~((codes[ends - 1] == ord("0")) & (codes[ends - 2] == ord(" ")))
    for line in np.flatnonzero(nan).tolist():
        nan[line] = bool(text.content[starts[line] : ends[line]].strip().strip(b"0"))
    return nan


def _merged(several: list[_Values]) -> tuple[Places, Array, Places, Places]:
    """Lines, steps, starts and ends of one label, in the order of the lines."""
    if len(several) == 1:
        return several[0].lines, several[0].steps, several[0].starts, several[0].ends
    lines = np.concatenate([values.lines for values in several])
    order = np.argsort(lines, kind="stable")
    steps = np.concatenate([values.steps for values in several])
    starts = np.concatenate([values.starts for values in several])
    ends = np.concatenate([values.ends for values in several])
    return lines[order], steps[order], starts[order], ends[order]


def _one_by_one(chunk: bytes, collected: Collector) -> None:
    for match in _EVENT.finditer(chunk):
        if match[1]:
            _step(match, collected)
        else:
            _validation(match, collected.run)


def _step(match: re.Match[bytes], collected: Collector) -> None:
    collected.put(float(match[1]), _fields(match[3])).expected_last_step = float(match[2])


def _label(name: bytes) -> str:
    return _NAMES.get(name, name.decode("latin-1"))


def _counts(name: bytes) -> bool:
    """Whether a field holds a quantity."""
    return name != _NAN_COUNT and not name.startswith(_ASIDE) and meaning(name.decode("latin-1")) is not None


def _fields(rest: bytes) -> list[tuple[str, Token]]:
    """The fields of one line. A NaN loss is not written, or is the mean of the rest: the counter of NaN iterations tells."""
    found: list[tuple[str, Token]] = []
    nans = b""
    for name, value in barred_fields(rest):
        if name == _NAN_COUNT:
            nans = value.strip(b"0")
        elif _counts(name):
            found.append((_label(name), value))
    if nans:
        found = [(name, float("nan") if name == _LOSS else value) for name, value in found]
        if all(name != _LOSS for name, _ in found):
            found.append((_LOSS, float("nan")))
    return found


def _validation(match: re.Match[bytes], run: RawRun) -> None:
    """A validation at its iteration, or at the last one. What stands twice for one iteration counts once."""
    at = float(match[4]) if match[4] else run.last_step
    value = _validation_value(match)
    if value is None or at is None:
        return
    column = run.column(_VALIDATION_LABEL)
    if not column.steps or column.steps[-1] != at:
        run.add(_VALIDATION_LABEL, "steps", at, value)


def _validation_value(match: re.Match[bytes]) -> bytes | None:
    return next((value for name, value in barred_fields(match[5]) if name in _VALIDATION_NAMES), None)


def _arguments(chunk: bytes, collected: Collector) -> None:
    """The list of arguments at the head of a log: its configuration."""
    if not _has_dots(chunk) or b" ....." not in chunk:
        return
    for name, value in _ARGUMENT.findall(chunk):
        collected.run.settings[name.decode()] = value.decode("utf-8", "replace").strip()


def _has_dots(chunk: bytes) -> bool:
    """Whether five dots may stand in a row: of every five bytes one is looked at, which is less than a search for them."""
    codes = np.frombuffer(chunk, dtype=np.uint8)
    dots = np.flatnonzero(codes[4::5] == ord(".")) * 5 + 4
    return bool(((codes[dots - 1] == ord(".")) | (codes[np.minimum(dots + 1, codes.size - 1)] == ord("."))).any())


_BATCH = re.compile(rb"\| global batch size: *(\d{1,12}) *\|")


def _batch_size(source: Source, collected: Collector) -> None:
    """The batch size that the lines carry, where it is one: two arms with other ones are no pair."""
    sizes = set(_BATCH.findall(source.head))
    if len(sizes) == 1:
        for run in collected.runs:
            run.settings["logged.global_batch_size"] = next(iter(sizes)).decode()


READER = Reader(
    "megatron",
    "Megatron-LM's standard output",
    matches,
    read,
    "Megatron prints `lm loss:` every --log-interval steps; a log without it ended before the first.",
)
