"""llm.c's `main.log`: `s:1 trl:10.9000 lr:0.000001 norm:15.00`, `s:250 tel:6.1234`, `s:250 eval:0.2500`."""

import re

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import MAX_FIELDS
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_HEAD = re.compile(rb"(?m)^s:\d+ (?:trl|tel):[-+\d.nai]+")
_LINE = re.compile(rb"(?m)^s:(\d*)([^\n]*)")
_LABELS = {b"trl": "train loss", b"tel": "val loss", b"lr": "lr", b"norm": "grad norm"}


def matches(source: Source) -> bool:
    return _HEAD.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        for match in _LINE.finditer(chunk):
            values, known = _values(match[2])
            if match[1] and values:
                collected.put(float(match[1]), values)
            elif not (match[1] and known):
                collected.skip(match[0])
    return collected


def _values(rest: bytes) -> tuple[list[tuple[str, Token]], bool]:
    """The values of a line, and whether it is one of llm.c's. `eval` is the accuracy on HellaSwag: nothing to compare."""
    found: list[tuple[str, Token]] = []
    known = False
    for word in rest.split(None, MAX_FIELDS)[:MAX_FIELDS]:
        name, _, value = word.partition(b":")
        known |= name == b"eval"
        if (label := _LABELS.get(name)) and value:
            found.append((label, value))
    return found, known


READER = Reader("llm.c", "the main.log of llm.c", matches, read)
