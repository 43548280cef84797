"""DeepSpeed's own lines. They hold the learning rate and the speed, and no loss at all: that must be said."""

import re

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.source import Source

_STEP = re.compile(rb"\[Rank \d+\] step=(\d+), skipped=\d+, lr=\[([^,\]\n]*)")


def matches(source: Source) -> bool:
    return _STEP.search(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    collected = Collector()
    for chunk in source.chunks():
        for step, rate in _STEP.findall(chunk):
            collected.put(float(step), [("lr", rate.strip())])
    return collected


READER = Reader(
    "deepspeed",
    "DeepSpeed's output",
    matches,
    read,
    "DeepSpeed prints step, lr and mom, never the loss. Print the loss that engine(batch) returns, as JSON lines with step and "
    "loss, or turn on DeepSpeed's tensorboard, wandb or csv_monitor and give that log.",
)
