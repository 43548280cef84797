"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8migrate.checks.schema import CheckResult
from fp8migrate.report import words


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.00014, "+0.014 %"),
        (-0.00017, "−0.017 %"),
        (0.0, "0.000 %"),
        (0.000004, "+0.0004 %"),
        (0.000000002, "+2e−07 %"),
        (0.018123, "+1.81 %"),
        (0.6412, "+64.1 %"),
        (123456.0, "+1.23e+07 %"),
        (math.nan, "NaN %"),
        (math.inf, "∞ %"),
        (None, "—"),
    ],
)
def test_percent_keeps_its_sign_and_enough_digits(value: float | None, told: str) -> None:
    assert words.percent(value) == told


@given(st.floats(min_value=1e-9, max_value=1e4))
def test_percent_never_rounds_a_gap_to_nothing(value: float) -> None:
    told = words.percent(value, unit=False)
    assert float(told.replace("−", "-")) == pytest.approx(value * 100, rel=0.51)
    assert words.percent(-value, unit=False) == told.replace("+", "−", 1)


def test_bounds_and_limits() -> None:
    assert words.bounds(-0.00051, 0.00079) == "[−0.051, +0.079] %"
    assert words.bounds(None, None) == "—"
    assert words.limit(0.0025) == "0.25 %"
    assert words.limit(0.01) == "1 %"


SMALL, NONE = "[−0.010, +0.050] %", "no bounds"


@pytest.mark.parametrize(
    ("result", "measured", "limit", "interval"),
    [
        (CheckResult("a", "pass", "", "", 0.0002, 0.0025, "relative", (-0.0001, 0.0005)), "+0.020 %", "0.25 %", SMALL),
        (CheckResult("a", "fail", "", "", 0.0002, 0.0025, "relative", (-math.inf, math.inf)), "+0.020 %", "0.25 %", NONE),
        (CheckResult("accumulation", "pass", "", "", 0.012, 0.05, "relative"), "1.20 %", "5 %", "—"),
        (CheckResult("gradients", "fail", "", "", 9.34, 12.0, "dB"), "9.34 dB", "12 dB", "—"),
        (CheckResult("coverage", "pass", "", "", 0.923, 0.0, "share"), "92.3 %", "0.0 %", "—"),
        (CheckResult("spikes", "pass", "", "", 0.00031, 0.01, "probability"), "p = 0.00031", "p = 0.01", "—"),
        (CheckResult("resume", "pass", ""), "—", "—", "—"),
    ],
)  # fmt: skip
def test_a_checks_numbers_are_told_in_its_unit(result: CheckResult, measured: str, limit: str, interval: str) -> None:
    assert (words.measured(result), words.held_against(result), words.interval(result)) == (measured, limit, interval)


def test_durations_and_sizes() -> None:
    assert [words.duration(s) for s in (0.42, 18.2, 312.4, 4312.0)] == ["0.4 s", "18 s", "5 min 12 s", "1 h 11 min"]
    assert words.duration(59.7) == "60 s"
    assert words.size(3 * 2**29) == "1.50 GiB"
    assert words.size(5 * 2**20) == "5.0 MiB"


@given(st.text(min_size=1), st.integers(min_value=3, max_value=40))
def test_middle_cut_keeps_both_ends(text: str, width: int) -> None:
    cut = words.middle_cut(text, width)
    assert len(cut) == min(len(text), width)
    assert (cut[0], cut[-1]) == (text[0], text[-1])


@given(st.text())
def test_clean_leaves_only_what_xml_allows(text: str) -> None:
    cleaned = words.clean(text)
    assert all(c in "\t\n" or c >= " " for c in cleaned)
    assert not any("\ud800" <= c <= "\udfff" or c in "\ufffe\uffff" for c in cleaned)
