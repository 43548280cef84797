"""Bounds, Holm, power: against hand-worked values, scipy, and simulation."""

from collections.abc import Callable
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fp8migrate.statistics.noninferiority import Bounds, bounds, holm, welch_bounds, welch_difference
from fp8migrate.statistics.power import pairs_needed, power_to_pass

GAPS = st.lists(st.floats(-0.05, 0.05), min_size=2, max_size=20)
SIZES = st.integers(2, 9)


def test_bounds_by_hand() -> None:
    # Squared deviations 1, 1, 0, 0 over ν = 3: s² = 2/3, SE² = s²/4 + 0.3².
    values = [1.0, 3.0, 2.0, 2.0]
    b = bounds(values, sampling_error=0.3)
    sd = sqrt(2 / 3)
    standard_error = sqrt(sd**2 / 4 + 0.09)
    assert (b.mean, b.n, b.degrees_of_freedom) == (2.0, 4, 3)
    assert b.sd == pytest.approx(sd)
    # t_.95,3 = 2.353363 from a printed table.
    assert b.upper == pytest.approx(2.0 + 2.353363 * standard_error, abs=1e-5)
    assert b.lower == pytest.approx(2.0 - 2.353363 * standard_error, abs=1e-5)


@given(GAPS)
def test_bounds_agree_with_scipy(values: list[float]) -> None:
    b = bounds(values)
    if b.sd > 1e-12:
        interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.90)
        assert (b.lower, b.upper) == pytest.approx((interval.low, interval.high), abs=1e-9)
        assert b.p_above(0.0025) == pytest.approx(stats.ttest_1samp(values, 0.0025, alternative="greater").pvalue, abs=1e-9)


@given(GAPS, st.floats(0, 0.01))
def test_a_sampling_error_only_widens(values: list[float], error: float) -> None:
    assert bounds(values, error).upper >= bounds(values).upper
    assert bounds(values, error).lower <= bounds(values).lower


@given(GAPS, st.floats(-0.01, 0.01))
def test_the_lower_bound_is_above_a_limit_exactly_when_p_is_below_alpha(values: list[float], limit: float) -> None:
    b = bounds(values)
    if abs(b.lower - limit) > 1e-9:
        assert (b.lower > limit) == (b.p_above(limit) < b.alpha)


def test_one_pair_has_no_bounds() -> None:
    b = bounds([0.4])
    assert (b.lower, b.upper) == (-inf, inf)
    assert b.p_above(0.0) == 1.0


def test_equal_values_leave_no_doubt() -> None:
    b = bounds([0.01, 0.01, 0.01])
    assert b.lower == b.upper == 0.01
    assert (b.p_above(0.0025), b.p_above(0.02)) == (0.0, 1.0)


@pytest.mark.parametrize("values", [[], [np.nan, 1.0], [np.inf, 0.0]])
def test_what_is_not_finite_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        bounds(values)


def test_holm_by_hand() -> None:
    # Sorted: .01 ≤ .05/4, .013 ≤ .05/3, .03 > .05/2 stops; .04 is not reached although .04 ≤ .05.
    assert holm([0.03, 0.01, 0.04, 0.013]) == (False, True, False, True)
    assert holm([]) == ()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_lies_between_bonferroni_and_no_correction(p_values: list[float]) -> None:
    for p_value, rejected in zip(p_values, holm(p_values), strict=True):
        assert not rejected or p_value <= 0.05
        assert rejected or p_value > 0.05 / len(p_values)


def test_welch_follows_scipy_for_a_difference_near_zero() -> None:
    """With means near 1 the ratio's linearisation is the difference itself."""
    rng = np.random.default_rng(0)
    baseline, candidate = rng.normal(1.0, 1e-4, 5), rng.normal(1.0, 3e-4, 7)
    found = welch_bounds(baseline, candidate)
    expected = stats.ttest_ind(candidate, baseline, equal_var=False).confidence_interval(0.90)
    assert (found.lower, found.upper) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert found.n == 5


def test_welch_ratio_by_hand() -> None:
    # b = 2, c = 3: gap ½. s_b² = 0.02, s_c² = 0.08, n = 2 each. SE² = 0.08/(2·4) + (3/4)²·0.02/2 = 0.01 + 0.005625;
    # ν = 0.015625²/(0.01² + 0.005625²) = 1.854599.
    found = welch_bounds([1.9, 2.1], [2.8, 3.2])
    assert (found.mean, found.n) == (pytest.approx(0.5), 2)
    assert found.standard_error == pytest.approx(0.125)
    assert found.degrees_of_freedom == pytest.approx(1.854599, abs=1e-6)


