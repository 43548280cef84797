"""What a reader is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.source import Source


@dataclass(frozen=True)
class Options:
    """What a user says of a log. format: a reader's name. columns: names in the log by our names, {"training_loss": "ce"};
    "step" and "run" name the columns that count and that tell runs apart.
    """

    format: str = ""
    columns: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reader:
    """One log format.

    name: for --format. about: what it is, in a few words. matches: whether a source is of this format, by its content
    (`source.head`). read: its points, in the order of the log. takes_columns: whether a user may name its columns.
    without_loss: what to do where such a log holds no loss. whole_folder: the file stands for its folder, whose other files are
    no logs of their own.
    """

    name: str
    about: str
    matches: Callable[[Source], bool]
    read: Callable[[Source, Options], Collector]
    without_loss: str = "Log the training or validation loss, or name its column with --columns."
    takes_columns: bool = False
    whole_folder: bool = False


def parse_columns(pairs: Sequence[str]) -> dict[str, str]:
    """`["training_loss=ce,step=t"]` → {"training_loss": "ce", "step": "t"}. UsageError where a pair is none."""
    found = {}
    for pair in (part for text in pairs for part in text.split(",")):
        ours, equals, theirs = pair.partition("=")
        if not (ours and equals and theirs):
            raise UsageError(f"{pair!r} names no column", where="--columns", next_step="Write it as training_loss=NAME.")
        found[ours.strip()] = theirs.strip()
    return found
