"""How often a rule passes or fails what it should not, over runs from the noise model of PARITY.md 1 with a known true gap.

Losses are in units of the mean loss. A run's training loss is 1 + the noise of its data (the same in both arms of a pair),
times 1 + true gap + a persistent offset (heavier early), plus white noise per step. Every rule sees the same last 100 steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fp8migrate.plan.schema import MIN_PAIRS_TO_PASS
from fp8migrate.statistics.noninferiority import Bounds, bounds, t_quantile, welch_bounds

Array = NDArray[np.float64]

MARGIN = 0.0025
STEPS, WINDOW, BLOCKS = 1000, 100, 10
# Replicates drawn at a time: 500 × 26 runs × 100 steps are 10 MB.
_CHUNK = 500


@dataclass(frozen=True)
class Noise:
    """Relative to the loss. Figures of PARITY.md 1 over a loss of 3.4 nats: 0.17 % per pair, 0.004 and 0.105 nats per step.

    offset and step are SDs of the difference of two runs; each run has 1/√2 of them. spread: what FP8 multiplies the offsets
    by: those of the pairs, or those of the candidate's group.
    """

    offset: float = 0.0017
    step: float = 0.004 / 3.4
    data: float = 0.105 / 3.4
    early_factor: float = 4.0
    spread: float = 1.0


@dataclass(frozen=True)
class Design:
    """own_data: each run of a group has its own data order, and with it its own data noise."""

    name: str
    num_baseline: int
    num_candidate: int
    own_data: bool = False

    @property
    def paired(self) -> bool:
        return self.name == "pairs"

    @property
    def size(self) -> str:
        same = self.num_baseline == self.num_candidate
        return f"{self.num_baseline}" if same else f"{self.num_baseline} v {self.num_candidate}"


def pairs(n: int) -> Design:
    return Design("pairs", n, n)


def groups(num_baseline: int, num_candidate: int | None = None, own_data: bool = False) -> Design:
    name = f"groups, {'own' if own_data else 'same'} data"
    return Design(name, num_baseline, num_candidate or num_baseline, own_data)


def draw(design: Design, noise: Noise, gap: float, replicates: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Last steps of the baseline's and the candidate's runs, (replicates, runs, WINDOW) each."""
    progress = np.arange(STEPS - WINDOW + 1, STEPS + 1) / STEPS
    early = 1 + (noise.early_factor - 1) * np.exp(-progress / 0.05)
    of_b, of_c = (0.0, noise.offset) if design.paired else (noise.offset / sqrt(2),) * 2
    shape_b, shape_c = ((replicates, n, WINDOW) for n in (design.num_baseline, design.num_candidate))
    if design.paired:
        data_b = data_c = rng.normal(1, noise.data, shape_b)
    elif design.own_data:
        data_b, data_c = rng.normal(1, noise.data, shape_b), rng.normal(1, noise.data, shape_c)
    else:
        data_b = data_c = rng.normal(1, noise.data, (replicates, 1, WINDOW))
    offset_b = rng.normal(0, of_b, (*shape_b[:2], 1)) * early
    offset_c = rng.normal(0, of_c * noise.spread, (*shape_c[:2], 1)) * early
    white = noise.step / sqrt(2)
    baseline = data_b * (1 + offset_b) + rng.normal(0, white, shape_b)
    return baseline, data_c * (1 + gap + offset_c) + rng.normal(0, white, shape_c)


def endpoints(losses: Array) -> Array:
    """The median of the means of ten blocks of each run, (replicates, runs, WINDOW) → (replicates, runs): `robust_mean`."""
    return np.median(losses.reshape(*losses.shape[:2], BLOCKS, -1).mean(axis=3), axis=2)


def bounds_of(design: Design, baseline: Array, candidate: Array) -> Bounds:
    """Bounds of the relative gap from one replicate's endpoints, (runs,) each."""
    return bounds(candidate / baseline - 1) if design.paired else welch_bounds(baseline, candidate)


def passes(b: Bounds, margin: float = MARGIN) -> bool:
    """PASS of PARITY.md 4 for one endpoint."""
    return b.n >= MIN_PAIRS_TO_PASS and -margin <= b.upper < margin


