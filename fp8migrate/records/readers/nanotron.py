"""nanotron's standard output, whose numbers have three digits and a suffix: `lm_loss: 2.04 | tokens_per_sec: 182K`."""

import re

from fp8migrate.records.collect import Collector
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import barred_fields, without_colours
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_LINE = re.compile(rb"iteration: (\d{1,15}) / (\d{1,15})([^\n]*)")
_HEAD = re.compile(rb"iteration: \d+ / \d+ \| [a-z_]+: ")
_NAMES = {b"time_per_iteration_ms": "elapsed_time_per_iteration_ms", b"cuda_max_memory_reserved": "peak_memory_bytes"}
_POWERS = {b"K": b"e3", b"M": b"e6", b"B": b"e9", b"T": b"e12", b"P": b"e15", b"E": b"e18"}


def matches(source: Source) -> bool:
    return _HEAD.search(without_colours(source.head)) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        for match in _LINE.finditer(without_colours(chunk)):
            values: list[tuple[str, Token]] = []
            for name, value in barred_fields(match[3]):
                label = _NAMES.get(name) or name.decode("latin-1")
                if value and meaning(label):
                    values.append((label, _unsuffixed(value)))
            if values:
                collected.put(float(match[1]), values).expected_last_step = float(match[2])
            else:
                collected.skip(match[0])
    return collected


def _unsuffixed(value: bytes) -> bytes:
    """`8.79K` as `8.79e3`, which keeps its three digits. An infinite value is written `infE`."""
    power = _POWERS.get(value[-1:])
    if power is None:
        return value
    number = value[:-1]
    return number if number.lstrip(b"+-") == b"inf" else number + power


READER = Reader("nanotron", "nanotron's standard output", matches, read)
