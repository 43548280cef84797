"""What readers of lines of text share: colours, `name: value` fields, means over an interval, values that stay."""

import re
from collections.abc import Iterator

import numpy as np

from fp8migrate.records.collect import Collector, RawRun

MAX_FIELDS = 64
# Where a log was copied from a web page its escape characters may be gone.
_ANSI = re.compile(rb"\x1b\[[0-9;:]*[A-Za-z]|\[\d{1,3}(?:;\d{1,3}){0,5}m")
_SIGNS = (b"\x1b[", b"[0m", b"[3", b"[9")


def without_colours(text: bytes) -> bytes:
    """Text without the escape sequences that terminals take for colours, 24-bit ones too."""
    return _ANSI.sub(b"", text) if any(sign in text for sign in _SIGNS) else text


def barred_fields(rest: bytes) -> Iterator[tuple[bytes, bytes]]:
    """`name: value | name: value`, stripped."""
    for part in rest.split(b"|")[:MAX_FIELDS]:
        name, colon, value = part.partition(b":")
        if colon:
            yield name.strip(), value.strip()


def mean_over_interval(collected: Collector, label: str) -> None:
    """Says of a column that each value is a mean since the one before, as far as points lie more than a step apart."""
    for run in collected.runs:
        if column := run.columns.get(label):
            steps, _, _ = column.numbers()
            if steps.size > 1 and (interval := float(np.median(np.diff(steps)))) > 1:
                column.averaging = f"mean over {interval:g} steps"


def put_changed(run: RawRun, label: str, step: float, value: bytes, last: bytes) -> None:
    """A point of a value that a program prints on every line until it has the next: kept only where it changed."""
    if value != last:
        run.add(label, "steps", step, value)
        run.note(f"{label} stands on every line until the next validation: a point is taken where it changes")