def fails(b: Bounds, margin: float = MARGIN) -> bool:
    """FAIL of PARITY.md 4 for one endpoint, where Holm has nothing to correct."""
    return b.n >= 2 and b.lower > margin


def not_different(b: Bounds) -> bool:
    """Naive: a two-sided t-test over the runs does not reject equality at 5 %."""
    return b.n >= 2 and abs(b.mean) <= t_quantile(0.975, b.degrees_of_freedom) * b.standard_error


def last_step(_: Design, baseline: Array, candidate: Array) -> NDArray[np.bool_]:
    """Naive: the last step, averaged over the runs, is worse by less than the margin."""
    return candidate[:, :, -1].mean(axis=1) / baseline[:, :, -1].mean(axis=1) - 1 < MARGIN


def last_100(_: Design, baseline: Array, candidate: Array) -> NDArray[np.bool_]:
    """Naive: the mean of the last 100 steps is worse by less than the margin."""
    return candidate.mean(axis=(1, 2)) / baseline.mean(axis=(1, 2)) - 1 < MARGIN


def five_percent(_: Design, baseline: Array, candidate: Array) -> NDArray[np.bool_]:
    """Naive: the mean of the last 100 steps lies within 5 % of the baseline's."""
    return np.abs(candidate.mean(axis=(1, 2)) / baseline.mean(axis=(1, 2)) - 1) < 0.05


def step_interval(design: Design, baseline: Array, candidate: Array) -> tuple[Array, Array]:
    """Mean gap and its standard error, (replicates,) each, with every step of every run taken for a repetition."""
    mean_b = baseline.mean(axis=(1, 2))
    gap = candidate.mean(axis=(1, 2)) / mean_b - 1
    if design.paired:
        variance = (candidate - baseline).var(axis=(1, 2), ddof=1) / baseline[0].size
    else:
        variance = sum(x.var(axis=(1, 2), ddof=1) / x[0].size for x in (baseline, candidate))
    return gap, np.sqrt(variance) / mean_b


def step_level(design: Design, baseline: Array, candidate: Array) -> NDArray[np.bool_]:
    """Naive: the one-sided 95 % bound of a t-test over steps is below the margin."""
    gap, error = step_interval(design, baseline, candidate)
    return gap + t_quantile(0.95, baseline[0].size - 1) * error < MARGIN


NAIVE: dict[str, Callable[[Design, Array, Array], NDArray[np.bool_]]] = {
    "last step": last_step,
    "last 100": last_100,
    "5 %": five_percent,
    "step t": step_level,
}
NOT_DIFFERENT = "not different"


@dataclass(frozen=True)
class Rates:
    """Shares of the replicates. naive: PASS of each naive rule."""

    passed: float
    failed: float
    naive: dict[str, float]


def rates(design: Design, gap: float, noise: Noise, replicates: int, seed: int) -> Rates:
    """How often each rule passes, and how often the rule under test fails, at a true relative gap."""
    rng = np.random.default_rng(seed)
    judged, naive = [], dict.fromkeys((*NAIVE, NOT_DIFFERENT), 0)
    for number in _chunks(replicates):
        baseline, candidate = draw(design, noise, gap, number, rng)
        for name, rule in NAIVE.items():
            naive[name] += int(rule(design, baseline, candidate).sum())
        found = zip(endpoints(baseline), endpoints(candidate), strict=True)
        judged += [bounds_of(design, *both) for both in found]
    naive[NOT_DIFFERENT] = sum(map(not_different, judged))
    return Rates(
        passed=sum(map(passes, judged)) / replicates,
        failed=sum(map(fails, judged)) / replicates,
        naive={name: count / replicates for name, count in naive.items()},
    )


def _chunks(replicates: int) -> Iterator[int]:
    for start in range(0, replicates, _CHUNK):
        yield min(_CHUNK, replicates - start)


def allowance(rate: float, replicates: int, errors: float = 3.0) -> float:
    """The highest share that `replicates` draws of an event of probability `rate` may show: `errors` standard errors more."""
    return rate + errors * sqrt(rate * (1 - rate) / replicates)
