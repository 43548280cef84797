"""The audit: every setting of two arms, as same, different, unknown, or attested (somebody says so).

What differs beyond precision spoils a pair.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

AuditStatus = Literal["same", "different", "unknown", "attested"]

# Settings in which the arms are meant to differ: the precision of the linear layers, how its FP8 forward is validated, and
# the amax history warmed for it.
PRECISION = ("task.precision", "task.validate_forwards", "task.warm_amax_batches")

# Settings that no number depends on: what is kept for a resume, and which of several equal devices a run got.
WITHOUT_EFFECT = (
    "task.checkpoint_at",
    "task.resume_every",
    "environment.variables.CUDA_VISIBLE_DEVICES",
    "environment.variables.CUDA_DEVICE_ORDER",
)


@dataclass(frozen=True)
class AuditRow:
    """One setting of the baseline and the candidate. `expected`: they differ as meant, or in what no number depends on."""

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


def audit(
    baseline: Mapping[str, Any],
    candidate: Mapping[str, Any],
    *,
    required: Collection[str] = (),
    expected: Collection[str] = (),
) -> tuple[AuditRow, ...]:
    """Compare two (nested) mappings of settings, in the order of their names.

    A setting that one side lacks is unknown; a precision setting that one side lacks is different, which it is meant to be.
    required: settings that get a row (unknown) even where both sides lack them or hold None. expected: further settings, or
    heads of settings, that may differ.
    """
    left, right = flatten(baseline), flatten(candidate)
    may_differ = (*PRECISION, *WITHOUT_EFFECT, *expected)
    names = sorted(left.keys() | right.keys() | set(required))
    return tuple(_row(name, left, right, _under(name, may_differ), name in required) for name in names)


def _row(name: str, left: Mapping[str, Any], right: Mapping[str, Any], may_differ: bool, required: bool) -> AuditRow:
    status: AuditStatus
    if required and left.get(name) is None and right.get(name) is None:
        status = "unknown"
    elif name in left and name in right:
        status = "same" if left[name] == right[name] else "different"
    else:
        status = "different" if may_differ else "unknown"
    return AuditRow(name, status, _show(left, name), _show(right, name), may_differ and status == "different")


def _under(name: str, heads: Collection[str]) -> bool:
    return any(name == head or name.startswith(f"{head}.") for head in heads)


def merge(audits: Sequence[tuple[AuditRow, ...]]) -> tuple[AuditRow, ...]:
    """Audits of several pairs as one: a setting differs if it does in any pair, and is unknown if it is unknown in any.

    Each row shows the first pair in which it is worst; a difference that is not expected in one pair is not expected.
    """
    worst: dict[str, AuditRow] = {}
    for row in (row for rows in audits for row in rows):
        known = worst.get(row.setting)
        if known is None or _badness(row) > _badness(known):
            worst[row.setting] = row
    return tuple(worst[name] for name in sorted(worst))


def _badness(row: AuditRow) -> int:
    if row.status == "different":
        return 1 if row.expected else 3
    return 2 if row.status == "unknown" else 0


def _show(settings: Mapping[str, Any], name: str) -> str:
    return "—" if name not in settings else str(settings[name])
