"""How likely a design is to pass, and how many pairs it needs."""

from math import sqrt

import numpy as np
from scipy import special

from fp8migrate.statistics.noninferiority import ALPHA, t_quantile

MAX_PAIRS = 64
_QUADRATURE_POINTS = 201
# nctdtr is NaN above 7.6 and below −1e10, and below a probability of 1e-9 its digits are not to be trusted.
_MOST_NONCENTRAL, _LEAST_NONCENTRAL = 7.0, -1000.0


def power_to_pass(
    pairs: int, sd: float, margin: float, gap: float = 0.0, sampling_error: float = 0.0, alpha: float = ALPHA
) -> float:
    """Probability that U < margin when the true gap is `gap` and pairs scatter with SD `sd` (all relative, as fractions).

    Without a sampling error this is a noncentral t (δ̄ − m)/SE; with one, SE mixes an estimated and a known part, and the
    probability is the normal one averaged over the χ² distribution of the pairs' variance, by quantile midpoints.
    """
    if pairs < 2:
        return 0.0
    freedom = pairs - 1
    critical = t_quantile(1 - alpha, freedom)
    sigma = sqrt(sd**2 / pairs + sampling_error**2)
    if sigma == 0:
        return 1.0 if gap < margin else 0.0
    if sampling_error == 0:
        return _noncentral_t_cdf(-critical, freedom, (gap - margin) / sigma)
    probabilities = (np.arange(_QUADRATURE_POINTS) + 0.5) / _QUADRATURE_POINTS
    variance = sd**2 * 2 * special.gammaincinv(freedom / 2, probabilities) / freedom
    standard_error = np.sqrt(variance / pairs + sampling_error**2)
    return float(np.mean(special.ndtr((margin - critical * standard_error - gap) / sigma)))


def _noncentral_t_cdf(x: float, freedom: float, noncentrality: float) -> float:
    """P(T ≤ x) for x < 0, to 1e-8. T = (Z + noncentrality)/√(χ²/ν), so P ≤ Φ(−noncentrality), which is 1e-12 at 7."""
    if noncentrality > _MOST_NONCENTRAL:
        return 0.0
    return float(special.nctdtr(freedom, max(noncentrality, _LEAST_NONCENTRAL), x))


def pairs_needed(
    sd: float,
    margin: float,
    gap: float = 0.0,
    sampling_error: float = 0.0,
    *,
    power: float = 0.8,
    least: int = 4,
    most: int = MAX_PAIRS,
) -> int | None:
    """Fewest pairs, `least` or more, that pass with probability `power`; None where even `most` do not."""
    for pairs in range(least, most + 1):
        if power_to_pass(pairs, sd, margin, gap, sampling_error) >= power:
            return pairs
    return None
