"""Megatron-LM's and Megatron-Bridge's golden values: one JSON document of metrics."""

import re
from collections.abc import Sequence
from math import ceil
from operator import itemgetter
from typing import Any

from fp8migrate.records.collect import Collector
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.document import is_token, json_object, token
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_BY_METRIC = re.compile(rb'\A\s*\{\s*"[^"\n]{1,200}"\s*:\s*\{\s*"(?:start_step|end_step|step_interval|values)"\s*:')
_BY_STEP = re.compile(rb'\A\s*\{\s*"\d{1,15}"\s*:\s*\{\s*"[^"\n]{1,200}"\s*:')
# Golden files write it where a value is missing. A NaN that was measured would stand there as a number.
_MISSING = "nan"

Points = Sequence[tuple[float, Token]]


def matches(source: Source) -> bool:
    return _BY_METRIC.match(source.head) is not None or _BY_STEP.match(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    document = json_object(source)
    named = {label: quantity for quantity, label in options.columns.items()}

    def ours(label: str) -> str:
        return named.get(label, label)

    steps = {float(key): row for key, row in document.items() if _is_step(key) and isinstance(row, dict)}
    for step, row in sorted(steps.items()):
        values = [(ours(label), token(value)) for label, value in row.items() if value != _MISSING]
        collected.put(step, [(label, value) for label, value in values if meaning(label)])
        collected.run.unused.update({label: None for label, _ in values if meaning(label) is None})
    metrics = {ours(label): row for label, row in document.items() if isinstance(row, dict) and "values" in row}
    ends = [metric.get("end_step") for label, metric in metrics.items() if _is_training(label)]
    for label, metric in metrics.items():
        _metric(label, metric, ends, collected)
    rest = [label for label in document if not _is_step(label) and ours(label) not in metrics]
    collected.run.unused.update(dict.fromkeys(rest))
    return collected


def _is_training(label: str) -> bool:
    known = meaning(label)
    return known is not None and known.quantity == "training_loss" and known.rank == 0


def _is_step(key: str) -> bool:
    return len(key) <= 15 and key.isascii() and key.isdigit()


def _metric(label: str, metric: dict[str, Any], ends: Sequence[object], collected: Collector) -> None:
    """One metric of a run. Missing values at its end leave no point: the run was cut short.

    A list holds every n-th value that was logged. Where another number was logged than of losses (validations; gradient
    norms of the steps that were not skipped), its places are no steps.
    """
    run = collected.run
    if meaning(label) is None:
        if "vs samples" not in label:
            run.unused[label] = None
        return
    points, expected = _points(metric, collected)
    there = [index for index, (_, value) in enumerate(points) if value is not None]
    points = points[: there[-1] + 1] if there else []
    counts_itself = isinstance(metric["values"], list) and bool(ends) and metric.get("end_step") not in ends
    if counts_itself:
        run.note(f"{label}: the file counts its values, not the steps at which they were logged")
    column = run.column(label, "points" if counts_itself else "steps")
    column.steps += [step + counts_itself for step, _ in points]
    column.values += [value for _, value in points]
    if not _is_training(label):
        return
    run.expected_last_step = expected
    if points and expected is not None and points[-1][0] < expected:
        run.note(f"cut short at {points[-1][0]:g}")


def _points(metric: dict[str, Any], collected: Collector) -> tuple[Points, float | None]:
    """Steps with values, None where missing; and the last step that the file means to have.

    A list ends before end_step, as a slice does; in a map end_step is the last key.
    """
    start, end = _number(metric.get("start_step"), 0.0), _number(metric.get("end_step"), None)
    interval = max(1.0, _number(metric.get("step_interval"), 1.0) or 1.0)
    values = metric["values"]
    if isinstance(values, list):
        points = [(start + index * interval, _value(value)) for index, value in enumerate(values)] if start is not None else []
        last = None if end is None or start is None else start + max(0, ceil((end - start) / interval) - 1) * interval
        return points, last
    if not isinstance(values, dict):
        collected.skip(str(values))
        return [], None
    for key in values:
        if not _is_step(key):
            collected.skip(key)
    points = sorted(((float(key), _value(value)) for key, value in values.items() if _is_step(key)), key=itemgetter(0))
    if not points or end is None:
        return points, end
    # The last key counts where end_step is no multiple of the interval.
    return points, points[-1][0] if 0 <= end - points[-1][0] < interval else end


def _number(value: object, default: float | None) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 2**53 else default


def _value(value: object) -> Token:
    return None if value == _MISSING or not is_token(value) else token(value)


READER = Reader("megatron-golden", "golden values of Megatron-LM or Megatron-Bridge", matches, read, takes_columns=True)
