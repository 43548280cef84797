"""The Python standard library's own source: real, varied text that is on every machine."""

import sysconfig
from pathlib import Path

from fp8migrate.errors import UsageError

# Files below this teach nothing; files above it (generated tables) would dominate the text.
_MIN_BYTES, _MAX_BYTES = 256, 262_144
_ENOUGH_BYTES = 1_000_000


def load_documents() -> tuple[tuple[str, bytes], ...]:
    """(relative path, content) of every module, in the order of their paths. Raises UsageError where there are too few."""
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if "site-packages" in name.parts or "dist-packages" in name.parts:
            continue
        content = path.read_bytes()
        if _MIN_BYTES <= len(content) <= _MAX_BYTES:
            documents.append((name.as_posix(), content))
    found = sum(len(content) for _, content in documents)
    if found < _ENOUGH_BYTES:
        raise UsageError(
            f"the standard library's source has {found} bytes here, too little to train on",
            where=str(root),
            next_step="Use a Python installation that ships its library as .py files.",
        )
    return tuple(documents)
