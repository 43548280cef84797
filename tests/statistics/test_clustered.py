"""s_val: the document-clustered standard error of a paired relative gap."""

from math import sqrt

import numpy as np
import pytest

from fp8migrate.statistics.clustered import clustered_error


def test_by_hand() -> None:
    # One pair, two documents: B = (100, 100), C = (110, 90): δ = 0, residuals ±10, e = ±0.05, s² = 2/1 · 2 · 0.05².
    assert clustered_error([[100.0, 100.0]], [[110.0, 90.0]]) == pytest.approx(sqrt(2 * 2 * 0.05**2))


def test_a_uniform_gap_has_no_sampling_error() -> None:
    b = np.array([[10.0, 30.0, 60.0], [11.0, 29.0, 61.0]])
    assert clustered_error(b, 1.01 * b) == pytest.approx(0.0, abs=1e-15)


def test_effects_that_cancel_over_pairs_do_not_count() -> None:
    b = np.full((2, 4), 100.0)
    effect = np.array([1.0, -1.0, 1.0, -1.0])
    assert clustered_error(b, b + np.array([effect, -effect])) == pytest.approx(0.0, abs=1e-15)
    assert clustered_error(b, b + np.array([effect, effect])) == clustered_error(b[:1], b[:1] + effect)


def test_matches_the_spread_over_samples_of_documents() -> None:
    """Draw documents anew 4,000 times: the gap's SD over draws is what one draw estimates."""
    rng = np.random.default_rng(5)
    gaps, errors = [], []
    for _ in range(4000):
        baseline = rng.gamma(4.0, 250.0, 50)
        candidate = baseline * (1.001 + rng.normal(0, 0.004, 50))
        gaps.append(candidate.sum() / baseline.sum() - 1)
        errors.append(clustered_error(baseline, candidate))
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(gaps), rel=0.05)


def test_unknown_without_two_finite_documents() -> None:
    assert clustered_error([[100.0]], [[101.0]]) is None
    assert clustered_error([[100.0, np.nan]], [[101.0, 1.0]]) is None
    with pytest.raises(ValueError, match="shape"):
        clustered_error([[1.0, 2.0]], [[1.0, 2.0, 3.0]])