@given(SIZES, SIZES, st.floats(0.1, 10), st.integers(0, 1000))
def test_welch_difference_agrees_with_scipy(size_b: int, size_c: int, spread: float, seed: int) -> None:
    """Around zero, of both signs, of unequal sizes and spreads."""
    rng = np.random.default_rng(seed)
    baseline, candidate = rng.normal(0.0, 0.01, size_b), rng.normal(0.005, 0.01 * spread, size_c)
    found = welch_difference(baseline, candidate)
    test = stats.ttest_ind(candidate, baseline, equal_var=False, alternative="greater")
    interval = stats.ttest_ind(candidate, baseline, equal_var=False).confidence_interval(0.90)
    assert (found.lower, found.upper) == pytest.approx((interval.low, interval.high), abs=1e-12)
    assert found.p_above(0.0) == pytest.approx(test.pvalue, rel=1e-9)
    assert found.n == min(size_b, size_c)


def test_welch_difference_by_hand() -> None:
    # Means 0 and 2; s_b² = 2 over 2, s_c² = 1 over 3: SE² = 1 + 1/3, ν = (4/3)²/(1/1 + (1/9)/2) = 1.684211.
    found = welch_difference([-1.0, 1.0], [1.0, 2.0, 3.0], alpha=0.025)
    assert (found.mean, found.n, found.alpha) == (2.0, 2, 0.025)
    assert found.standard_error == pytest.approx(sqrt(4 / 3))
    assert found.degrees_of_freedom == pytest.approx(1.684211, abs=1e-6)


@pytest.mark.parametrize("welch", [welch_bounds, welch_difference])
def test_groups_without_a_spread(welch: Callable[..., Bounds]) -> None:
    single = welch([2.0], [2.5, 2.6])
    assert (single.lower, single.upper, single.n) == (-inf, inf, 1)
    equal = welch([2.0, 2.0], [2.5, 2.5, 2.5])
    assert equal.lower == equal.upper == equal.mean
    with pytest.raises(ValueError, match="finite"):
        welch([2.0, np.nan], [2.5, 2.5])


@pytest.mark.parametrize(("tau", "pairs"), [(0.0007, 4), (0.0012, 4), (0.0017, 5), (0.003, 11)])
def test_pairs_for_80_percent_power_are_those_of_parity_9(tau: float, pairs: int) -> None:
    assert pairs_needed(tau, 0.0025) == pairs


def test_no_number_of_pairs_helps_at_the_margin() -> None:
    assert pairs_needed(0.0007, 0.0025, gap=0.0025) is None
    assert power_to_pass(8, 0.0007, 0.0025, gap=0.0025) == pytest.approx(0.05)


@pytest.mark.parametrize("error", [0.0, 0.0005])
def test_power_is_what_simulation_finds(error: float) -> None:
    rng = np.random.default_rng(1)
    n, tau, gap, margin = 6, 0.002, 0.0004, 0.0025
    gaps = rng.normal(gap, tau, (40_000, n)) + rng.normal(0, error, (40_000, 1))
    standard_error = np.sqrt(gaps.var(axis=1, ddof=1) / n + error**2)
    passed = np.mean(gaps.mean(axis=1) + stats.t.ppf(0.95, n - 1) * standard_error < margin)
    assert power_to_pass(n, tau, margin, gap, error) == pytest.approx(passed, abs=0.01)


@given(st.floats(1e-4, 5e-3), st.integers(2, 30))
def test_power_rises_with_pairs_and_falls_with_spread(tau: float, pairs: int) -> None:
    assert power_to_pass(pairs + 1, tau, 0.0025) >= power_to_pass(pairs, tau, 0.0025) - 1e-9
    assert power_to_pass(pairs, 1.5 * tau, 0.0025) <= power_to_pass(pairs, tau, 0.0025) + 1e-9


def test_power_without_spread() -> None:
    assert power_to_pass(4, 0.0, 0.0025) == 1.0
    assert power_to_pass(4, 0.0, 0.0025, gap=0.003) == 0.0
    assert power_to_pass(1, 0.001, 0.0025) == 0.0
