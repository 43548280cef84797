"""What tests of line readers share: a log from text, its records, and which readers claim it."""

from fp8migrate.errors import UsageError
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from fp8migrate.records.readers import READERS, read_log, reader_of
from fp8migrate.records.readers.base import Options
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


def everything(text: str, options: Options | None = None) -> tuple[object, ...]:
    """All that is read of a log, or why it is refused, in a form that can be compared: NaN equals NaN, each bit counts."""
    try:
        return tuple(_plain(record) for record in read_log(source(text), options))
    except UsageError as error:
        return (str(error),)


def _plain(record: LogRecord) -> tuple[object, ...]:
    series = [
        (
            name,
            one.label,
            one.unit,
            one.axis,
            one.steps.tobytes(),
            one.values.tobytes(),
            one.digits,
            one.averaging,
            one.overlaps,
        )
        for name, one in record.series.items()
    ]
    disorder = [(one.repeated, one.disordered) for one in record.series.values()]
    counts = (record.lines, record.not_understood, record.example)
    settings = dict(record.settings)
    return (record.name, series, disorder, record.expected_last_step, settings, record.notes, record.unused, counts)
