"""TensorBoard's event files. All scalars are read: TensorBoard itself keeps 10,000 of each tag unless told not to."""

import importlib
import logging
import warnings
from typing import Any

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source

# A record begins with its length and a checksum; the first one holds the version, `brain.Event:2`.
_VERSION = b"brain.Event:"
_FIRST = 64


def matches(source: Source) -> bool:
    return _VERSION in source.head[:_FIRST]


def read(source: Source, options: Options) -> Collector:
    if source.path is None or source.path.suffix == ".gz":
        raise UsageError("an event file is read from its own path", where=source.name, next_step="Save it uncompressed.")
    collected = Collector()
    run = collected.run
    named = {label: quantity for quantity, label in options.columns.items()}
    events = _events(source)
    tags = events.Tags()
    for tag in (*tags["scalars"], *tags["tensors"]):
        label = named.get(tag, tag)
        if meaning(label) is None:
            run.unused[tag] = None
            continue
        column = run.column(label)
        for event in events.Scalars(tag) if tag in tags["scalars"] else events.Tensors(tag):
            value = _value(event)
            if value is None:
                collected.skip(f"{tag} at step {event.step} is no scalar")
            else:
                column.steps.append(float(event.step))
                column.values.append(value)
    return collected


def _events(source: Source) -> Any:
    """The accumulator, loaded. What a resume wrote again is kept, for assembly to report."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError as error:
        next_step = "Install it with: pip install 'fp8migrate[logs]'"
        raise UsageError("event files are read with the package tensorboard", where=source.name, next_step=next_step) from error
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    guidance = {"scalars": 0, "tensors": 0, "images": 1, "audio": 1, "histograms": 1, "compressedHistograms": 1}
    events = module.EventAccumulator(str(source.path), size_guidance=guidance, purge_orphaned_data=False)
    try:
        return events.Reload()
    except Exception as error:  # whatever a broken file makes of protobuf and TensorBoard
        raise UsageError(f"cannot be read: {error}", where=source.name, next_step="Is the file whole?") from error


def _value(event: Any) -> float | None:
    """A scalar, or a tensor of one number as TensorFlow 2 writes it. float32 is written as the shortest text that gives it."""
    if hasattr(event, "value"):
        return float(event.value)
    util = importlib.import_module("tensorboard.util.tensor_util")
    array = util.make_ndarray(event.tensor_proto)
    return float(array) if array.ndim == 0 and array.dtype.kind in "fiu" else None


READER = Reader(
    "tensorboard",
    "a TensorBoard event file",
    matches,
    read,
    "Name the tag of the loss with --columns training_loss=TAG.",
    takes_columns=True,
)
