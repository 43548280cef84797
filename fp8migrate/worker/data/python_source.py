"""The Python standard library's own source: real, varied text that is on every machine."""

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from fp8migrate.errors import UsageError

# Files below this teach nothing; files above it (generated tables) would dominate the text.
_MIN_BYTES, _MAX_BYTES = 256, 262_144
_ENOUGH_BYTES = 1_000_000
# Installed packages are not the standard library. Never entered: they may be a hundred times as large.
_NOT_THE_LIBRARY = {"site-packages", "dist-packages", "__pycache__"}


def load_documents() -> tuple[tuple[str, bytes], ...]:
    """(relative path, content) of every module, in the order of their paths. Raises UsageError where there are too few."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(_modules(root)):
        content = path.read_bytes()
        if _MIN_BYTES <= len(content) <= _MAX_BYTES:
            documents.append((path.relative_to(root).as_posix(), content))
    found = sum(len(content) for _, content in documents)
    if found < _ENOUGH_BYTES:
        raise UsageError(
            f"the standard library's source has {found} bytes here, too little to train on",
            where=str(root),
            next_step="Use a Python installation that ships its library as .py files.",
        )
    return tuple(documents)


def _modules(root: Path) -> Iterator[Path]:
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_THE_LIBRARY]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))
