"""Readers of training logs, one file a format, found by content. A new format is one file and one line in READERS."""

from collections.abc import Sequence
from pathlib import Path

from fp8migrate.errors import UsageError
from fp8migrate.records.assemble import assemble
from fp8migrate.records.collect import Collector
from fp8migrate.records.logs import LogRecord
from fp8migrate.records.readers import (
    csv_table,
    deepspeed,
    hf_state,
    hf_stdout,
    jsonl,
    litgpt,
    llmc,
    megatron,
    megatron_golden,
    mlflow,
    mlperf,
    nanochat,
    nanogpt,
    nanotron,
    nemo,
    olmo,
    own_run,
    tensorboard,
    torchtitan,
    torchtitan_golden,
    wandb_offline,
)
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.described import load_described
from fp8migrate.records.source import Source

# In the order in which they are asked: a format that another could be mistaken for stands after it.
READERS: tuple[Reader, ...] = (
    own_run.READER,
    megatron.READER,
    nemo.READER,
    torchtitan.READER,
    nanochat.READER,
    llmc.READER,
    litgpt.READER,
    olmo.READER,
    nanotron.READER,
    torchtitan_golden.READER,
    nanogpt.READER,
    tensorboard.READER,
    wandb_offline.READER,
    mlperf.READER,
    mlflow.READER,
    megatron_golden.READER,
    hf_state.READER,
    hf_stdout.READER,
    deepspeed.READER,
    jsonl.READER,
    csv_table.READER,
)


def reader_of(source: Source, name: str = "", readers: Sequence[Reader] = READERS) -> Reader:
    """The reader of a log: by name, from a user's description (NAME.yaml), or by content. UsageError where none knows it."""
    if name.lower().endswith((".yaml", ".yml")):
        return load_described(Path(name))
    if name:
        if found := next((reader for reader in readers if reader.name == name), None):
            return found
        known = ", ".join(reader.name for reader in readers)
        raise UsageError(
            f"no log format {name!r}", where="--format", next_step=f"Known formats: {known}; or a YAML file that describes one."
        )
    if not source.head.strip():
        raise UsageError("is empty", where=source.name)
    if found := recognise(source, readers):
        return found
    next_step = "Name its format with --format, or describe it in a YAML file (see the README, Judge finished runs)."
    raise UsageError("is in no log format that is known", where=source.name, next_step=next_step)


def recognise(source: Source, readers: Sequence[Reader] = READERS) -> Reader | None:
    """The first reader that knows the content. Asked once a source: some look at every line of its head."""
    key = id(readers)
    if source.recognised is None or source.recognised[0] != key:
        source.recognised = (key, next((reader for reader in readers if reader.matches(source)), None))
    found = source.recognised[1]
    assert found is None or isinstance(found, Reader)
    return found


def read_log(source: Source, options: Options | None = None, readers: Sequence[Reader] = READERS) -> tuple[LogRecord, ...]:
    """Every run of one log. UsageError where it cannot be read or holds no loss."""
    options = options or Options()
    reader = reader_of(source, options.format, readers)
    if options.columns and not reader.takes_columns:
        what = f"its format, {reader.name}, has names of its own for what it logs"
        raise UsageError(what, where=source.name, next_step="Leave --columns away, or choose another --format.")
    collected = reader.read(source, options)
    _refuse_absent_columns(collected, source, options)
    if collected.runs:
        collected.runs[-1].crash = source.crash()
    records = assemble(collected, source, reader.name, options.columns)
    if not any(record.losses for record in records):
        raise UsageError(f"holds no loss ({reader.about})", where=source.name, next_step=reader.without_loss)
    return records


def _refuse_absent_columns(collected: Collector, source: Source, options: Options) -> None:
    """A named column that the log does not have is an error, never a reason to guess another."""
    read = {label for run in collected.runs for label in run.columns}
    for quantity, label in options.columns.items():
        if quantity not in ("step", "run") and quantity not in read:
            there = sorted({*read, *(name for run in collected.runs for name in run.unused)})
            next_step = f"It has: {', '.join(there[:12])}." if there else "No column of it was understood."
            raise UsageError(f"has no column {label!r} with values", where=source.name, next_step=next_step)
