"""NeMo 2's standard output: what its progress printer writes, one line a log interval."""

import re
from dataclasses import dataclass

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import barred_fields, mean_over_interval, put_changed
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_LINE = re.compile(rb"Training epoch (\d{1,9}), iteration (\d{1,15})/(\d{1,15})([^\n]*)")
_MAX_DIGITS = 15
_LOSS = "reduced_train_loss"
_VALIDATION = "val_loss"


@dataclass
class _Place:
    """Where the log is. before: steps of the epochs before this one, for logs without `global_step`. validation: the value
    that stands on every line."""

    run: RawRun | None = None
    epoch: int = 0
    step: float = -1.0
    before: float = 0.0
    validation: bytes = b""


def matches(source: Source) -> bool:
    return _LINE.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected, place = Collector(), _Place()
    for chunk in source.chunks():
        for match in _LINE.finditer(chunk):
            _line(match, collected, place)
    for run in collected.runs:
        if run.first_step == 0:
            run.note("steps are counted from 0")
    mean_over_interval(collected, _LOSS)
    return collected


def _line(match: re.Match[bytes], collected: Collector, place: _Place) -> None:
    fields = dict(barred_fields(match[4]))
    values: list[tuple[str, Token]] = []
    for name, value in fields.items():
        label = name.decode("latin-1")
        if not label.startswith("val") and meaning(label):
            values.append((label, value))
    if not values:
        collected.skip(match[0])
        return
    step = _step(match, fields.get(b"global_step", b""), place)
    run = collected.put(step, values)
    if run is not place.run:
        place.run, place.validation = run, b""
    _expect(run, match, step)
    if value := fields.get(_VALIDATION.encode(), b""):
        put_changed(run, _VALIDATION, step, value, place.validation)
        place.validation = value


def _step(match: re.Match[bytes], global_step: bytes, place: _Place) -> float:
    """The global step; without one the iteration, which may start again with each epoch."""
    epoch, iteration = int(match[1]), float(match[2])
    if global_step.isdigit() and len(global_step) <= _MAX_DIGITS:
        return float(global_step)
    if epoch < place.epoch or epoch == 0:
        place.before = 0.0
    elif epoch > place.epoch and iteration + place.before <= place.step:
        place.before = place.step + 1
    place.epoch, place.step = epoch, iteration + place.before
    return place.step


def _expect(run: RawRun, match: re.Match[bytes], step: float) -> None:
    """The last iteration is the run's last step in a run of one epoch. Of more epochs the log does not tell the end."""
    iteration, last = float(match[2]), float(match[3])
    run.expected_last_step = last + step - iteration if match[1] == b"0" else None


READER = Reader("nemo", "NeMo 2's standard output", matches, read)
