"""torchtitan's golden losses: a step and a loss with all digits on each line."""

import re

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source

_LINE = re.compile(rb"(\d{1,9}) ([+-]?\d+\.\d+(?:[eE][+-]?\d+)?|[+-]?nan|[+-]?inf)\s*")


def matches(source: Source) -> bool:
    """Every line is a step and a number with a point, and nothing else. The last one may break off."""
    lines = source.head.split(b"\n")
    found = [_LINE.fullmatch(line[:100]) for line in lines if line.strip()]
    return bool(found) and all(found[: max(1, len(found) - 1)])


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for line in source.lines():
        if match := _LINE.fullmatch(line[:100]):
            collected.put(float(match[1]), [("loss", match[2])])
        elif line.strip():
            collected.skip(line)
    return collected


READER = Reader("torchtitan-golden", "torchtitan's golden losses", matches, read)
