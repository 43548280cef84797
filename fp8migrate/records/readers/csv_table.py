"""CSV with any columns, which covers nanochat's and Lightning's; and the charts that W&B exports."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.logs import Axis
from fp8migrate.records.quantities import axis_of, meaning, plain
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.plain_table import PlainTable
from fp8migrate.records.readers.tabular import MAX_COLUMNS, add_rows
from fp8migrate.records.source import HEAD_BYTES, Source
from fp8migrate.records.tokens import is_number

_BATCH = 20_000
_DELIMITERS = ",\t;"
_MAX_NAME = 200
# W&B's name of a column: the run's name and the metric's. Beside it stand the least and greatest value of each bin.
_BETWEEN = " - "
_BOUNDS = ("__MIN", "__MAX")
_GROUP = "Group: "
_NANOCHAT = {"dt_ms", "tok_sec", "bf16_mfu"}


def matches(source: Source) -> bool:
    """A line of names, and below it one of as many fields, some of them numbers."""
    return _delimiter(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    delimiter = _delimiter(source.head) or _by_header(source)
    collected = Collector()
    lines = _Lines(source, collected)
    rows = _rows(lines, delimiter, collected)
    header = next(rows, [])
    if len(header) > MAX_COLUMNS:
        collected.notes.append(f"{len(header)} columns, of which the first {MAX_COLUMNS} were read")
    labels = [label.strip() for label in header[:MAX_COLUMNS]]
    if _is_wandb(labels):
        _read_wandb(rows, labels, options, collected)
    else:
        _refuse_table_of_runs(source, labels, options)
        _read_table(lines, header, delimiter, options, collected)
    return collected


class _Lines:
    """The lines of a source whose quotes are closed; what was not read of a chunk can be taken as a whole. read: so many.

    A line that was cut inside a quote would else take all lines up to the next quote.
    """

    def __init__(self, source: Source, collected: Collector) -> None:
        self._chunks = source.chunks()
        self._chunk = b""
        self._start = 0
        self._collected = collected
        self.read = 0

    def __iter__(self) -> Iterator[str]:
        while chunk := self.take():
            self.put_back(chunk)
            yield from self.of_chunk()

    def of_chunk(self) -> Iterator[str]:
        """The lines that are left of the chunk."""
        while (end := self._chunk.find(b"\n", self._start)) >= 0:
            line, self._start = self._chunk[self._start : end], end + 1
            if line.count(b'"') % 2:
                self._collected.skip(line)
            else:
                self.read += 1
                yield line.decode("utf-8", "replace") + "\n"

    def take(self) -> bytes:
        """The rest of the chunk, or the next one; empty at the end."""
        chunk = self._chunk[self._start :]
        while not chunk and (following := next(self._chunks, None)) is not None:
            chunk = following
        self._chunk, self._start = b"", 0
        return chunk

    def put_back(self, chunk: bytes) -> None:
        self._chunk, self._start = chunk, 0


def _delimiter(head: bytes) -> str | None:
    """What parts the fields, None where this is no table."""
    lines = [line for line in _head_lines(head) if line.strip()][:2]
    if len(lines) < 2:
        return None
    return next((delimiter for delimiter in _DELIMITERS if _agree(lines[0], lines[1], delimiter)), None)


def _head_lines(head: bytes) -> list[str]:
    """Whole lines of the head, and the last one of a short file."""
    lines = head.decode("utf-8-sig", "replace").splitlines()
    return lines[:-1] if len(head) >= HEAD_BYTES else lines


def _agree(header: str, line: str, delimiter: str) -> bool:
    """Whether the first line names the fields of the second."""
    try:
        names, values = next(csv.reader([header], delimiter=delimiter)), next(csv.reader([line], delimiter=delimiter))
    except (csv.Error, StopIteration):
        return False
    if len(names) != len(values) or any(is_number(name) for name in names):
        return False
    if not any(is_number(value) for value in values):
        return False
    return len(names) > 1 or meaning(names[0]) is not None


def _by_header(source: Source) -> str:
    """The delimiter of a file that was said to be CSV and does not look like it."""
    lines = _head_lines(source.head)
    if not lines:
        raise UsageError(f"its first line is longer than {HEAD_BYTES >> 10} KiB: no log has so many columns", where=source.name)
    return max(_DELIMITERS, key=lines[0].count)


def _rows(
    lines: Iterable[str], delimiter: str, collected: Collector, header: Sequence[str] = (), before: int = 0
) -> Iterator[list[str]]:
    """Rows with as many fields as the first, which names them. Others were cut, and are counted.

    header: the first row, if it was read. before: lines that were read.
    """
    reader = csv.reader(lines, delimiter=delimiter)
    header = list(header)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:
            collected.skip(f"line {before + reader.line_num}")
            continue
        if row is None:
            return
        if not header and any(row):
            row[0] = row[0].removeprefix("\ufeff").strip().strip('"')
            header = row
            yield row
        elif len(row) == len(header) and row != header:
            yield row
        elif row and row != header:
            collected.skip(delimiter.join(row[:8]))


def _read_table(lines: _Lines, header: list[str], delimiter: str, options: Options, collected: Collector) -> None:
    labels = [label.strip() for label in header[:MAX_COLUMNS]]
    names = _distinct(labels, collected)
    table = PlainTable.of(header, names, delimiter, options)
    while chunk := lines.take():
        quoted = b'"' in chunk
        if table is not None and not quoted and table.add(chunk, collected):
            lines.read += chunk.count(b"\n")
            continue
        lines.put_back(chunk)
        # Fields in quotes may go on in the next chunk, so that from the first quote on all rows are read one by one.
        rows = _rows(lines if quoted else lines.of_chunk(), delimiter, collected, header, lines.read)
        while batch := list(islice(rows, _BATCH)):
            add_rows(collected, [dict(zip(names, row, strict=False)) for row in batch], options)
    for run in collected.runs:
        run.unused.pop("", None)
        for label, column in run.columns.items():
            if plain(label).endswith("_epoch"):
                column.averaging = "mean over an epoch"
            elif label == "loss" and set(labels) >= _NANOCHAT:
                column.averaging = "debiased moving average"


def _distinct(labels: list[str], collected: Collector) -> list[str]:
    """Names without repeats: of two columns of one name the first counts."""
    found: dict[str, None] = {}
    for label in labels:
        name = label if label not in found else f"{label} (column {len(found) + 1})"
        if name != label and label:
            collected.notes.append(f"two columns are named {label[:_MAX_NAME]}: the first was read")
        found[name] = None
    return list(found)


def _refuse_table_of_runs(source: Source, labels: list[str], options: Options) -> None:
    """W&B's table of runs has one row a run, with its last values: nothing that could be compared as a curve."""
    lowered = {label.lower() for label in labels}
    if not {"name", "state"} <= lowered or axis_of(labels) or "step" in options.columns:
        return
    what = "is a table of runs: it has one row a run, with last values and no curve"
    raise UsageError(what, where=source.name, next_step="In W&B open the loss chart, and choose Export CSV from its menu.")


