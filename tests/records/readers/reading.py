"""What tests of line readers share: a log from text, its records, and which readers claim it."""

from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from fp8migrate.records.readers import READERS, read_log, reader_of
from fp8migrate.records.source import Source


def source(text: str) -> Source:
    return Source("log", None, text.encode())


def records(text: str) -> tuple[LogRecord, ...]:
    return read_log(source(text))


def points(record: LogRecord, name: Quantity) -> dict[float, float]:
    one: LogSeries = record.series[name]
    return dict(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def claimed_by(text: str) -> tuple[str, list[str]]:
    """The reader that is picked, and all that would take the log."""
    return reader_of(source(text)).name, [reader.name for reader in READERS if reader.matches(source(text))]
