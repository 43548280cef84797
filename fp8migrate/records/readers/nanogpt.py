"""nanoGPT's output and modded-nanogpt's log files, which begin with the program's source."""

import re

import numpy as np

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import MAX_FIELDS, without_colours
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

# Digits follow at once, so that the print statements in the program's source are no lines of the log.
_MODDED = rb"step:(?P<modded>\d{1,15})/(?P<total>\d{1,15})"
_PLAIN = rb"(?:iter|step) (?P<plain>\d{1,15}):(?= (?:train |val )?loss)"
_LINE = re.compile(rb"(?m)^(?:\S{1,40}: ?)?(?:" + _MODDED + rb"|" + _PLAIN + rb")(?P<rest>[^\n]*)")
_HEAD = re.compile(
    rb"(?m)^(?:\S{1,40}: ?)?(?:step:\d+/\d+ [^\n]{0,200}?(?:val_loss|train_loss|train_time):"
    rb"|iter \d+: loss \S+, time |step \d+: train loss \S+, val loss )"
)
# The source can be longer than the part of a log by which it is recognised.
_PROGRAM = b"# read the code of this file ASAP"
_TIMER = "train_time"
_STEP_MS = "step_ms"
# What nanoGPT estimates on its training split at each evaluation; the loss of the steps themselves counts before it.
_NAMES = {b"loss": "loss", b"train loss": "train split loss", b"val loss": "val loss", b"time": _STEP_MS}
_MILLISECONDS = {b"ms": 1.0, b"s": 1000.0}
_TIME = re.compile(rb"(\d{1,15}(?:\.\d{1,15})?)(ms|s)")


def matches(source: Source) -> bool:
    return _HEAD.search(without_colours(source.head)) is not None or _PROGRAM in source.head


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        if _in_bulk(chunk, collected):
            continue
        for match in _LINE.finditer(without_colours(chunk)):
            _line(match, collected)
    for run in collected.runs:
        _step_times(run)
    return collected


# modded-nanogpt's own two lines, which are nearly all of its logs.
_USUAL = re.compile(rb"(?m)^step:(\d{1,15})/(\d{1,15}) (?:val_loss:(\d\S{0,40}) )?train_time:(\d{1,15})ms step_avg:\S{1,40}$")


def _in_bulk(chunk: bytes, collected: Collector) -> bool:
    """Take a chunk of usual lines at once; False, with nothing taken, where it has others or its steps go back."""
    rows = _USUAL.findall(chunk)
    if (
        not rows
        or len(rows) != chunk.count(b"\nstep:") + chunk.startswith(b"step:")
        or b"\niter " in chunk
        or b": step:" in chunk
    ):
        return False
    steps = np.array([row[0] for row in rows]).astype(np.float64)
    last = collected.run.last_step
    if (np.diff(steps) < 0).any() or (last is not None and steps[0] < last) or len({row[1] for row in rows}) > 1:
        return False
    run = collected.at(float(steps[0]))
    run.last_step, run.expected_last_step = float(steps[-1]), float(rows[0][1])
    validated = np.array([bool(row[2]) for row in rows])
    columns = (
        (_TIMER, steps, [float(row[3]) for row in rows]),
        ("val_loss", steps[validated], [row[2] for row in rows if row[2]]),
    )
    for label, at, values in columns:
        if at.size:
            run.column(label).settle()
            run.column(label).add_block(at, values)
    return True


def _line(match: re.Match[bytes], collected: Collector) -> None:
    modded = match["modded"]
    values = _modded_values(match["rest"]) if modded else _plain_values(match["rest"])
    if not values:
        collected.skip(match[0])
        return
    run = collected.put(float(modded or match["plain"]), values)
    if modded:
        run.expected_last_step = float(match["total"])


def _modded_values(rest: bytes) -> list[tuple[str, Token]]:
    """`val_loss:4.4972 train_time:7828ms step_avg:31.31ms`. The mean of all steps so far is no value of a step."""
    found: list[tuple[str, Token]] = []
    for word in rest.split(None, MAX_FIELDS)[:MAX_FIELDS]:
        name, _, value = word.partition(b":")
        label = name.decode("latin-1")
        if label == _TIMER:
            if (spent := _milliseconds(value)) is not None:
                found.append((_TIMER, spent))
        elif value and meaning(label):
            found.append((label, value))
    return found


def _plain_values(rest: bytes) -> list[tuple[str, Token]]:
    """` loss 5.4668, time 12.3ms, mfu 1%`."""
    found: list[tuple[str, Token]] = []
    for part in rest.split(b",")[:MAX_FIELDS]:
        name, _, value = part.strip().rpartition(b" ")
        text = name.decode("latin-1")
        label = _NAMES.get(name) or (text if meaning(text) else None)
        if label == _STEP_MS:
            if value.endswith(b"ms"):
                found.append((label, value[:-2]))
        elif label and value:
            found.append((label, value))
    return found


def _milliseconds(value: bytes) -> float | None:
    match = _TIME.fullmatch(value)
    return float(match[1]) * _MILLISECONDS[match[2]] if match else None


def _step_times(run: RawRun) -> None:
    """Times of single steps from the timer that counts on. Where it started again a step has none.

    A validation line stands at the step of the line before it and has waited for the GPU: its time is the step's.
    """
    timer = run.columns.pop(_TIMER, None)
    if timer is None:
        return
    steps, spent, _ = timer.numbers()
    last = np.append(np.diff(steps) != 0, True)[: steps.size]
    steps, spent = steps[last], spent[last]
    ahead, taken = np.diff(steps), np.diff(spent)
    usable = (ahead > 0) & (taken >= 0)
    if not usable.any():
        return
    column = run.column(_STEP_MS)
    column.steps += steps[1:][usable].tolist()
    column.values += (taken[usable] / ahead[usable]).tolist()
    run.note("step times are the differences of train_time between lines")
    interval = float(np.median(ahead[usable]))
    if interval > 1:
        column.averaging = f"mean over {interval:g} steps"


READER = Reader("nanogpt", "nanoGPT's output or a log file of modded-nanogpt", matches, read)
