"""The Hugging Face Trainer's trainer_state.json."""

import re

import numpy as np

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector, RawRun
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.document import json_object
from fp8migrate.records.readers.tabular import add_rows
from fp8migrate.records.source import Source

_HISTORY = re.compile(rb'"log_history"\s*:\s*\[')
_SETTINGS = ("max_steps", "num_train_epochs", "train_batch_size", "logging_steps", "eval_steps", "save_steps")
# The row that ends a run: its train_loss is the mean of all of it.
_SUMMARY = "train_runtime"


def matches(source: Source) -> bool:
    return source.head.lstrip().startswith(b"{") and _HISTORY.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    state = json_object(source)
    history = state.get("log_history")
    if not isinstance(history, list):
        raise UsageError("has no list log_history", where=source.name)
    collected = Collector()
    counter = options.columns.get("step", "step")
    rows = []
    for row in history:
        if not isinstance(row, dict):
            collected.skip(str(row)[:200])
        elif counter in row:
            rows.append({key: value for key, value in row.items() if key != "train_loss" or _SUMMARY not in row})
        elif not any(str(key).startswith(("predict_", "test_")) for key in row):
            collected.skip(str(row)[:200])
    add_rows(collected, rows, options)
    run = collected.run
    run.settings |= {key: str(state[key]) for key in _SETTINGS if isinstance(state.get(key), int | float)}
    steps = state.get("max_steps")
    if isinstance(steps, int | float) and 0 < steps < 2**53:
        run.expected_last_step = float(steps)
    for run in collected.runs:
        _note_means(run)
    return collected


def _note_means(run: RawRun) -> None:
    """The Trainer logs the mean of the loss since it last did."""
    column = run.columns.get("loss")
    if column is None:
        return
    steps, _, _ = column.numbers()
    if steps.size and (interval := float(np.median(np.diff(steps, prepend=0)))) > 1:
        column.averaging = f"mean over {interval:g} steps"


READER = Reader(
    "hf-state",
    "the Hugging Face Trainer's trainer_state.json",
    matches,
    read,
    "Set logging_steps so that the Trainer logs its loss at all.",
    takes_columns=True,
)
