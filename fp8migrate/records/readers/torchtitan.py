"""torchtitan's standard output: one line a step and rank, with colours anywhere between the fields."""

import re
from dataclasses import dataclass, field
from itertools import pairwise

from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.lines import MAX_FIELDS, without_colours
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token

_HEAD = re.compile(rb"step: {0,20}\d+ {1,20}loss: [^\n]{0,300}?(?:memory|tps):")
_LINE = re.compile(rb"(?m)^([^\n]*?)(validate step|step): *(\d{1,15}) +(loss:[^\n]*)")
# After `total steps ` in the line with which training starts.
_TOTAL = re.compile(rb"\d{1,15}")
_RANK = re.compile(rb"\[(?:rank|default|rank )?(\d+)\]|^(\d+): ")
_LABELS = {b"loss": "loss", b"grad_norm": "grad_norm", b"memory": "memory_gib", b"tps": "tps", b"lr": "lr"}


@dataclass
class _Ranks:
    """Every rank prints the same steps; one of them is read."""

    kept: bytes | None = None
    others: set[bytes] = field(default_factory=set)
    last_step: float | None = None


def matches(source: Source) -> bool:
    return _HEAD.search(without_colours(source.head)) is not None


def read(source: Source, options: Options) -> Collector:
    collected, ranks = Collector(), _Ranks()
    for chunk in source.chunks():
        for line in without_colours(chunk).split(b"\n"):
            if b"step: " in line and (match := _LINE.match(line)):
                _line(match, collected, ranks)
            elif b"Training starts at step " in line and (total := _TOTAL.match(line.partition(b"total steps ")[2])):
                ranks.last_step = float(total[0])
    if ranks.others and ranks.kept is not None:
        kept = f"rank {ranks.kept.decode()}" if ranks.kept else "the process without a rank"
        collected.notes.append(f"the lines of {kept} are read, those of {len(ranks.others)} other ranks are left out")
    return collected


def _line(match: re.Match[bytes], collected: Collector, ranks: _Ranks) -> None:
    values = _values(match[4])
    loss = dict(values).get("loss")
    if not isinstance(loss, bytes):
        collected.skip(match[0])
        return
    if not _wanted(match[1], loss, ranks):
        return
    if match[2] == b"step":
        run = collected.put(float(match[3]), values)
    else:
        run = collected.put(float(match[3]), [("val_loss", loss)])
    if ranks.last_step is not None:
        run.expected_last_step = ranks.last_step


def _wanted(prefix: bytes, loss: bytes, ranks: _Ranks) -> bool:
    """Whether a line is of the rank that is read: the first with a loss. Pipeline stages without one print it below 0."""
    found = _RANK.search(prefix)
    rank = (found[1] or found[2] or b"") if found else b""
    if ranks.kept is None and not loss.startswith(b"-"):
        ranks.kept = rank
    if rank != ranks.kept:
        ranks.others.add(rank)
    ranks.others.discard(ranks.kept or b"")
    return rank == ranks.kept


def _values(rest: bytes) -> list[tuple[str, Token]]:
    """`loss:  8.2033  memory:  0.82GiB(0.87%)  tps: 117,679`: a name ends with a colon, its value follows."""
    words = rest.split(None, 2 * MAX_FIELDS)
    found: list[tuple[str, Token]] = []
    for name, value in pairwise(words):
        if (label := _LABELS.get(name[:-1])) and name.endswith(b":") and not value.endswith(b":"):
            found.append((label, value.partition(b"GiB")[0]))
    return found


READER = Reader("torchtitan", "torchtitan's standard output", matches, read)
