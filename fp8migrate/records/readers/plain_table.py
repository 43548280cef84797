"""Rows of a CSV chunk without quotes, column by column: what `tabular.add_rows` makes of the same rows, many at once."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fp8migrate.records.collect import MAX_STEP, Collector, RawRun
from fp8migrate.records.logs import Axis
from fp8migrate.records.readers.base import Options
from fp8migrate.records.readers.tabular import (
    MAX_COLUMNS,
    MAX_NAME,
    counting_column,
    note_unused,
    run_column,
    wanted_columns,
)
from fp8migrate.records.spans import MarkedLines, Places, read_decimals, read_points
from fp8migrate.records.tokens import Array, is_number

# Where steps go back or the run changes, rows are parted: so many times a chunk, and for so many rows once more.
_FEW, _SHARE = 8, 64


@dataclass(frozen=True)
class PlainTable:
    """How a table is read. header: its first row; names: of its columns, without repeats. step: the place of the column
    that counts, runs: of the one that tells runs apart. columns: of those that are read the places and labels.
    """

    header: list[str]
    names: list[str]
    delimiter: str
    options: Options
    step: int
    axis: Axis
    columns: list[tuple[int, str]]
    runs: int | None

    @classmethod
    def of(cls, header: list[str], names: list[str], delimiter: str, options: Options) -> "PlainTable | None":
        """None for tables whose rows must be looked at one by one."""
        counts = counting_column(names, options)
        if counts is None or len(names) != min(len(header), MAX_COLUMNS) or is_number(header[names.index(counts[0])]):
            return None
        columns = [(names.index(name), label) for name, label in wanted_columns(names, options)]
        if len({label for _, label in columns}) < len(columns):
            return None
        of_run = run_column(names, options)
        runs = names.index(of_run) if of_run else None
        return cls(header, names, delimiter, options, names.index(counts[0]), counts[1], columns, runs)

    def add(self, chunk: bytes, collected: Collector) -> bool:
        """Take the rows of a chunk without quotes; False, with nothing taken, where they must be looked at one by one."""
        lines = MarkedLines(chunk, ord(self.delimiter))
        filled = lines.ends > lines.starts
        whole = filled & (lines.count == len(self.header) - 1)
        rows: Places = np.flatnonzero(whole)
        steps, known = read_decimals(lines.text, *self._places(lines, rows, self.step))
        # Programs that append to a file write its header again.
        if any(self._fields(lines, row) != self.header for row in rows[~known].tolist()):
            return False
        rows, steps = rows[known], steps[known]
        # A NaN compares as neither.
        if not rows.size or not (steps.min() >= 0 and steps.max() <= MAX_STEP):
            return False
        names = self._runs(lines, rows)
        parted = (np.diff(steps) < 0) | (names[1:] != names[:-1])
        cuts = [0, *(np.flatnonzero(parted) + 1).tolist(), rows.size]
        if len(cuts) > _FEW + rows.size // _SHARE:
            return False
        for first, last in pairwise(cuts):
            run = collected.at(float(steps[first]), names[first])
            self._part(lines, rows[first:last], steps[first:last], run)
        for row in np.flatnonzero(filled & ~whole).tolist():
            collected.skip(self.delimiter.join(self._fields(lines, row)[:8]))
        return True

    def _places(self, lines: MarkedLines, rows: Places, column: int) -> tuple[Places, Places]:
        """Where a column's fields begin and end."""
        ends = lines.first[rows] + column
        return (lines.marks[ends - 1] + 1 if column else lines.starts[rows]), lines.marks[ends]

    def _fields(self, lines: MarkedLines, row: int) -> list[str]:
        return _text(lines.text.content[lines.starts[row] : lines.ends[row]]).split(self.delimiter)

    def _runs(self, lines: MarkedLines, rows: Places) -> NDArray[np.object_]:
        """The name of each row's run, "" where the table names none."""
        found = np.full(rows.size, "", dtype=object)
        if self.runs is not None:
            found[:] = [_text(name)[:MAX_NAME] for name in lines.text.between(*self._places(lines, rows, self.runs))]
        return found

    def _part(self, lines: MarkedLines, rows: Places, steps: Array, run: RawRun) -> None:
        """Rows of one run whose steps do not go back."""
        run.last_step = float(steps[-1])
        found = []
        for order, (column, label) in enumerate(self.columns):
            points = read_points(lines.text, steps, *self._places(lines, rows, column), _text)
            if points.first is not None:
                found.append((points.first, order, label, points))
        # New columns stand in the order in which the rows have values of them.
        for _, _, label, points in sorted(found, key=lambda item: item[:2]):
            run.column(label, self.axis).add_read(points.block, points.missing)
        note_unused(run, self.names, self.options)


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")
