"""Item evaluations: PARITY.md 7's formula by hand, bounds that cover, and nothing promised where little was seen."""

from math import inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fp8migrate.statistics.items import (
    LEAST_DISCORDANT,
    exact_half_widths,
    items_needed,
    macro_difference,
    paired_difference,
    run_sd,
    share_limits,
    unpaired_difference,
)

Z = 1.6448536269514722


def answers(both: int, only_baseline: int, only_candidate: int, neither: int) -> tuple[list[float], list[float]]:
    baseline = [1.0] * both + [1.0] * only_baseline + [0.0] * only_candidate + [0.0] * neither
    candidate = [1.0] * both + [0.0] * only_baseline + [1.0] * only_candidate + [0.0] * neither
    return baseline, candidate


def test_by_hand() -> None:
    # b = 60, c = 40, N = 1000: Δ = −0.02, SE² = (100 − 400/1000)/10⁶ = 9.96e-5.
    found = paired_difference(*answers(600, 60, 40, 300))
    assert (found.worse, found.better, found.n, found.discordance) == (60, 40, 1000, pytest.approx(0.1))
    assert found.delta == pytest.approx(-0.02)
    assert found.sampling_error == pytest.approx(sqrt(9.96e-5))
    assert found.bounds() == pytest.approx((-0.02 - Z * sqrt(9.96e-5), -0.02 + Z * sqrt(9.96e-5)))
    assert found.sparse is None


def test_two_runs_differ_by_chance_alone() -> None:
    found = paired_difference(*answers(600, 60, 40, 300), run_sd=0.004)
    error = sqrt(9.96e-5 + 2 * 0.004**2)
    assert found.bounds() == pytest.approx((-0.02 - Z * error, -0.02 + Z * error))
    assert run_sd([0.5, 0.52]) == pytest.approx(0.02 / sqrt(2))
    assert run_sd([0.5]) is None


def test_the_p_value_is_the_normal_one() -> None:
    found = paired_difference(*answers(600, 60, 40, 300))
    assert found.p_below(-0.001) == pytest.approx(stats.norm.cdf((-0.02 + 0.001) / sqrt(9.96e-5)), rel=1e-6)
    assert found.p_below(-0.03) == 1.0


def test_the_p_value_inverts_the_bound_also_where_it_is_exact() -> None:
    found = paired_difference(*answers(500, 15, 1, 0))
    assert found.sparse is not None
    assert found.bounds(found.p_below(-0.01))[1] == pytest.approx(-0.01, abs=1e-9)


def test_limits_of_a_share_are_those_of_clopper_and_pearson() -> None:
    for count, n in [(0, 40), (1, 40), (13, 200), (40, 40)]:
        expected = stats.binomtest(count, n).proportion_ci(0.9, "exact")
        assert share_limits(count, n) == pytest.approx((expected.low, expected.high))


def test_no_item_that_differs_is_no_certainty() -> None:
    """Of 100 items none differs: a share of 3 % is still among those that are seen not at all in one case of twenty."""
    found = paired_difference(*answers(60, 0, 0, 40))
    assert found.bounds() == pytest.approx((-(1 - 0.05**0.01), 1 - 0.05**0.01))


