"""What changed between two environments, in words."""

from typing import Any

from fp8migrate.records.schema import Environment

# A digest says that something changed, not what: its beginning is enough to tell two apart.
_DIGEST_LETTERS = 8
_NAMES = {"source_sha256": "fp8migrate's own training code", "data_sha256": "the data"}


def environment_changes(before: Environment, now: Environment) -> list[str]:
    """`torch 2.11.0 -> 2.13.0`, one entry for each thing that differs."""
    old, new = before.model_dump(), now.model_dump()
    changes = [
        f"{_NAMES.get(name, name)} {_short(name, old[name])} -> {_short(name, new[name])}"
        for name in old
        if name != "variables" and old[name] != new[name]
    ]
    for name in sorted(before.variables.keys() | now.variables.keys()):
        left, right = before.variables.get(name, "unset"), now.variables.get(name, "unset")
        if left != right:
            changes.append(f"{name} {left} -> {right}")
    return changes


def _short(name: str, value: Any) -> str:
    return str(value)[:_DIGEST_LETTERS] if name.endswith("_sha256") else str(value)
