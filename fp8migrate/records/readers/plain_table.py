"""Rows of a CSV chunk without quotes, column by column: what `tabular.add_rows` makes of the same rows, many at once."""

from dataclasses import dataclass

import numpy as np

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
        parts = _parts(names, steps)
        if len(parts) > _FEW + rows.size // _SHARE:
            return False
        for part in parts:
            run = collected.at(float(steps[part[0]]), names[part[0]])
            self._part(lines, rows[part], steps[part], run)
        for row in np.flatnonzero(filled & ~whole).tolist():
            collected.skip(self.delimiter.join(self._fields(lines, row)[:8]))
        return True

    def _places(self, lines: MarkedLines, rows: Places, column: int) -> tuple[Places, Places]:
        """Where a column's fields begin and end."""
        ends = lines.first[rows] + column
        return (lines.marks[ends - 1] + 1 if column else lines.starts[rows]), lines.marks[ends]

    def _fields(self, lines: MarkedLines, row: int) -> list[str]:
        return _text(lines.text.content[lines.starts[row] : lines.ends[row]]).split(self.delimiter)

    def _runs(self, lines: MarkedLines, rows: Places) -> list[str]:
        """The name of each row's run, "" where the table names none."""
        if self.runs is None:
            return [""] * rows.size
        return [_text(name)[:MAX_NAME] for name in lines.text.between(*self._places(lines, rows, self.runs))]

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


def _parts(names: list[str], steps: Array) -> list[Places]:
    """The rows by run, parted where the steps of a run go back; the parts by their first row."""
    numbers: dict[str, int] = {}
    run = np.array([numbers.setdefault(name, len(numbers)) for name in names])
    if "" in numbers and len(numbers) > 1:
        # A row without a name belongs to the run that began last, so that here the order of the runs matters.
        run = np.cumsum(np.diff(run, prepend=run[0]) != 0)
    order: Places = np.argsort(run, kind="stable")
    cuts = np.flatnonzero((np.diff(steps[order]) < 0) | (np.diff(run[order]) != 0)) + 1
    return sorted(np.split(order, cuts), key=lambda part: int(part[0]))


def _text(field: bytes) -> str:
    return field.decode("utf-8", "replace")
