"""nanochat's standard output. Its loss is a moving average of the training loss, corrected for starting at 0."""

import re

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import barred_fields, without_colours
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

AVERAGING = "debiased moving average"
_TRAIN = rb"step (?P<step>\d{1,15})(?:/(?P<total>\d{1,15}))? \(\d+(?:\.\d+)?%\) *\|(?P<rest>[^\n]*)"
_VALIDATION = rb"Step (?P<at>\d{1,15}) \| Validation bpb: *(?P<bpb>[^\s|]*)"
_LINE = re.compile(_TRAIN + rb"|" + _VALIDATION)
_HEAD = re.compile(rb"step \d+(?:/\d+)? \(\d+(?:\.\d+)?%\) *\| loss: |" + _VALIDATION.replace(b"<at>", b"<a>"))
_LABELS = {b"loss": "loss", b"grad norm": "grad_norm", b"grad_norm": "grad_norm", b"tok/sec": "tok/sec", b"dt": "dt_ms"}


def matches(source: Source) -> bool:
    if b"%) " not in source.head and b"Validation bpb" not in source.head and b"%)|" not in source.head:
        return False
    return _HEAD.search(without_colours(source.head)) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        for match in _LINE.finditer(without_colours(chunk)):
            if match["at"]:
                collected.put(float(match["at"]), [("val_bpb", match["bpb"])])
            else:
                _line(match, collected)
    for run in collected.runs:
        if column := run.columns.get("loss"):
            column.averaging = AVERAGING
    return collected


def _line(match: re.Match[bytes], collected: Collector) -> None:
    values: list[tuple[str, Token]] = []
    for name, value in barred_fields(match["rest"]):
        if (label := _LABELS.get(name)) and value:
            values.append((label, value.removesuffix(b"ms")))
    if not values:
        collected.skip(match[0])
        return
    run = collected.put(float(match["step"]), values)
    if match["total"]:
        # Steps count from 0 and the last of the N stands at N - 1.
        run.expected_last_step = float(match["total"]) - 1


READER = Reader("nanochat", "nanochat's standard output", matches, read)
