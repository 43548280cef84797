"""One-sided non-inferiority on pairs (PARITY.md 4): is the mean relative gap below the margin, or above it?

SE² = s_δ²/n + s_val², ν = n − 1, bounds U, L = δ̄ ± t_.95,ν · SE. s_δ²/n is how the pairs scatter, s_val what the held-out
documents leave open in every pair alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, sqrt

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # scipy.stats takes a second to import; these are the functions beneath it

ALPHA = 0.05


@dataclass(frozen=True)
class Bounds:
    """Mean of n values with one-sided bounds, each at level `alpha`. n = 1 has no spread: its bounds are infinite."""

    mean: float
    lower: float
    upper: float
    standard_error: float
    sd: float
    n: int
    degrees_of_freedom: float
    alpha: float

    def p_above(self, limit: float) -> float:
        """p-value of H0: true mean ≤ limit. Small: the gap is above the limit."""
        if self.n < 2:
            return 1.0
        if self.standard_error == 0:
            return 0.0 if self.mean > limit else 1.0
        return float(special.stdtr(self.degrees_of_freedom, (limit - self.mean) / self.standard_error))


def bounds(values: ArrayLike, sampling_error: float = 0.0, alpha: float = ALPHA) -> Bounds:
    """Bounds of the mean of `values` (n,), n ≥ 1, all finite. sampling_error: s_val, in the unit of the values."""
    x = np.asarray(values, dtype=np.float64)
    _require_finite(x)
    mean, n = float(x.mean()), x.size
    if n == 1:
        return Bounds(mean, -inf, inf, inf, inf, 1, 0, alpha)
    sd = float(x.std(ddof=1))
    standard_error = sqrt(sd**2 / n + sampling_error**2)
    half = t_quantile(1 - alpha, n - 1) * standard_error
    return Bounds(mean, mean - half, mean + half, standard_error, sd, n, n - 1, alpha)


def welch_bounds(baseline: ArrayLike, candidate: ArrayLike, alpha: float = ALPHA) -> Bounds:
    """Bounds of the relative gap of two unpaired groups, (mean_c − mean_b)/mean_b, by Welch–Satterthwaite.

    The ratio's error is linearised (delta method): SE² = s_c²/(n_c·b²) + (c/b²)²·s_b²/n_b. `n` is the smaller group's.
    """
    b, c = _groups(baseline, candidate)
    mean_b, mean_c = float(b.mean()), float(c.mean())
    return _welch((mean_c - mean_b) / mean_b, mean_c / mean_b**2 * b, c / mean_b, alpha)


def welch_difference(baseline: ArrayLike, candidate: ArrayLike, alpha: float = ALPHA) -> Bounds:
    """Bounds of the difference of two unpaired groups, mean_c − mean_b, by Welch–Satterthwaite, in the unit of the values.

    For values that are relative or logarithmic already, as the growth of a loss: log late − log early, which takes both
    signs and has no ratio. SE² = s_c²/n_c + s_b²/n_b. `n` is the smaller group's.
    """
    b, c = _groups(baseline, candidate)
    return _welch(float(c.mean()) - float(b.mean()), b, c, alpha)


def _groups(baseline: ArrayLike, candidate: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    b, c = np.asarray(baseline, dtype=np.float64), np.asarray(candidate, dtype=np.float64)
    _require_finite(b)
    _require_finite(c)
    return b, c


def _welch(gap: float, b: np.ndarray, c: np.ndarray, alpha: float) -> Bounds:
    """Bounds of `gap` whose variance is that of mean(c) − mean(b); ν by Satterthwaite (1946)."""
    n = min(b.size, c.size)
    if n < 2:
        return Bounds(gap, -inf, inf, inf, inf, n, 0, alpha)
    part_b, part_c = float(b.var(ddof=1)) / b.size, float(c.var(ddof=1)) / c.size
    variance = part_b + part_c
    if variance == 0:
        return Bounds(gap, gap, gap, 0.0, 0.0, n, n - 1, alpha)
    freedom = variance**2 / (part_c**2 / (c.size - 1) + part_b**2 / (b.size - 1))
    standard_error = sqrt(variance)
    half = t_quantile(1 - alpha, freedom) * standard_error
    return Bounds(gap, gap - half, gap + half, standard_error, standard_error * sqrt(n), n, freedom, alpha)


@lru_cache(maxsize=1024)
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Student's t quantile."""
    return float(special.stdtrit(degrees_of_freedom, probability))


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> tuple[bool, ...]:
    """Which hypotheses Holm's step-down procedure rejects, in the order given (Holm 1979)."""
    rejected = [False] * len(p_values)
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > alpha / (len(p_values) - rank):
            break
        rejected[index] = True
    return tuple(rejected)


def _require_finite(x: np.ndarray) -> None:
    if x.ndim != 1 or x.size == 0 or not np.isfinite(x).all():
        raise ValueError(f"expected a non-empty row of finite numbers, got {x!r}")
