"""Item evaluations (PARITY.md 7): the difference of two models' scores on the same items, with one-sided bounds.

With b items that only the baseline answers and c that only the candidate does, Δ = (c − b)/N and
SE² = (b + c − (b − c)²/N)/N² + 2·s_run²: McNemar's variance, and what two training runs differ by even without FP8.
Values are shares (0.01 is one percentage point); positive: the candidate is better.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, log, log1p, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from fp8migrate.statistics.noninferiority import ALPHA, t_quantile

Array = NDArray[np.float64]

# Below so many differing items the normal approximation is not good enough (PARITY.md 7).
LEAST_DISCORDANT = 25
POWER = 0.8
_LEAST_P = 1e-12
_BISECTIONS = 60


@dataclass(frozen=True)
class Difference(ABC):
    """A difference of scores. run_sd: SD of a score over training runs (s_run); None: not known, counted as 0.

    run_freedom: degrees of freedom that run_sd was estimated with, runs − 1. With the normal quantile of PARITY.md 7 a task at
    its margin passes in 15 % of simulations instead of 5 % where two runs tell an s_run of a point; Student's keeps to it.
    """

    delta: float
    run_sd: float | None
    run_freedom: float = field(default=inf, kw_only=True)

    @abstractmethod
    def sampling(self, alpha: float) -> tuple[float, float]:
        """How far below and above `delta` the items alone leave it open, each side at level `alpha`."""

    def bounds(self, alpha: float = ALPHA) -> tuple[float, float]:
        """Lower and upper bound, each one-sided at level `alpha` ≤ 0.5. Both runs add s_run² to the variance."""
        below, above = self.sampling(alpha)
        quantile = _z(alpha) if self.run_freedom == inf else t_quantile(1 - alpha, self.run_freedom)
        run = quantile * sqrt(2.0) * (self.run_sd or 0.0)
        return self.delta - sqrt(below**2 + run**2), self.delta + sqrt(above**2 + run**2)

    @property
    def lower(self) -> float:
        return self.bounds()[0]

    @property
    def upper(self) -> float:
        return self.bounds()[1]

    def p_below(self, limit: float) -> float:
        """p-value of H0: true Δ ≥ limit, by inverting the upper bound. Between 1e-12 and 0.5; 1 where Δ ≥ limit."""
        if self.delta >= limit:
            return 1.0
        low, high = log(_LEAST_P), log(0.5)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            low, high = (low, middle) if self.bounds(np.exp(middle))[1] < limit else (middle, high)
        return float(np.exp(high))


@dataclass(frozen=True)
class Sparse:
    """Few differing items (or clusters of items): their counts, of `units`. scale: from shares of units to shares of items."""

    worse: float
    better: float
    units: int
    scale: float


@dataclass(frozen=True)
class PairedDifference(Difference):
    """The same n items in both arms. worse, better: b and c, the items that only one arm does better.

    sampling_error: the item part of SE. discordance: mean squared difference an item; (b + c)/N where scores are 0 or 1.
    clusters: passages that items share, None where every item stands alone. sparse: set where b + c < 25.
    """

    sampling_error: float
    n: int
    worse: int
    better: int
    discordance: float
    clusters: int | None = None
    sparse: Sparse | None = None

    def sampling(self, alpha: float) -> tuple[float, float]:
        normal = _z(alpha) * self.sampling_error
        if self.sparse is None:
            return normal, normal
        s = self.sparse
        below, above = exact_half_widths(s.worse, s.better, s.units, alpha)
        return max(normal, s.scale * below), max(normal, s.scale * above)


@dataclass(frozen=True)
class UnpairedDifference(Difference):
    """Two aggregates without their items: a much weaker test, for it does not see that the items are the same."""

    baseline: float
    candidate: float
    errors: tuple[float, float]
    n: tuple[int, int] | None

    def sampling(self, alpha: float) -> tuple[float, float]:
        normal = _z(alpha) * sqrt(self.errors[0] ** 2 + self.errors[1] ** 2)
        if self.n is None:
            return normal, normal
        low_b, high_b = share_limits(self.baseline * self.n[0], self.n[0], alpha)
        low_c, high_c = share_limits(self.candidate * self.n[1], self.n[1], alpha)
        below = sqrt((self.candidate - low_c) ** 2 + (high_b - self.baseline) ** 2)
        above = sqrt((high_c - self.candidate) ** 2 + (self.baseline - low_b) ** 2)
        return max(normal, below), max(normal, above)


@dataclass(frozen=True)
class MacroDifference(Difference):
    """The plain mean over tasks, whose items are independent. run_sd: of the mean itself, not of a task."""

    tasks: tuple[Difference, ...]

    def sampling(self, alpha: float) -> tuple[float, float]:
        halves = np.array([task.sampling(alpha) for task in self.tasks])
        below, above = np.sqrt((halves**2).sum(axis=0)) / len(self.tasks)
        return float(below), float(above)


def paired_difference(
    baseline: ArrayLike,
    candidate: ArrayLike,
    *,
    clusters: Sequence[Hashable] | None = None,
    run_sd: float | None = None,
    run_freedom: float = inf,
) -> PairedDifference:
    """Scores (n,) of the same items, in 0 … 1: right or wrong, or partly right. ValueError for anything else.

    clusters: (n,) what each item shares with others (a passage). Then the item variance is that of cluster sums of
    residuals, G/(G − 1)·Σ_g (Σ_i∈g (d_i − Δ))²/N² (Cochran, Sampling Techniques; Miller, Adding Error Bars to Evals,
    2024), at least as large as if items stood alone.
    """
    b, c = _scores(baseline), _scores(candidate)
    if b.shape != c.shape:
        raise ValueError(f"baseline {b.shape} and candidate {c.shape} differ in shape")
    d = c - b
    n, delta = d.size, float(d.mean())
    worse, better = int((d < 0).sum()), int((d > 0).sum())
    variance = max(0.0, float(d @ d) - n * delta**2) / n**2
    groups = _groups(clusters, n)
    if groups is not None:
        variance = max(variance, _clustered_variance(d - delta, groups))
    return PairedDifference(
        delta=delta,
        run_sd=run_sd,
        run_freedom=run_freedom,
        sampling_error=sqrt(variance),
        n=n,
        worse=worse,
        better=better,
        discordance=float(d @ d) / n,
        clusters=None if groups is None else int(groups.max()) + 1,
        sparse=_sparse(d, groups) if worse + better < LEAST_DISCORDANT else None,
    )


def _scores(values: ArrayLike) -> Array:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or x.size == 0 or not ((x >= 0) & (x <= 1)).all():
        raise ValueError("expected a non-empty row of scores between 0 and 1")
    return x


def _groups(clusters: Sequence[Hashable] | None, n: int) -> NDArray[np.int64] | None:
    """Clusters numbered from 0; None where no two items share one."""
    if clusters is None:
        return None
    if len(clusters) != n:
        raise ValueError(f"{len(clusters)} clusters for {n} items")
    numbers: dict[Hashable, int] = {}
    found = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    return found if len(numbers) < n else None


def _clustered_variance(residuals: Array, groups: NDArray[np.int64]) -> float:
    """Of the mean. One cluster alone says nothing about others: then all its items may move together."""
    sums = np.bincount(groups, weights=residuals)
    if sums.size < 2:
        return float(residuals @ residuals) / residuals.size
    return float(sums.size / (sums.size - 1) * (sums @ sums)) / residuals.size**2


def _sparse(d: Array, groups: NDArray[np.int64] | None) -> Sparse:
    """Counts for the exact interval: of items, or of whole clusters, each as if all its items moved together."""
    if groups is None:
        return Sparse(int((d < 0).sum()), int((d > 0).sum()), d.size, 1.0)
    sums, sizes = np.bincount(groups, weights=d), np.bincount(groups)
    # A cluster's share of the items by the size of the cluster that an item is in, which is above that of a mean cluster.
    scale = float(sizes @ sizes) / d.size * sizes.size / d.size
    return Sparse(int((sums < 0).sum()), int((sums > 0).sum()), sizes.size, scale)


def exact_half_widths(worse: float, better: float, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """How far below and above (better − worse)/n its one-sided bounds lie, each at level `alpha`.

    Each share has exact limits (Clopper and Pearson 1934); those of their difference follow by the method of variance
    estimates recovery (Zou and Donner 2008; for paired shares Newcombe 1998, method 10): below² = x² + y² − 2·r·x·y with
    x = p_c − L_c, y = U_b − p_b, and r the correlation of two counts of one multinomial. Summed exactly over all outcomes
    for 10 to 1,000 items, the bounds cover in at least 95 % wherever the truth lies; at b = c = 0 and n items the lower
    one is that of a share never seen, 1 − 0.05^(1/n). Conditioning on b + c instead would promise a certain Δ = 0 there.
    """
    p_b, p_c = worse / n, better / n
    low_b, high_b = share_limits(worse, n, alpha)
    low_c, high_c = share_limits(better, n, alpha)
    odds = p_b * p_c / ((1 - p_b) * (1 - p_c)) if worse < n and better < n else 0.0
    r = -sqrt(odds)
    return _recovered(p_c - low_c, high_b - p_b, r), _recovered(high_c - p_c, p_b - low_b, r)


def _recovered(x: float, y: float, r: float) -> float:
    return sqrt(max(0.0, x * x + y * y - 2 * r * x * y))


def share_limits(count: float, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Clopper–Pearson limits of a share, each one-sided at level `alpha`: quantiles of beta distributions."""
    low = float(special.betaincinv(count, n - count + 1, alpha)) if count > 0 else 0.0
    high = float(special.betaincinv(count + 1, n - count, 1 - alpha)) if count < n else 1.0
    return low, high


