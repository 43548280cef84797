"""Pairs are found by the noise that two runs share, on curves made with the figures of PARITY.md 1."""

import numpy as np
import pytest

from fp8migrate.statistics.pairing import Pairing, noise_correlation, pair_up

STEPS = 1400
BATCH_NOISE, OWN_NOISE = 0.105, 0.004


def curve(order: int, run: int, *, gap: float = 0.0) -> np.ndarray:
    """A loss that falls like a power law; its batch noise by data order, its own by run."""
    steps = np.arange(1, STEPS + 1)
    batch = np.random.default_rng([1, order]).normal(0, BATCH_NOISE, STEPS)
    own = np.random.default_rng([2, order, run]).normal(0, OWN_NOISE, STEPS)
    return (3 + 7 * steps**-0.3) * (1 + gap) + batch + own


def correlations(baselines: list[np.ndarray], candidates: list[np.ndarray]) -> np.ndarray:
    found = [[noise_correlation(b, c) for c in candidates] for b in baselines]
    return np.array([[np.nan if value is None else value for value in row] for row in found])


@pytest.mark.parametrize("gap", [0.0, 0.0025, 0.05])
def test_one_data_order_is_recognised_whatever_the_gap(gap: float) -> None:
    found = noise_correlation(curve(1, 0), curve(1, 1, gap=gap))
    # Expected by construction: σ² / (σ² + own²) = 0.998…
    assert found == pytest.approx(BATCH_NOISE**2 / (BATCH_NOISE**2 + OWN_NOISE**2), abs=0.002)


def test_other_orders_share_the_trend_and_are_no_pair() -> None:
    found = [noise_correlation(curve(a, 0), curve(b, 0)) for a in range(8) for b in range(8, 16)]
    assert max(abs(value) for value in found if value is not None) < 0.2


def test_pairs_are_found_in_any_order() -> None:
    baselines = [curve(order, 0) for order in (1, 2, 3, 4)]
    candidates = [curve(order, 1) for order in (3, 1, 4, 2)]
    assert pair_up(correlations(baselines, candidates)) == Pairing("pairs", ((0, 1), (1, 3), (2, 0), (3, 2)))


def test_one_data_order_for_all_runs_makes_no_pairs() -> None:
    baselines, candidates = [curve(1, run) for run in range(3)], [curve(1, run) for run in range(3, 8)]
    assert pair_up(correlations(baselines, candidates)).kind == "shared"


def test_partial_matches_are_not_paired() -> None:
    baselines, candidates = [curve(1, 0), curve(2, 0), curve(3, 0)], [curve(1, 1), curve(2, 1), curve(9, 1)]
    assert pair_up(correlations(baselines, candidates)) == Pairing("unpaired")


def test_what_tells_nothing_is_unknown() -> None:
    short, flat = curve(1, 0)[:60], np.full(STEPS, 2.5)
    broken = curve(1, 0)
    broken[-5] = np.nan
    assert noise_correlation(short, short) is None
    assert noise_correlation(flat, flat) is None
    assert noise_correlation(broken, curve(1, 1)) is None
    assert pair_up(np.array([[np.nan]])) == Pairing("unknown")
    assert pair_up(np.empty((0, 0))) == Pairing("unknown")


def test_curves_on_other_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="not on the same steps"):
        noise_correlation(curve(1, 0), curve(1, 0)[1:])


def test_loss_smoothed_by_a_moving_average_is_still_recognised() -> None:
    weights = 0.1 * 0.9 ** np.arange(60)
    left, right, other = (np.convolve(c, weights)[:STEPS] for c in (curve(1, 0), curve(1, 1), curve(2, 0)))
    assert (noise_correlation(left, right) or 0.0) > 0.9
    assert abs(noise_correlation(left, other) or 0.0) < 0.5
