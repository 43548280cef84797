"""The audit: same, different, unknown; what may differ; many pairs as one."""

from typing import Any

import pytest

from fp8migrate.plan.audit import AuditRow, audit, flatten, merge


def row(rows: tuple[AuditRow, ...], setting: str) -> AuditRow:
    return next(found for found in rows if found.setting == setting)


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": [1, {"d": 2}]}, "e": None, "f": {}}) == {"a.b": 1, "a.c": [1, {"d": 2}], "e": None}


@pytest.mark.parametrize(
    ("left", "right", "status", "expected"),
    [
        ({"x": 1}, {"x": 1}, "same", False),
        ({"x": 1}, {"x": 1.5}, "different", False),
        ({"x": 1}, {}, "unknown", False),
        ({"task": {"precision": {"recipe": None}}}, {"task": {"precision": {"recipe": "fp8"}}}, "different", True),
        ({"task": {"precision": {}}}, {"task": {"precision": {"margin": 0}}}, "different", True),
        ({"task": {"precision": {"odd_shapes": "keep"}}}, {"task": {"precision": {"odd_shapes": "pad"}}}, "different", True),
        ({"task": {"precision": {"kept": []}}}, {"task": {"precision": {"kept": [["a", "small"]]}}}, "different", True),
        ({"task": {"validate_forwards": ["bf16"]}}, {"task": {"validate_forwards": ["bf16", "fp8"]}}, "different", True),
        ({"task": {"resume_every": 10}}, {"task": {"resume_every": 20}}, "different", True),
        ({"task": {"precisions": 1}}, {"task": {"precisions": 2}}, "different", False),
    ],
)
def test_one_setting(left: dict[str, Any], right: dict[str, Any], status: str, expected: bool) -> None:
    rows = audit(left, right)
    assert {(found.status, found.expected) for found in rows} == {(status, expected)}


def test_a_required_setting_that_nobody_knows_is_unknown() -> None:
    (found,) = audit({}, {}, required=("facts.data_sha256",))
    assert (found.setting, found.status, found.baseline) == ("facts.data_sha256", "unknown", "—")
    assert audit({"facts": {"x": None}}, {"facts": {"x": None}}, required=("facts.x",))[0].status == "unknown"
    assert audit({"start": None}, {"start": None})[0].status == "same"


def test_further_settings_may_be_expected_to_differ() -> None:
    assert row(audit({"facts": {"w": 1}}, {"facts": {"w": 2}}, expected=("facts.w",)), "facts.w").expected


def test_merge_keeps_the_worst_of_each_setting() -> None:
    same, unknown = AuditRow("x", "same", "1", "1"), AuditRow("x", "unknown", "1", "—")
    meant, spoiling = AuditRow("x", "different", "1", "2", expected=True), AuditRow("x", "different", "1", "3")
    assert merge([(same,), (unknown,), (same,)]) == (unknown,)
    assert merge([(same,), (meant,)]) == (meant,)
    assert merge([(meant,), (unknown,), (spoiling,), (same,)]) == (spoiling,)
    assert [found.setting for found in merge([(AuditRow("b", "same", "", ""),), (AuditRow("a", "same", "", ""),)])] == [
        "a",
        "b",
    ]
    assert merge([]) == ()
