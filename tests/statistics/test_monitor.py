"""The live watch: by hand, how fast it can alarm, how often it does so for nothing, and what it finds."""

import numpy as np
import pytest
from scipy import stats

from fp8migrate.statistics.divergence import floor_level
from fp8migrate.statistics.monitor import watch, watch_thresholds

RUNS = 2000


def test_three_blocks_by_hand() -> None:
    # w = 1/2, 1/6, 1/12. A = ½·1.6 = 0.8; (0.8 + 1/6)·0.4 = 0.38667; (0.38667 + 1/12)·1.6 = 0.752; unstaked 1/2, 1/3, 1/4.
    found = watch([0.3, 0.1, 0.3], [0.2, 0.2, 0.2])
    np.testing.assert_allclose(found.wealth, [0.8 + 1 / 2, 0.386666667 + 1 / 3, 0.752 + 1 / 4])
    assert found.alarm is None


def all_above(blocks: int, first: int = 0) -> float:
    """Wealth from the bets placed at `blocks` blocks above in a row, the first of them block `first`, in closed form."""
    return sum(1.6 ** (blocks - k) / ((first + k + 1) * (first + k + 2)) for k in range(blocks))


def test_fewest_blocks_to_an_alarm_from_the_start() -> None:
    assert all_above(7) + 1 / 8 < 20 < all_above(8) + 1 / 9
    assert watch(np.ones(30), 0.0).alarm == 8 - 1


def test_fewest_blocks_to_an_alarm_after_fifty_quiet_ones() -> None:
    # What the quiet blocks leave of their own bets: mostly the last one's, 0.4/(50·51) and 0.16/(49·50) and so on.
    left = sum(0.4 ** (50 - j) / ((j + 1) * (j + 2)) for j in range(50))
    expected = [left * 1.6**n + all_above(n, first=50) + 1 / (51 + n) for n in (20, 21)]
    assert expected[0] < 20 < expected[1]
    found = watch(np.concatenate([-np.ones(50), np.ones(30)]), 0.0)
    assert found.alarm == 50 + 21 - 1
    assert found.wealth[[69, 70]] == pytest.approx(expected)


def test_a_gap_at_its_threshold_is_not_above_it() -> None:
    assert watch(np.full(500, 0.01), np.full(500, 0.01)).alarm is None


def test_a_block_without_a_value_moves_nothing() -> None:
    with_holes = watch([np.nan, 1.0, np.nan, 1.0], 0.0).wealth
    np.testing.assert_array_equal(with_holes[[1, 3]], watch([1.0, 1.0], 0.0).wealth)
    assert (with_holes[0], with_holes[2]) == (1.0, with_holes[1])
    assert watch(np.full(100, np.inf), 0.0).alarm == 7
    assert watch([], 0.0).wealth.size == 0


def test_what_cannot_be_watched_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        watch([0.1, 0.2], [0.1, np.nan])
    with pytest.raises(ValueError, match="floor"):
        watch_thresholds(0.0025, np.zeros(3), 0)


def test_thresholds_by_hand() -> None:
    # τ = √((0.1² + 0.1²)/2) % = 0.1 %; t_.975,2 = 4.302653 from a printed table.
    floor = floor_level(np.array([[0.001], [-0.001]]))
    assert watch_thresholds(0.0025, floor, 2)[0] == pytest.approx(0.0025 + 4.302653 * 0.001, abs=1e-9)


def test_false_alarms_over_a_thousand_blocks_with_the_median_at_the_threshold() -> None:
    """The worst of the null. Ville: at most 5 % however long the run; heavy tails change nothing, only the signs count."""
    gaps = np.random.default_rng(0).standard_t(2, (RUNS, 1000))
    alarms = sum(watch(run, 0.0).alarm is not None for run in gaps)
    # Found: 4 %. A run of finite length stays below the bound.
    assert alarms / RUNS <= 0.05


def test_false_alarms_with_a_persistent_offset_and_an_estimated_floor() -> None:
    """A candidate worse by exactly the margin, its offset of the floor's SD, τ from four floor pairs: 7.5 % at most."""
    rng = np.random.default_rng(1)
    tau, margin, blocks = 0.0017, 0.0025, 100
    alarms = 0
    for _ in range(RUNS):
        floor = floor_level(rng.normal(0, tau, (4, 1)) + rng.normal(0, tau / 20, (4, blocks)))
        gaps = margin + rng.normal(0, tau) + rng.normal(0, tau / 20, blocks)
        alarms += watch(gaps, watch_thresholds(margin, floor, 4)).alarm is not None
    assert alarms / RUNS <= 0.075


@pytest.mark.parametrize(("share_above", "within"), [(0.84, 80), (0.9, 60), (0.98, 36)])
def test_a_shift_is_found(share_above: float, within: int) -> None:
    """From block 200 on so many blocks lie above: nine runs in ten are caught within so many blocks, none before."""
    rng = np.random.default_rng(2)
    shift = stats.norm.ppf(share_above)
    alarms = [watch(np.concatenate([rng.normal(-1, 1, 200), rng.normal(shift, 1, 200)]), 0.0).alarm for _ in range(300)]
    assert all(alarm is None or alarm >= 200 for alarm in alarms)
    assert np.mean([alarm is not None and alarm < 200 + within for alarm in alarms]) >= 0.9
