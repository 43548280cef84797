"""LitGPT's standard output. An iteration is one microbatch; a step, which counts here, can take several."""

import re
from dataclasses import dataclass

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import put_changed, without_colours
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_TRAIN = rb"Epoch \d+ \| iter +(?P<iter>\d{1,15}) +step +(?P<step>\d{1,15}) *\|(?P<rest>[^\n]*)"
_VALIDATION = rb"(?m:^)iter \d+: val loss (?P<validation>[^\s,]+)"
_FINAL = rb"Final evaluation \| val loss: *(?P<final>[^\s|]+)"
_LINE = re.compile(_TRAIN + rb"|" + _VALIDATION + rb"|" + _FINAL)
_HEAD = re.compile(rb"Epoch \d+ \| iter +\d+ +step +\d+ *\| *loss train: ")
_LOSS = re.compile(rb" *loss train: *([^\s,|]+)")
_STALE = re.compile(rb", *val: *([^\s,|]+)")
_TIME = re.compile(rb"\| *iter time: *(\d+(?:\.\d+)?) (ms|s)\b")


@dataclass
class _Place:
    """Where the log is. step: of the last line. announced: whether validations have lines of their own."""

    run: RawRun | None = None
    step: float | None = None
    validation: bytes = b""
    announced: bool = False
    between: int = 0


def matches(source: Source) -> bool:
    return _HEAD.search(without_colours(source.head)) is not None


def read(source: Source, options: Options) -> Collector:
    collected, place = Collector(), _Place()
    for chunk in source.chunks():
        for match in _LINE.finditer(without_colours(chunk)):
            if match["step"]:
                _line(match, collected, place)
            else:
                _validation(match["validation"] or match["final"], match["final"] is not None, collected, place)
    if place.between:
        text = f"{place.between} lines of iterations that end no step are left out: x counts steps, not iterations"
        collected.notes.append(text)
    return collected


def _line(match: re.Match[bytes], collected: Collector, place: _Place) -> None:
    """One iteration. The first line with a step's number is the one that ended it; later ones are on the way to the next."""
    loss = _LOSS.match(match["rest"])
    if loss is None:
        collected.skip(match[0])
        return
    step = float(match["step"])
    if step == 0 or step == place.step:
        place.step = step
        place.between += 1
        return
    place.step = step
    values: list[tuple[str, Token]] = [("train loss", loss[1])]
    if match["iter"] == match["step"] and (time := _TIME.search(match["rest"])):
        values.append((f"iter_time_{time[2].decode()}", time[1]))
    run = collected.put(step, values)
    if run is not place.run:
        place.run, place.validation = run, b""
    stale = _STALE.search(match["rest"])
    if stale and stale[1] != b"n/a" and not place.announced:
        put_changed(run, "val loss", step, stale[1], place.validation)
        place.validation = stale[1]


def _validation(value: bytes, final: bool, collected: Collector, place: _Place) -> None:
    """`iter 100: val loss 3.1234, …` names an iteration: it belongs to the step before. One at the end can repeat the last."""
    if place.step is None:
        return
    place.announced = True
    column = (place.run or collected.run).column("val loss")
    if not (final and column.steps and column.steps[-1] == place.step):
        column.steps.append(place.step)
        column.values.append(value)


READER = Reader("litgpt", "LitGPT's standard output", matches, read)
