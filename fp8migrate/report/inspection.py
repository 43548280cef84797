"""`fp8migrate inspect`: what was understood of a log, for people."""

from collections.abc import Iterator, Sequence

from fp8migrate.checks.words import some
from fp8migrate.records.logs import LogRecord, LogSeries
from fp8migrate.report.words import clean, number, plural

_WORDS = {"memory_bytes": "memory", "step_seconds": "time of a step"}


def describe_log(records: Sequence[LogRecord]) -> Iterator[str]:
    """Lines on every run of one log: its series, where it ends, what was not used and not understood."""
    first = records[0]
    lines = f", {number(first.lines)} lines" if first.lines else ""
    yield f"{safe_line(first.source)}: {first.format}, {plural(len(records), 'run')}{lines}"
    for record in records:
        yield from (f"  {line}" for line in _run(record, named=len(records) > 1))
    if first.not_understood:
        yield f"  not understood: {plural(first.not_understood, 'line')}, the first: {safe_line(first.example)}"


def describe_passed_over(names: Sequence[str]) -> str:
    """What of a folder was not read, so that nobody takes it for read."""
    return safe_line(f"passed over, in no format that is known: {some(names)}")


def _run(record: LogRecord, *, named: bool) -> Iterator[str]:
    indent = ""
    if named:
        yield safe_line(record.name)
        indent = "  "
    others = [series for series in record.series.values() if series not in record.losses]
    for series in (*record.losses, *others):
        yield f"{indent}{_series(series)}"
    if not record.losses:
        yield f"{indent}no loss"
    elif (end := record.expected_last_step) is not None:
        last = max(float(series.steps[-1]) for series in record.losses)
        reached = "reached" if last >= end else f"cut short at {number(last)}"
        yield f"{indent}to end at step {number(end)}: {reached}"
    if record.failure:
        yield f"{indent}failed: {safe_line(record.failure)}"
    if record.crash:
        yield f"{indent}ends with an error: {safe_line(record.crash)}"
    for note in record.notes:
        yield f"{indent}note: {safe_line(note)}"
    if record.settings:
        yield f"{indent}{plural(len(record.settings), 'setting')} from {safe_line(', '.join(record.settings_from))}"
    if record.unused:
        shown = ", ".join(safe_line(label) for label in record.unused[:8])
        more = f" and {len(record.unused) - 8} more" if len(record.unused) > 8 else ""
        yield f"{indent}not used: {shown}{more}"


def _series(series: LogSeries) -> str:
    name = _WORDS.get(series.name, series.name.replace("_", " "))
    parts = [f"{_points(series.steps.size)}, {series.axis} {number(series.steps[0])} to {number(series.steps[-1])}"]
    if series.interval:
        parts.append(f"every {number(series.interval)}")
    parts.append("full precision" if series.digits is None else plural(series.digits, "digit"))
    parts.append(f"last {number(float(series.values[-1]), 7)} {series.unit}".rstrip())
    if series.averaging:
        parts.append(series.averaging)
    if series.gaps:
        parts.append(f"{plural(series.gaps, 'point')} missing in between")
    if series.repeated:
        parts.append(f"{plural(series.repeated, 'point')} twice, the later counts")
    if series.disordered:
        parts.append("steps out of order, sorted")
    for overlap in series.overlaps[:3]:
        parts.append(f"resumed at {number(overlap.first)}: {plural(overlap.points, 'point')} logged again, the later count")
    return f"{name} (`{safe_line(series.label)}`): {', '.join(parts)}"


def _points(count: int) -> str:
    return f"{number(count)} {'point' if count == 1 else 'points'}"


def safe_line(text: str, most: int = 200) -> str:
    """One line, without what a terminal would obey."""
    return clean(text).replace("\n", "⏎").replace("\t", " ")[:most]
