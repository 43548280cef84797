"""MLPerf's training logs: `:::MLLOG` and a JSON object a line."""

from typing import Any

import orjson

from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.logs import Axis
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.document import is_token
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_MARK = b":::MLLOG "
# What stands on x, best first.
_AXES: tuple[tuple[str, Axis], ...] = (("samples_count", "samples"), ("epoch_num", "epochs"), ("step", "steps"))
# Benchmarks of language models report their validation loss, which falls, under the name of an accuracy.
_ACCURACY = "eval_accuracy"
_LOSS_BENCHMARKS = ("llama", "gpt", "mixtral", "deepseek")
_BEGINS = ("cache_clear", "init_start", "submission_benchmark", "run_start")
# More epochs than this are samples or tokens, which some benchmarks log as epoch_num.
_MANY_EPOCHS = 10_000


def matches(source: Source) -> bool:
    return _MARK + b"{" in source.head


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    named = {label: quantity for quantity, label in options.columns.items()}
    for line in source.lines():
        start = line.find(_MARK)
        if start < 0:
            continue
        event = _event(line[start + len(_MARK) :])
        if event is None:
            collected.skip(line)
            continue
        _take(event, named, collected)
    for run in collected.runs:
        if run.columns and "run_stop" not in run.settings:
            run.note("the log has no run_stop: it ends before the run did")
    return collected


def _event(text: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("key"), str) else None


def _take(event: dict[str, Any], named: dict[str, str], collected: Collector) -> None:
    key, value = event["key"], event.get("value")
    metadata = event["metadata"] if isinstance(event.get("metadata"), dict) else {}
    if key in _BEGINS and collected.run.columns:
        collected.new_run()
    run = collected.run
    if key == "run_stop":
        status = str(metadata.get("status", "unknown"))
        run.settings[key] = status
        if status != "success":
            run.failure = f"run_stop says {status}"
        return
    at = _at(metadata)
    if at is None:
        if event.get("event_type") == "POINT_IN_TIME" and is_token(value):
            run.settings[key] = str(value)
        return
    label = named.get(key) or _label(key, run)
    if meaning(label) is None:
        run.unused[key] = None
    elif is_token(value):
        _put(run, label, at, value)
        if is_token(metadata.get("lr")):
            _put(run, "lr", at, metadata["lr"])


def _at(metadata: dict[str, Any]) -> tuple[float, Axis] | None:
    """Where an event stands, and on which axis; None where it stands at no step."""
    for name, axis in _AXES:
        value = metadata.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
            return float(value), axis
    return None


def _label(key: str, run: RawRun) -> str:
    benchmark = run.settings.get("submission_benchmark", "")
    if key != _ACCURACY or not benchmark.lower().startswith(_LOSS_BENCHMARKS):
        return key
    run.note(f"eval_accuracy of {benchmark} is its validation loss")
    return "eval_loss"


def _put(run: RawRun, label: str, at: tuple[float, Axis], value: Token) -> None:
    step, axis = at
    if axis == "epochs" and step > _MANY_EPOCHS:
        run.note("epoch_num is too large for epochs: it counts samples or tokens")
    run.add(label, axis, step, value)


READER = Reader("mlperf", "MLPerf's training log", matches, read, takes_columns=True)
