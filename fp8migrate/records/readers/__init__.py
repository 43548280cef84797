"""Readers of training logs, one file a format, found by content. A new format is one file and one line in READERS."""

from collections.abc import Sequence

from fp8migrate.errors import UsageError
from fp8migrate.records.assemble import assemble
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
    tensorboard,
    torchtitan,
    torchtitan_golden,
    wandb_offline,
)
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source

# In the order in which they are asked: a format that another could be mistaken for stands after it.
READERS: tuple[Reader, ...] = (
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
    """The reader of a log, by name or by its content. UsageError where none knows it."""
    if name:
        if found := next((reader for reader in readers if reader.name == name), None):
            return found
        known = ", ".join(reader.name for reader in readers)
        raise UsageError(f"no log format {name!r}", where="--format", next_step=f"Known formats: {known}.")
    if not source.head.strip():
        raise UsageError("is empty", where=source.name)
    if found := next((reader for reader in readers if reader.matches(source)), None):
        return found
    next_step = "Name its format with --format, or describe it by a regular expression (see the README, Log formats)."
    raise UsageError("is in no log format that is known", where=source.name, next_step=next_step)


def read_log(source: Source, options: Options | None = None, readers: Sequence[Reader] = READERS) -> tuple[LogRecord, ...]:
    """Every run of one log. UsageError where it cannot be read or holds no loss."""
    options = options or Options()
    reader = reader_of(source, options.format, readers)
    collected = reader.read(source, options)
    records = assemble(collected, source, reader.name)
    if not any(record.losses for record in records):
        raise UsageError(f"holds no loss ({reader.about})", where=source.name, next_step=reader.without_loss)
    return records
