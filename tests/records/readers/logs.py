"""Logs for tests, written where a test says."""

from pathlib import Path

from fp8migrate.records.logs import LogRecord
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.base import Options
from fp8migrate.records.source import Source


def source_of(folder: Path, text: str | bytes, name: str = "run.log") -> Source:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Source(name, path)


def read(folder: Path, text: str | bytes, options: Options | None = None) -> tuple[LogRecord, ...]:
    return read_log(source_of(folder, text), options)
