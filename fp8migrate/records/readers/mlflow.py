"""MLflow's file store: one file a metric, named after it, with `<milliseconds> <value> <step>` a line."""

import re

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source

_LINE = re.compile(rb"(\d{12,14}) (\S{1,64}) (-?\d{1,19})")
_FOLDER = "metrics"


def matches(source: Source) -> bool:
    lines = source.head.split(b"\n")[:3]
    return _LINE.fullmatch(lines[0].rstrip()) is not None and all(_LINE.fullmatch(line.rstrip()) for line in lines[:-1])


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    metric = _metric(source)
    named = {label: quantity for quantity, label in options.columns.items()}
    label = named.get(metric) or named.get(metric.rpartition("/")[2], metric)
    for line in source.lines():
        if match := _LINE.fullmatch(line.strip()):
            collected.put(float(match[3]), [(label, match[2])])
        elif line.strip():
            collected.skip(line)
    for run in collected.runs:
        # Without step= in log_metric, MLflow writes 0 for each.
        if (column := run.columns.get(label)) and column.points > 1 and not any(column.steps):
            column.axis = "points"
            column.steps = [float(number) for number in range(1, column.points + 1)]
            run.note("every value was logged at step 0: they were numbered from 1")
    return collected


def _metric(source: Source) -> str:
    """The metric's name: the path below the folder `metrics`, since names with slashes become folders."""
    parts = source.path.parts if source.path else ()
    if _FOLDER in parts[:-1]:
        below = len(parts) - parts[::-1].index(_FOLDER)
        return "/".join((*parts[below:-1], source.file_name))
    return source.file_name


READER = Reader(
    "mlflow",
    "a metric of MLflow's file store",
    matches,
    read,
    "The file's name is the metric's. Give the file of the loss, or say what this one holds: --columns training_loss=NAME.",
    takes_columns=True,
)