def outcomes(n: int, p_b: float, p_c: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All (b, c) with their exact trinomial probability, but for a tail of 1e-9."""
    b = np.arange(min(n, int(stats.binom.isf(1e-10, n, p_b)) + 1) + 1)
    c = np.arange(min(n, int(stats.binom.isf(1e-10, n, p_c)) + 1) + 1)
    grid_b, grid_c = (grid.ravel() for grid in np.meshgrid(b, c))
    inside = grid_b + grid_c <= n
    grid_b, grid_c = grid_b[inside], grid_c[inside]
    weights = stats.multinomial.pmf(np.column_stack([grid_b, grid_c, n - grid_b - grid_c]), n, [p_b, p_c, 1 - p_b - p_c])
    return grid_b, grid_c, weights


CORNERS = [
    (n, expected_b, expected_c)
    for n in (10, 30, 100, 1000)
    for expected_b in (0.5, 2.0, 3.0, 6.0, 12.0)
    for expected_c in (0.0, 0.5, 3.0, 12.0)
    if expected_b + expected_c < 0.9 * n
]


@pytest.mark.parametrize(("n", "expected_b", "expected_c"), CORNERS)
def test_the_exact_interval_covers_in_every_corner(n: int, expected_b: float, expected_c: float) -> None:
    """Coverage summed over all outcomes, not simulated: at least 95 % on either side."""
    truth = (expected_c - expected_b) / n
    covered_below = covered_above = 0.0
    for b, c, weight in zip(*outcomes(n, expected_b / n, expected_c / n), strict=True):
        if weight > 1e-12:
            below, above = exact_half_widths(b, c, n)
            covered_below += weight * ((c - b) / n - below <= truth + 1e-12)
            covered_above += weight * ((c - b) / n + above >= truth - 1e-12)
    assert covered_below >= 0.95 - 1e-6
    assert covered_above >= 0.95 - 1e-6


def test_coverage_where_the_interval_is_now_exact_and_now_normal() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        d = rng.choice([-1, 0, 1], 800, p=[0.016, 0.97, 0.014])
        found = paired_difference((d < 0).astype(float), (d > 0).astype(float))
        covered += found.lower <= -0.002
    assert covered / 2000 >= 0.94


@pytest.mark.parametrize(("size", "passages"), [(5, 150), (2, 400)])
def test_items_of_one_passage_count_as_little_as_they_move_together(size: int, passages: int) -> None:
    """Whole passages flip: bounds as if items stood alone would cover far too seldom."""
    rng = np.random.default_rng(2)
    clusters = np.repeat(np.arange(passages), size).tolist()
    covered = alone = 0
    for _ in range(1000):
        d = np.repeat(rng.choice([-1, 0, 1], passages, p=[0.15, 0.7, 0.15]), size)
        b, c = (d < 0).astype(float), (d > 0).astype(float)
        covered += paired_difference(b, c, clusters=clusters).lower <= 0
        alone += paired_difference(b, c).lower <= 0
    assert covered / 1000 >= 0.94
    assert alone < covered


def test_clustered_by_hand() -> None:
    # 100 passages of two items; in 20 both items turn wrong, in 10 both turn right: Δ = −0.1; sums of residuals −1.8
    # (20×), +2.2 (10×), +0.2 (70×): Σ = 64.8 + 48.4 + 2.8 = 116, SE² = 100/99 · 116 / 200².
    d = np.repeat([-1.0] * 20 + [1.0] * 10 + [0.0] * 70, 2)
    found = paired_difference(d < 0, d > 0, clusters=np.repeat(np.arange(100), 2).tolist())
    assert found.sampling_error == pytest.approx(sqrt(100 / 99 * 116 / 200**2))
    assert (found.clusters, found.sparse) == (100, None)


def test_a_passage_of_its_own_for_every_item_changes_nothing() -> None:
    b, c = answers(300, 30, 20, 50)
    assert paired_difference(b, c, clusters=list(range(400))) == paired_difference(b, c)


def test_few_differing_items_in_few_passages_prove_little() -> None:
    clusters = np.repeat(np.arange(20), 50).tolist()
    alone = paired_difference(*answers(1000, 0, 0, 0))
    together = paired_difference(*answers(1000, 0, 0, 0), clusters=clusters)
    assert together.lower == pytest.approx(-(1 - 0.05 ** (1 / 20)))
    assert alone.lower == pytest.approx(-(1 - 0.05 ** (1 / 1000)))
    one = paired_difference(*answers(30, 0, 0, 0), clusters=["the same"] * 30)
    assert one.lower < -0.9


def test_scores_between_right_and_wrong() -> None:
    rng = np.random.default_rng(3)
    b = rng.uniform(0.2, 0.8, 500)
    c = b + rng.normal(-0.01, 0.05, 500)
    found = paired_difference(b, c)
    d = c - b
    assert found.delta == pytest.approx(d.mean())
    assert found.sampling_error == pytest.approx(d.std() / sqrt(500))
    assert found.discordance == pytest.approx((d**2).mean())


@pytest.mark.parametrize("bad", [[], [0.5, nan], [0.5, inf], [1.5], [-0.1], [[0.5]]])
def test_what_is_no_score_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="scores between 0 and 1"):
        paired_difference(bad, bad)


def test_arms_of_other_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        paired_difference([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match="clusters"):
        paired_difference([1.0], [1.0], clusters=["a", "b"])


def test_aggregates_alone_are_the_weaker_test() -> None:
    paired = paired_difference(*answers(600, 60, 40, 300))
    unpaired = unpaired_difference(0.66, 0.64, n=(1000, 1000))
    assert unpaired is not None
    assert unpaired.delta == pytest.approx(paired.delta)
    assert unpaired.lower < paired.lower
    error = sqrt(0.66 * 0.34 / 1000 + 0.64 * 0.36 / 1000)
    assert unpaired.lower == pytest.approx(-0.02 - Z * error, rel=0.03)


def test_reported_errors_count_where_they_are_wider_and_zero_is_no_certainty() -> None:
    wide = unpaired_difference(0.6, 0.6, errors=(0.03, 0.04), n=(1000, 1000))
    assert wide is not None
    assert wide.bounds() == pytest.approx((-Z * 0.05, Z * 0.05))
    perfect = unpaired_difference(1.0, 1.0, errors=(0.0, 0.0), n=(50, 50))
    assert perfect is not None
    assert perfect.lower == pytest.approx(-(1 - 0.05**0.02))
    assert unpaired_difference(1.0, 1.0, errors=(0.0, 0.0)) is None
    assert unpaired_difference(1.0, 1.0) is None


def test_the_macro_average_by_hand() -> None:
    tasks = [paired_difference(*answers(600, 60, 40, 300)), paired_difference(*answers(300, 30, 50, 20))]
    found = macro_difference(tasks, run_sd=0.002)
    # Δ = (−0.02 + 0.05)/2; SE² = (SE_1² + SE_2²)/4 + 2·0.002².
    error = sqrt((tasks[0].sampling_error ** 2 + tasks[1].sampling_error ** 2) / 4 + 2 * 0.002**2)
    assert found.delta == pytest.approx(0.015)
    assert found.bounds() == pytest.approx((0.015 - Z * error, 0.015 + Z * error))


def test_items_for_power() -> None:
    assert items_needed(0.1, 0.02) == pytest.approx(6.18 * 0.1 / 0.02**2, rel=0.001)
    # Where no item differs the bound is 1 − 0.05^(1/N): below 2 % from N = 149 on.
    assert items_needed(0.0, 0.02) == 149
    assert -paired_difference(*answers(149, 0, 0, 0)).lower < 0.02
    assert -paired_difference(*answers(148, 0, 0, 0)).lower > 0.02


def test_that_many_items_give_that_power() -> None:
    n = items_needed(0.1, 0.02)
    rng = np.random.default_rng(4)
    d = rng.choice([-1, 0, 1], (2000, n), p=[0.05, 0.9, 0.05])
    passed = sum(paired_difference(row < 0, row > 0).lower > -0.02 for row in d)
    assert passed / 2000 == pytest.approx(0.8, abs=0.03)


counts = st.integers(0, 60)


@settings(max_examples=100, deadline=None)
@given(both=counts, b=counts, c=counts, neither=st.integers(1, 200), sd=st.one_of(st.none(), st.floats(0, 0.1)))
def test_bounds_hold_the_estimate_mirror_and_widen(both: int, b: int, c: int, neither: int, sd: float | None) -> None:
    baseline, candidate = answers(both, b, c, neither)
    found, mirrored = paired_difference(baseline, candidate, run_sd=sd), paired_difference(candidate, baseline, run_sd=sd)
    assert found.lower <= found.delta <= found.upper
    assert (mirrored.lower, mirrored.upper) == pytest.approx((-found.upper, -found.lower))
    wider = found.bounds(0.01)
    assert wider[0] <= found.lower
    assert wider[1] >= found.upper
    assert found.lower < 0 or b + c >= LEAST_DISCORDANT or c > 0
    assert 0 < found.p_below(-0.01) <= 1


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=60))
def test_any_scores_give_finite_bounds_that_clusters_never_narrow(rows: list[tuple[float, float, int]]) -> None:
    b, c, groups = (list(column) for column in zip(*rows, strict=True))
    alone, together = paired_difference(b, c), paired_difference(b, c, clusters=groups)
    assert np.isfinite([*alone.bounds(), *together.bounds()]).all()
    assert together.sampling_error >= alone.sampling_error
    assert together.lower <= together.delta <= together.upper


def test_run_noise_told_by_two_runs_has_students_quantile() -> None:
    """t(.95, ν = 1) = 6.3138, by tables: two runs say little about how far runs differ."""
    b, c = np.zeros(1000), np.zeros(1000)
    b[:50], c[50:100] = 1, 1
    known = paired_difference(b, c, run_sd=0.01)
    told = paired_difference(b, c, run_sd=0.01, run_freedom=1)
    items = 1.6448536 * np.sqrt(100) / 1000
    assert known.lower == pytest.approx(-np.hypot(items, 1.6448536 * np.sqrt(2) * 0.01), abs=1e-7)
    assert told.lower == pytest.approx(-np.hypot(items, 6.3137515 * np.sqrt(2) * 0.01), abs=1e-7)


@pytest.mark.parametrize("replicates", [2, 4])
def test_a_task_at_its_margin_passes_in_five_percent_whatever_the_run_noise(replicates: int) -> None:
    """Two points worse, 5,000 items, 5 % discordance, runs that differ by half a point: at most 5 % and three errors pass."""
    rng, margin, n, run = np.random.default_rng(1), 0.02, 5000, 0.005
    passed, draws = 0, 1500
    for _ in range(draws):
        shift = run * (rng.standard_normal() - rng.standard_normal())
        share_c = 0.025 - margin / 2 + shift / 2
        worse, better = rng.multinomial(n, [0.05 - share_c, share_c, 0.95])[:2]
        b, c = np.zeros(n), np.zeros(n)
        b[:worse], c[worse : worse + better] = 1, 1
        told = run * np.sqrt(rng.chisquare(replicates - 1) / (replicates - 1))
        passed += paired_difference(b, c, run_sd=told, run_freedom=replicates - 1).lower > -margin
    assert passed / draws <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / draws)
