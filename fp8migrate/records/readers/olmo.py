"""OLMo's standard output: a line that names the step, then one indented `name=value` line for each metric."""

import re
from dataclasses import dataclass

from fp8migrate.records.collect import Collector
from fp8migrate.records.quantities import meaning, plain
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import without_colours
from fp8migrate.records.source import Source

_STEP = re.compile(rb"(?:rank=(\d+)\] *)?\[step=(\d{1,15})/(\d{1,15})[,\]]")
_METRIC = re.compile(rb"(?m)^[^\n=]{0,200}?    (?:train|eval|optim|throughput|system|System)/[^\n=]{1,200}=")
_INDENT = b"    "
_NAMES = {"optim_total_grad_norm": "optim/grad_norm"}


@dataclass
class _Block:
    """The step that metrics belong to; None before the first, and within what another rank printed."""

    step: float | None = None
    last_step: float = 0.0
    rank: bytes | None = None


def matches(source: Source) -> bool:
    if b"[step=" not in source.head:
        return False  # the expressions below look at every line
    head = without_colours(source.head)
    return _STEP.search(head) is not None and _METRIC.search(head) is not None


def read(source: Source, options: Options) -> Collector:
    collected, block = Collector(), _Block()
    for chunk in source.chunks():
        for line in without_colours(chunk).split(b"\n"):
            if b"[step=" in line:
                _header(line, collected, block)
            elif block.step is not None and b"/" in line and _INDENT in line:
                _metric(line, collected, block)
    return collected


def _header(line: bytes, collected: Collector, block: _Block) -> None:
    """`[…, rank=0] [step=1/739328]`, with more after a comma. The first rank that prints is read."""
    found = _STEP.search(line)
    if found is None:
        collected.skip(line)
        return
    if block.rank is None:
        block.rank = found[1] or b""
    if (found[1] or b"") != block.rank:
        block.step = None
        note = f"the lines of rank {block.rank.decode() or 'unknown'} are read, those of other ranks are left out"
        if note not in collected.notes:
            collected.notes.append(note)
        return
    block.step, block.last_step = float(found[2]), float(found[3])


def _metric(line: bytes, collected: Collector, block: _Block) -> None:
    """`    train/Perplexity=76,631`. Evaluations follow a line without a step and belong to the step before them."""
    name, equals, value = line.partition(b"=")
    label = name.rsplit(_INDENT, 1)[-1].strip().decode("latin-1")
    if "/" in label:
        label = _NAMES.get(plain(label), label)
    if block.step is None or not equals or "/" not in label or meaning(label) is None:
        return
    if not value.strip():
        collected.skip(line)
        return
    run = collected.put(block.step, [(label, value.strip())])
    run.expected_last_step = block.last_step
    if label.startswith("throughput/device/"):
        run.note(f"{label} is of one device")


READER = Reader("olmo", "OLMo's standard output", matches, read)