def unpaired_difference(
    baseline: float,
    candidate: float,
    *,
    errors: tuple[float, float] | None = None,
    n: tuple[int, int] | None = None,
    run_sd: float | None = None,
    run_freedom: float = inf,
) -> UnpairedDifference | None:
    """Two scores in 0 … 1 without their items. errors: standard errors as reported; n: items. None where both are unknown.

    A reported error of 0 is that of a score at the end of its scale, not certainty: with n, the wider of the two counts,
    with exact limits of both shares.
    """
    if not (0 <= baseline <= 1 and 0 <= candidate <= 1) or (n is not None and min(n) < 1):
        raise ValueError("expected scores between 0 and 1, of at least one item")
    if n is None and (errors is None or min(errors) <= 0):
        return None
    return UnpairedDifference(
        candidate - baseline, run_sd, baseline, candidate, errors or (0.0, 0.0), n, run_freedom=run_freedom
    )


def macro_difference(tasks: Sequence[Difference], run_sd: float | None = None, run_freedom: float = inf) -> MacroDifference:
    """The mean over tasks, of which there is at least one."""
    return MacroDifference(sum(task.delta for task in tasks) / len(tasks), run_sd, tuple(tasks), run_freedom=run_freedom)


def run_sd(scores: Sequence[float]) -> float | None:
    """s_run: SD of a score over BF16 runs that differ in chance alone. None for fewer than two."""
    return float(np.std(np.asarray(scores, dtype=np.float64), ddof=1)) if len(scores) > 1 else None


def items_needed(discordance: float, margin: float, *, power: float = POWER, alpha: float = ALPHA) -> int:
    """Fewest items with which equal models pass with probability `power`: (z_.95 + z_.80)²·discordance/margin².

    That is 6.18·discordance/margin² (PARITY.md 7), and never fewer than the exact interval needs where no item differs.
    """
    factor = (float(special.ndtri(1 - alpha)) + float(special.ndtri(power))) ** 2
    return max(ceil(factor * discordance / margin**2), ceil(log(alpha) / log1p(-margin)))


def _z(alpha: float) -> float:
    return -float(special.ndtri(alpha))
