"""JSON lines with any column names: one object a step."""

import json
from collections.abc import Sequence
from typing import Any

import orjson

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.tabular import add_rows
from fp8migrate.records.source import Source

_BATCH = 20_000


def matches(source: Source) -> bool:
    for line in source.head.splitlines()[:20]:
        if line.strip():
            return line.lstrip().startswith(b"{") and isinstance(_row(line), dict)
    return False


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        lines = chunk.split(b"\n")
        for start in range(0, len(lines), _BATCH):
            whole = [line for line in lines[start : start + _BATCH] if line.strip()]
            add_rows(collected, _rows(whole, collected), options)
    return collected


def _rows(lines: Sequence[bytes], collected: Collector) -> list[dict[str, Any]]:
    """The objects of many lines: parsed at once where all are whole, else line by line."""
    try:
        found: list[dict[str, Any]] = orjson.loads(b"[" + b",".join(lines) + b"]")
        if len(found) == len(lines) and set(map(type, found)) <= {dict}:
            return found
    except orjson.JSONDecodeError:
        pass
    rows = []
    for line in lines:
        row = _row(line)
        if isinstance(row, dict):
            rows.append(row)
        else:
            collected.skip(line)
    return rows


def _row(line: bytes) -> Any:
    """One line, or None. orjson refuses the NaN and Infinity that Python's own json writes."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


READER = Reader("jsonl", "JSON lines", matches, read, takes_columns=True)
