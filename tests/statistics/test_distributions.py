"""The distribution functions that the statistics take from scipy.special, against scipy.stats and against integration."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, special, stats

from fp8migrate.statistics import power
from fp8migrate.statistics.divergence import floor_factor
from fp8migrate.statistics.noninferiority import Bounds, t_quantile
from fp8migrate.statistics.spikes import excess_p_value

FREEDOMS = (1, 1.5, 2, 3, 4.7, 7, 11, 30, 63, 1e4)
same = pytest.approx


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_t_quantile(freedom: float) -> None:
    for probability in (1e-9, 0.001, 0.025, 0.05, 0.4, 0.6, 0.95, 0.975, 0.998, 1 - 1e-9):
        assert t_quantile(probability, freedom) == same(stats.t.ppf(probability, freedom), rel=1e-12)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_t_tail(freedom: float) -> None:
    for t in (-40.0, -3.0, -0.1, 0.0, 0.1, 1.0, 3.0, 10.0, 100.0):
        b = Bounds(mean=t, lower=0.0, upper=0.0, standard_error=1.0, sd=1.0, n=4, degrees_of_freedom=freedom, alpha=0.05)
        assert b.p_above(0.0) == same(stats.t.sf(t, freedom), rel=1e-12)


def test_t_upper_quantile_of_the_floor() -> None:
    for pairs in range(1, 40):
        assert floor_factor(pairs) == same(max(4.0, 3 * stats.t.isf(0.002, max(2, pairs))), rel=1e-12)


@pytest.mark.parametrize("share", [0.1, 3 / 8, 0.5, 0.8])
def test_binomial_tail(share: float) -> None:
    assert excess_p_value(0, 0, share) == stats.binom.sf(-1, 0, share) == 1.0
    for total in (1, 2, 7, 40, 300):
        for candidate in range(total + 1):
            expected = stats.binom.sf(candidate - 1, total, share)
            assert excess_p_value(candidate, total - candidate, share) == same(expected, rel=1e-9, abs=1e-250)


@pytest.mark.parametrize("pairs", [2, 3, 4, 6, 13, 40, 64])
def test_noncentral_t(pairs: int) -> None:
    """Power without a sampling error; below 1e-9 neither scipy.special nor scipy.stats has digits."""
    sd, margin = 0.001, 0.0025
    for shift in (-1e9, -300.0, -30.0, -5.0, -2.0, -0.5, 0.0, 0.5, 2.0, 4.0):
        gap = margin + shift * sd / np.sqrt(pairs)
        found = power.power_to_pass(pairs, sd, margin, gap)
        assert found == same(stats.nct.cdf(-stats.t.ppf(0.95, pairs - 1), pairs - 1, shift), rel=1e-9)
        assert found == same(integrated(-stats.t.ppf(0.95, pairs - 1), pairs - 1, shift), rel=1e-6)


def integrated(x: float, freedom: int, noncentrality: float) -> float:
    """P(T ≤ x), T = (Z + noncentrality)/√(Y/ν): Φ(x·√(y/ν) − noncentrality) over the density of Y ~ χ²."""

    def integrand(y: float) -> float:
        return float(special.ndtr(x * np.sqrt(y / freedom) - noncentrality) * stats.chi2.pdf(y, freedom))

    edges = (0, 0.05 * freedom, freedom, 3 * freedom, 40 * freedom + 100)
    parts = [integrate.quad(integrand, a, b, epsrel=1e-11, epsabs=0) for a, b in pairwise(edges)]
    return sum(value for value, _ in parts)


@pytest.mark.parametrize("pairs", [2, 3, 6, 40])
def test_power_is_a_probability_however_far_the_gap_is_from_the_margin(pairs: int) -> None:
    """Where nctdtr itself is NaN."""
    for shift in (7.5, 8.0, 20.0, 1e6, 1e12):
        assert power.power_to_pass(pairs, 1.0, 0.0, shift) == 0.0
        assert power.power_to_pass(pairs, 1.0, 0.0, -1e12 * shift) == same(1.0)


@pytest.mark.parametrize("pairs", [2, 3, 6, 40])
def test_power_with_a_sampling_error(pairs: int) -> None:
    """The χ² quantiles and the normal probabilities behind it, from scipy.stats."""
    sd, error, margin = 0.002, 0.0005, 0.0025
    middles = (np.arange(201) + 0.5) / 201
    variance = sd**2 * stats.chi2.ppf(middles, pairs - 1) / (pairs - 1)
    standard_error = np.sqrt(variance / pairs + error**2)
    sigma = np.sqrt(sd**2 / pairs + error**2)
    for gap in (-0.01, 0.0, 0.001, 0.0025, 0.004):
        upper_room = margin - stats.t.ppf(0.95, pairs - 1) * standard_error - gap
        expected = np.mean(stats.norm.cdf(upper_room / sigma))
        assert power.power_to_pass(pairs, sd, margin, gap, error) == same(expected, rel=1e-9)
