"""A format that a user describes: a small YAML file with a regular expression for its lines."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import yaml

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.logs import Axis, Quantity
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source

# A user's expression may be slow on long lines. Those hold arguments or programs, not steps.
MAX_LINE = 2000
_KEYS = ("name", "line", "validation_line", "axis", "averaging")
_GROUPS = ("step", *get_args(Quantity))
_EXAMPLE = r"Write for example line: 'step (?P<step>\d+) loss (?P<training_loss>\S+)'"


@dataclass(frozen=True)
class Description:
    """What the file says, checked."""

    name: str
    lines: tuple[re.Pattern[str], ...]
    axis: Axis
    averaging: str


def load_described(path: Path) -> Reader:
    """The reader that a YAML file describes. UsageError where it says something that cannot be followed."""
    where = str(path)
    described = _described(_load(path), where)

    def matches(source: Source) -> bool:
        return any(_search(described.lines, line.strip()) for line in source.head.splitlines())

    def read(source: Source, options: Options) -> Collector:
        return _read(source, described)

    groups = ", ".join(_GROUPS[1:])
    return Reader(described.name, f"described by {where}", matches, read, f"No line matched in {where}. Groups are {groups}.")


def _load(path: Path) -> dict[str, Any]:
    where = str(path)
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=where) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"is no YAML: {error}", where=where, next_step=_EXAMPLE) from error
    if not isinstance(found, dict):
        raise UsageError("describes no format: it has no keys", where=where, next_step=_EXAMPLE)
    if unknown := [key for key in found if key not in _KEYS]:
        raise UsageError(f"has a key {unknown[0]!r} that is not known", where=where, next_step=f"Keys: {', '.join(_KEYS)}.")
    if wrong := [key for key, value in found.items() if not isinstance(value, str)]:
        raise UsageError(f"{wrong[0]} is no text", where=where, next_step="Put it in single quotes.")
    return found


def _described(found: dict[str, Any], where: str) -> Description:
    if "line" not in found:
        raise UsageError("has no line", where=where, next_step=_EXAMPLE)
    axis = found.get("axis", "steps")
    if axis not in get_args(Axis):
        raise UsageError(f"axis {axis!r} is not known", where=where, next_step=f"Axes: {', '.join(get_args(Axis))}.")
    lines = tuple(_compiled(key, found[key], where) for key in ("line", "validation_line") if key in found)
    name = found.get("name") or Path(where).stem
    return Description(name, lines, axis, found.get("averaging", ""))


def _compiled(key: str, text: str, where: str) -> re.Pattern[str]:
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{key} is no regular expression: {error}", where=where, next_step=_EXAMPLE) from error
    groups = set(pattern.groupindex)
    if unknown := sorted(groups - set(_GROUPS)):
        raise UsageError(f"{key} has a group {unknown[0]!r}", where=where, next_step=f"Groups: {', '.join(_GROUPS)}.")
    if not groups - {"step"}:
        raise UsageError(f"{key} captures no quantity", where=where, next_step=_EXAMPLE)
    return pattern


def _search(patterns: Sequence[re.Pattern[str]], line: bytes) -> re.Match[str] | None:
    if len(line) > MAX_LINE:
        return None
    text = line.decode("utf-8", "replace")
    return next((match for pattern in patterns if (match := pattern.search(text))), None)


def _read(source: Source, described: Description) -> Collector:
    collected = Collector()
    too_long = 0
    for line in source.lines():
        too_long += len(line) > MAX_LINE
        if match := _search(described.lines, line):
            _take(match, match.re is described.lines[0], described, collected)
    if too_long:
        collected.notes.append(f"{too_long} lines longer than {MAX_LINE} bytes were not searched")
    return collected


def _take(match: re.Match[str], training: bool, described: Description, collected: Collector) -> None:
    """One line. A validation stands at the step it names, or at the last one; without any step lines are numbered."""
    values = match.groupdict()
    text = values.pop("step", None)
    run = collected.run
    step = run.last_step
    axis = described.axis
    if text is not None:
        try:
            step = float(text.replace(",", ""))
        except ValueError:
            collected.skip(match.string)
            return
        run = collected.at(step) if training else run
    elif training or step is None:
        axis = "points"
        step = None
        run.note("the log counts nothing: its lines were numbered from 1")
    for name, value in values.items():
        run.add(name, axis, step, value)
    if described.averaging and "training_loss" in run.columns:
        run.columns["training_loss"].averaging = described.averaging