def _is_wandb(labels: list[str]) -> bool:
    parts = [label.rpartition(_BETWEEN) for label in labels[1:]]
    return any(run and (metric.endswith(_BOUNDS) or meaning(metric)) for run, _, metric in parts)


def _read_wandb(rows: Iterator[list[str]], labels: list[str], options: Options, collected: Collector) -> None:
    """One column a run and metric: each becomes a column of its run."""
    named = {label: quantity for quantity, label in options.columns.items() if quantity != "step"}
    counter = options.columns.get("step") or (axis_of(labels) or (None,))[0]
    at = labels.index(counter) if counter in labels else None
    axis: Axis = "points" if at is None else (axis_of([labels[at]]) or ("", "steps"))[1]
    if at is None:
        collected.notes.append(f"no column counts steps ({labels[0][:_MAX_NAME]} does not): rows were numbered from 1")
    columns = []
    for index, name, metric in _wandb_columns(labels, collected):
        run = collected.named(name)
        if metric not in named and meaning(metric) is None:
            run.unused[metric] = None
            continue
        if name.startswith(_GROUP):
            run.note("a mean over the runs of a group")
        columns.append((index, run.column(named.get(metric, metric), axis)))
    for number, row in enumerate(rows, 1):
        step = _step(row[at]) if at is not None else float(number)
        if step is None:
            collected.skip(",".join(row[:8]))
            continue
        for index, column in columns:
            if row[index]:
                column.steps.append(step)
                column.values.append(row[index])


def _wandb_columns(labels: list[str], collected: Collector) -> Iterator[tuple[int, str, str]]:
    """Of each column that holds values its place, the run and the metric. Runs of the same name are told apart by number."""
    seen: dict[str, int] = {}
    for index, label in enumerate(labels):
        name, between, metric = label.rpartition(_BETWEEN)
        if not between or metric.endswith(_BOUNDS):
            continue
        seen[label] = seen.get(label, 0) + 1
        name = name[:_MAX_NAME]
        if seen[label] > 1:
            name = f"{name} ({seen[label]})"
            collected.named(name).note("the file has several runs of this name")
        yield index, name, metric


def _step(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


READER = Reader("csv", "a table, CSV", matches, read, takes_columns=True)
