"""The audit: every setting of two arms, as same, different or unknown. What differs beyond precision spoils a pair."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

AuditStatus = Literal["same", "different", "unknown"]

# Settings in which the arms are meant to differ: the precision of the linear layers, nothing else.
PRECISION_PREFIXES = ("task.precision.", "task.forward_precision.", "task.warm_amax_batches")


@dataclass(frozen=True)
class AuditRow:
    """One setting of the baseline and the candidate. `expected`: the difference is the precision under test."""

    setting: str
    status: AuditStatus
    baseline: str
    candidate: str
    expected: bool = False


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one mapping with dotted keys; lists stay values."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
    return flat


def audit(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[AuditRow, ...]:
    """Compare two (nested) mappings of settings. A setting that one side lacks is unknown, unless it is a precision setting."""
    left, right = flatten(baseline), flatten(candidate)
    rows = []
    for name in sorted(left.keys() | right.keys()):
        expected = name.startswith(PRECISION_PREFIXES) or name == "task.precision"
        known = name in left and name in right
        status: AuditStatus = "unknown"
        if known:
            status = "same" if left[name] == right[name] else "different"
        elif expected:
            status = "different"
        rows.append(AuditRow(name, status, _show(left, name), _show(right, name), expected and status == "different"))
    return tuple(rows)


def _show(settings: Mapping[str, Any], name: str) -> str:
    return "—" if name not in settings else str(settings[name])
