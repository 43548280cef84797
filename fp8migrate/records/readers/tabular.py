"""Rows with named columns, whatever file they came from: which column counts, which tells runs apart, what each holds."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.logs import Axis
from fp8migrate.records.quantities import axis_of, meaning
from fp8migrate.records.readers.base import Options

MAX_COLUMNS = 2000
_MAX_DEPTH = 3
MAX_NAME = 200
_AXIS_LABELS = frozenset({"step", "global_step", "iteration", "epoch", "run", "run_id", "run_name", "_step"})
_RUN_COLUMNS = ("run", "run_id", "run_name")

Row = Mapping[str, Any]


def add_rows(collected: Collector, rows: Sequence[Row], options: Options) -> None:
    """Rows in the order of the log. A row without the column that counts is not understood, unless no row has one."""
    if rows and not _add_alike(collected, rows, options):
        for row in rows:
            nested = any(isinstance(value, dict) for value in row.values())
            _add_row(collected, _flat(row) if nested else row, options)


def _add_alike(collected: Collector, rows: Sequence[Row], options: Options) -> bool:
    """Many rows of one run with the same columns and rising steps, column by column; False where they are not."""
    labels = list(rows[0])
    counts = counting_column(labels, options)
    if counts is None or len(labels) > MAX_COLUMNS or run_column(labels, options):
        return False
    if set(map(len, rows)) != {len(labels)}:
        return False
    try:
        steps = np.array(list(map(itemgetter(counts[0]), rows)), dtype=np.float64)
        wanted = [(name, list(map(itemgetter(label), rows))) for label, name in wanted_columns(labels, options)]
    except (KeyError, TypeError, ValueError, OverflowError):
        return False
    if not collected.continues(steps):
        return False
    if not all(_alike(values) for _, values in wanted):
        return False
    run = collected.bulk(steps, wanted, counts[1])
    note_unused(run, labels, options)
    return True


def _alike(values: list[Any]) -> bool:
    """Whether a column is all numbers or all text without a gap; anything else is looked at value by value."""
    kinds = set(map(type, values))
    return kinds <= {float, int} or (kinds == {str} and "" not in values)


def _add_row(collected: Collector, row: Row, options: Options) -> None:
    labels = list(row)[:MAX_COLUMNS]
    values = [
        (name, row[label]) for label, name in wanted_columns(labels, options) if type(row[label]) in (str, bytes, float, int)
    ]
    run_label = run_column(labels, options)
    name = str(row[run_label])[:MAX_NAME] if run_label else ""
    counts = counting_column(labels, options)
    if counts is None and values and "step" not in options.columns:
        run = collected.named(name) if name else collected.run
        run.note("rows that count nothing were numbered from 1")
        for label, value in values:
            run.add(label, "points", None, value)
        return
    step = _step(row[counts[0]]) if counts else None
    if step is None or counts is None:
        if any(value not in ("", b"") for _, value in values) or not counts:
            collected.skip(str(dict(list(row.items())[:8])))
        return
    note_unused(collected.put(step, values, counts[1], name), labels, options)


def _step(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, str | bytes | float | int) else None
    except (ValueError, OverflowError):
        return None


def counting_column(labels: list[str], options: Options) -> tuple[str, Axis] | None:
    named = options.columns.get("step")
    if named is not None:
        return (named, "steps") if named in labels else None
    return axis_of(labels)


def run_column(labels: Sequence[str], options: Options) -> str | None:
    named = options.columns.get("run")
    if named is not None:
        return named if named in labels else None
    lowered = {label.lower(): label for label in labels}
    return next((lowered[name] for name in _RUN_COLUMNS if name in lowered), None)


def wanted_columns(labels: Sequence[str], options: Options) -> list[tuple[str, str]]:
    """Columns to keep, with the name under which assembly knows them. Named ones take the place of guesses."""
    named = {label: quantity for quantity, label in options.columns.items() if quantity not in ("step", "run")}
    unknown = [quantity for quantity in named.values() if meaning(quantity) is None]
    if unknown:
        raise UsageError(f"no quantity {unknown[0]!r}", where="--columns", next_step="Try training_loss=NAME,step=NAME.")
    taken = {known.quantity for quantity in named.values() if (known := meaning(quantity))}
    found = []
    for label in labels:
        if label in named:
            found.append((label, named[label]))
        elif (known := meaning(label)) is not None and known.quantity not in taken:
            found.append((label, label))
    return found


def note_unused(run: RawRun, labels: Sequence[str], options: Options) -> None:
    used = {*(label for label, _ in wanted_columns(labels, options)), options.columns.get("step"), options.columns.get("run")}
    run.unused.update({label: None for label in labels if label not in used and label.lower() not in _AXIS_LABELS})


def _flat(row: Row, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            flat |= _flat(value, name, depth + 1)
        else:
            flat[name] = value
        if len(flat) > MAX_COLUMNS:
            break
    return flat
