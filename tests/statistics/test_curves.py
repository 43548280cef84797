"""Windows, blocks, divergence, spikes, drift: what is read off training curves."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fp8migrate.statistics import divergence as rule
from fp8migrate.statistics.drift import drift, drift_of_groups, widening
from fp8migrate.statistics.permutation import sign_flip_p_value
from fp8migrate.statistics.robust import block_medians, final_window, robust_mean, trailing_mean
from fp8migrate.statistics.spikes import excess_p_value, own_spikes, spike_events, spike_steps
from fp8migrate.statistics.tokens import share_to_make_up

NO_FLOOR = 0


@pytest.mark.parametrize(("points", "length"), [(2000, 200), (1230, 123), (1231, 124), (150, 50), (500, 50), (30, 30), (0, 0)])
def test_final_window(points: int, length: int) -> None:
    window = final_window(points)
    assert (window.start, window.stop) == (points - length, points)


def test_robust_mean_is_the_median_of_ten_block_means() -> None:
    values = np.arange(100.0)
    assert robust_mean(values) == 49.5
    # The first block's mean leaves the middle: the median moves from between 44.5 and 54.5 to between 54.5 and 64.5.
    values[3] = 1e6
    assert robust_mean(values) == 59.5
    assert robust_mean(np.array([1.0, 2.0, 30.0])) == 2.0
    with pytest.raises(ValueError, match="no values"):
        robust_mean(np.array([]))


def test_one_spike_moves_the_robust_mean_by_no_more_than_the_spread_of_blocks() -> None:
    values = np.random.default_rng(0).normal(2.0, 0.1, 200)
    spiked = values.copy()
    spiked[77] = 450.0
    assert abs(robust_mean(spiked) - robust_mean(values)) < 0.02


@given(st.integers(0, 300), st.integers(1, 20), st.integers(0, 5))
def test_block_medians_are_numpy_medians_of_finite_values(size: int, blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=size)
    values[rng.random(size) < 0.1] = np.nan
    edges = np.linspace(0, size, blocks + 1).round().astype(int)
    parts = [values[start:stop] for start, stop in pairwise(edges)]
    expected = [np.median(p[np.isfinite(p)]) if np.isfinite(p).any() else np.nan for p in parts]
    np.testing.assert_allclose(block_medians(values, blocks), expected)


def test_trailing_mean() -> None:
    np.testing.assert_allclose(trailing_mean(np.array([1.0, 2.0, 3.0, 10.0]), 2), [1.0, 1.5, 2.5, 6.5])


def blocks(**above: float) -> np.ndarray:
    """100 quiet blocks, with `b<i>=value` above."""
    found = np.zeros(100)
    for name, value in above.items():
        found[int(name[1:])] = value
    return found


def limits(margin: float = 0.0025) -> np.ndarray:
    return rule.threshold(margin, np.zeros(100), NO_FLOOR)


def test_threshold_is_the_largest_of_one_percent_four_margins_and_the_floor() -> None:
    assert rule.threshold(0.0025, np.zeros(1), 0)[0] == 0.01
    assert rule.threshold(0.01, np.zeros(1), 0)[0] == 0.04
    assert rule.threshold(0.0025, np.full(1, 0.01), 0)[0] == 0.0425
    # Four floor pairs: 3 · t_.998,4 floors.
    assert rule.threshold(0.0025, np.full(1, 0.01), 4)[0] == pytest.approx(0.0025 + 0.03 * stats.t.ppf(0.998, 4))
    assert rule.threshold(0.0025, np.zeros(1), 0, penalty=0.0024)[0] == pytest.approx(0.0124)
    assert rule.threshold(0.0025, np.zeros(1), 0, penalty=5.0)[0] == pytest.approx(0.02)
    assert rule.threshold(0.0025, np.zeros(1), 0, penalty=-0.1)[0] == 0.01


def test_five_blocks_in_a_row_diverge_and_four_do_not() -> None:
    four = dict.fromkeys(("b40", "b41", "b42", "b43"), 0.02)
    assert rule.divergence(blocks(**four), limits()) is None
    found = rule.divergence(blocks(**four, b44=0.03), limits())
    assert found is not None
    assert (found.share, found.gap, found.threshold) == (0.45, 0.03, 0.01)


def test_the_last_three_diverge_unless_they_fall() -> None:
    assert rule.divergence(blocks(b97=0.02, b98=0.02, b99=0.02), limits()) is not None
    assert rule.divergence(blocks(b97=0.03, b98=0.025, b99=0.02), limits()) is None
    assert rule.divergence(blocks(b98=0.02, b99=0.02), limits()) is None


def test_the_first_five_percent_are_ignored_and_a_better_candidate_is_no_divergence() -> None:
    early = np.zeros(100)
    early[:8] = 0.5
    assert rule.divergence(early, limits()) is None
    assert rule.divergence(np.full(100, -0.5), limits()) is None


def test_a_cut_run_is_judged_up_to_where_it_got() -> None:
    gap = np.concatenate([np.zeros(590), np.full(30, 0.05), np.full(380, np.nan)])
    found = rule.divergence(rule.gap_blocks(gap), limits())
    assert found is not None
    assert found.share == pytest.approx(0.62)


def test_short_runs_go_by_quarters() -> None:
    assert rule.num_blocks(499) == 4
    assert rule.num_blocks(500) == 100
    quarter = rule.threshold(0.0025, np.zeros(4), NO_FLOOR)
    assert rule.divergence(np.array([0.0, 0.0, 0.012, 0.013]), quarter) is not None
    assert rule.divergence(np.array([0.0, 0.0, 0.014, 0.013]), quarter) is None
    assert rule.divergence(np.array([0.0, 0.0, 0.0, 0.009]), quarter) is None
    assert rule.divergence(np.array([0.0, 0.0, 0.02, np.nan]), quarter) is None


def test_floor_level_is_around_zero_and_skips_what_is_not_finite() -> None:
    level = rule.floor_level(np.array([[3.0, np.nan], [-4.0, 2.0]]))
    np.testing.assert_allclose(level, [np.sqrt(12.5), 2.0])


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(2.0, 0.05, size)


def test_spikes_less_than_fifty_steps_apart_are_one() -> None:
    values = noise(1000)
    values[[300, 330, 600]] += 2.0
    assert spike_steps(values).tolist() == [300, 330, 600]
    assert [event.tolist() for event in spike_events(spike_steps(values))] == [[300, 330], [600]]
    assert spike_events(np.array([100, 150])) != []
    assert len(spike_events(np.array([100, 150]))) == 2
    assert len(spike_events(np.array([100, 149]))) == 1


def test_no_spike_without_history_and_none_in_noise() -> None:
    assert spike_steps(np.array([1.0, 100.0])).size == 0
    early = noise(400)
    early[100] += 5
    assert spike_steps(early).size == 0
    assert spike_steps(noise(5000)).size == 0


def test_a_spike_at_the_same_step_is_data() -> None:
    baseline, candidate = noise(1000, 1), noise(1000, 2)
    baseline[[300, 800]] += 2.0
    candidate[[300, 301, 600]] += 2.0
    found = own_spikes(baseline, candidate)
    assert (found.baseline, found.candidate, found.shared) == (1, 1, 1)


def test_excess_by_hand() -> None:
    assert excess_p_value(7, 0) == pytest.approx(2**-7)
    assert excess_p_value(6, 0) == pytest.approx(2**-6)
    assert excess_p_value(0, 0) == 1.0
    assert excess_p_value(9, 1) == pytest.approx(stats.binomtest(9, 10, alternative="greater").pvalue)


def test_excess_counts_the_runs_of_each_arm() -> None:
    # Three candidate runs against five: of 2 spikes both, (3/8)²; of 2 at least one, 1 − (5/8)².
    assert excess_p_value(2, 0, share=3 / 8) == pytest.approx(9 / 64)
    assert excess_p_value(1, 1, share=3 / 8) == pytest.approx(1 - 25 / 64)
    assert excess_p_value(0, 0, share=3 / 8) == 1.0
    for share in (0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="share"):
            excess_p_value(1, 1, share=share)


def test_a_gap_linear_in_log_steps_is_projected_onto_its_line() -> None:
    steps = np.arange(1, 2001)
    gaps = [slope * np.log(steps / 2000) for slope in (0.0005, 0.0006, 0.0007)]
    growth = np.array([widening(gap) for gap in gaps])
    # The windows' medians lie at 55 % and 95 % of the run.
    np.testing.assert_allclose(growth, np.array([0.0005, 0.0006, 0.0007]) * np.log(0.95 / 0.55), rtol=1e-2)
    found = drift(growth, np.zeros(3), 10.0)
    assert found.projected.mean == pytest.approx(0.0006 * np.log(10), rel=1e-2)
    assert found.widening.lower > 0


def test_permutation_by_hand() -> None:
    # All four below the limit: only the observed pattern of 16 is as low.
    assert sign_flip_p_value([-1.0, -2.0, -3.0, -4.0], 0.0) == 1 / 16
    assert sign_flip_p_value([1.0, 2.0, 3.0, 4.0], 0.0) == 1.0


@pytest.mark.parametrize("size", [8, 20])
def test_permutation_agrees_with_scipy(size: int) -> None:
    values = np.random.default_rng(4).normal(-0.2, 1.0, size)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="less", n_resamples=100_000, rng=0
    ).pvalue
    assert sign_flip_p_value(values, 0.0) == pytest.approx(expected, abs=0.01)


def test_extra_training_on_a_log_linear_curve() -> None:
    steps = np.arange(1, 10_001)
    losses = 4.0 - 0.2 * np.log(steps)
    share = share_to_make_up(0.01, steps, losses)
    # A gap of 1 % of the loss at the end, 0.01 · L, takes exp(0.01 · L / 0.2) − 1 more.
    assert share == pytest.approx(np.exp(0.01 * losses[-250] / 0.2) - 1, rel=0.02)


@pytest.mark.parametrize("losses", [np.full(1000, 2.0), np.linspace(1.0, 2.0, 1000), np.full(1000, np.nan), np.ones(10)])
def test_extra_training_is_unknown_where_the_loss_does_not_fall(losses: np.ndarray) -> None:
    assert share_to_make_up(0.01, np.arange(1, losses.size + 1), losses) is None


@pytest.mark.parametrize("noise", [0.0, 1e-9, 0.004, 0.1])
@pytest.mark.parametrize("seed", range(8))
def test_spikes_by_running_sums_are_those_of_the_windows_themselves(noise: float, seed: int) -> None:
    """The windows written out: above their mean by six of their SDs; NaN is no spike and no history, an Inf is a spike."""
    rng = np.random.default_rng(seed)
    values = 3 + 8 * np.exp(-np.arange(2000) / 300) + noise * rng.standard_normal(2000)
    for place in rng.integers(0, 2000, 5):
        values[place] = rng.choice([values[place] * 1.02, values[place] * 450, np.nan, np.inf])
    expected = []
    for place in range(128, 2000):
        before = values[place - 128 : place]
        if np.isfinite(before).all() and values[place] > before.mean() + 6 * before.std(ddof=1):
            expected.append(place)
    assert spike_steps(values).tolist() == expected


def test_the_noise_of_a_block_is_that_between_neighbours() -> None:
    """White noise of 3 % a step in 100 blocks of 10: a median of ten has 1.2533 · 3 % / √10 = 1.19 % by the asymptotic rule."""
    gap = 0.01 * np.arange(1000) / 1000 + 0.03 * np.random.default_rng(0).standard_normal(1000)
    assert rule.block_noise(gap, 100) == pytest.approx(1.2533 * 0.03 / 10**0.5, rel=0.05)
    blocks = rule.gap_blocks(0.03 * np.random.default_rng(1).standard_normal(100_000))
    assert rule.block_noise(0.03 * np.random.default_rng(1).standard_normal(100_000), 100) == pytest.approx(
        blocks.std(), rel=0.2
    )
    assert rule.block_noise(np.full(1000, np.nan), 100) == 0.0


def test_drift_of_groups_by_hand() -> None:
    """Growths of the logarithm 0 and 0.002 against 0.004 and 0.006: 0.004 more. ln 10 / ln(0.95/0.55) = 4.21299 further on.

    Ends of ln 3 and ln 3.003: projected gap ln(3.003/3) + 4.21299 · 0.004.
    """
    found = drift_of_groups(([0.0, 0.002], [0.004, 0.006]), (np.log([3.0, 3.0]), np.log([3.003, 3.003])), 10.0)
    assert found.widening.mean == pytest.approx(0.004)
    assert found.widening.degrees_of_freedom == pytest.approx(2)
    assert found.projected.mean == pytest.approx(np.log(3.003 / 3.0) + 4.21299 * 0.004, rel=1e-5)
