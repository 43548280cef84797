"""From what a user named (files, folders, patterns, `-`) to sources, in a stable order."""

import glob
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fp8migrate.errors import UsageError
from fp8migrate.records.configuration import is_configuration
from fp8migrate.records.readers import recognise
from fp8migrate.records.source import Source

MAX_FILES = 10_000
_MAGIC = "*?["


@dataclass(frozen=True)
class Found:
    """sources: each log once. passed_over: files of folders whose content is no log that is known."""

    sources: tuple[Source, ...]
    passed_over: tuple[str, ...] = ()


def find_sources(names: Sequence[str], *, format_name: str = "", taken: frozenset[Path] = frozenset()) -> Found:
    """The logs that the names stand for. Of a folder, the files whose content is a known log (all of them with a format).

    taken: files, resolved, that were read as something else and are no logs. UsageError where a name stands for nothing, so
    that nothing goes on with less than was asked for.
    """
    found: dict[str, Source] = {}
    passed_over: list[str] = []
    for name in names:
        for source in _named(name, format_name, passed_over, taken):
            if source.path and source.path.resolve() in taken:
                continue
            found.setdefault(str(source.path.resolve()) if source.path else source.name, source)
    return Found(tuple(found.values()), tuple(passed_over))


def split_runs(name: str, runs: str = "") -> tuple[str, str]:
    """`steps.csv::bf16*` → steps.csv, and the pattern of the runs that count; `runs` where the name has none of its own."""
    path, separator, pattern = name.rpartition("::")
    return (path, pattern) if separator and path and pattern else (name, runs)


def _named(name: str, format_name: str, passed_over: list[str], taken: frozenset[Path]) -> Iterator[Source]:
    if name == "-":
        yield Source.stdin()
        return
    path = Path(name)
    if path.is_dir():
        yield from _of_folder(path, format_name, passed_over, taken)
    elif path.exists() or not any(sign in name for sign in _MAGIC):
        yield Source(name, path)
    else:
        paths = sorted(glob.glob(name, recursive=True))
        if not paths:
            raise UsageError("matches no file", where=name, next_step="Check the pattern; quote it if the shell expands it.")
        for one in paths:
            if not Path(one).is_dir():
                yield Source(one, Path(one))


def _of_folder(folder: Path, format_name: str, passed_over: list[str], taken: frozenset[Path]) -> Iterator[Source]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    if len(files) > MAX_FILES:
        raise UsageError(f"holds more than {MAX_FILES} files", where=str(folder), next_step="Name the logs themselves.")
    known: list[Source] = []
    ours = [path for path in files if path.resolve() not in taken and not is_configuration(path)]
    whole: set[Path] = set()
    others: list[str] = []
    for path in ours:
        source = Source(str(path), path)
        if format_name or _is_log(source):
            known.append(source)
            reader = None if format_name else recognise(source)
            whole |= {path.parent} if reader and reader.whole_folder else set()
        else:
            others.append(source.name)
    if whole:
        known = [source for source in known if not _within_one(source, whole)]
        others = [name for name in others if not whole.intersection(Path(name).parents)]
    passed_over += others
    if not known and not taken.intersection(path.resolve() for path in files):
        what = f"holds no log that is known ({len(files)} files)" if files else "is an empty folder"
        raise UsageError(what, where=str(folder), next_step="Name the files, with --format where theirs is not recognised.")
    yield from known


def _within_one(source: Source, whole: Collection[Path]) -> bool:
    """Whether it lies in a folder that another file stands for."""
    assert source.path is not None
    if not any(folder in whole for folder in source.path.parents):
        return False
    reader = recognise(source)
    return not (reader and reader.whole_folder and source.path.parent in whole)


def _is_log(source: Source) -> bool:
    try:
        return bool(source.head.strip()) and recognise(source) is not None
    except UsageError:
        return False
