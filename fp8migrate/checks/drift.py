"""Does the gap grow with the length of the run? (PARITY.md 5)"""

import numpy as np

from fp8migrate.checks.check import Check, Results
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.stability import curves_of, longest_run, relative_gap
from fp8migrate.checks.validity import PAIRS, RUNS
from fp8migrate.checks.words import ENDPOINT_WORDS, counted, limit, metric_of, percent
from fp8migrate.evidence.schema import Cell, Comparison, Endpoint
from fp8migrate.plan.schema import LONG_SCREEN_FACTOR, MIN_PAIRS_TO_PASS
from fp8migrate.statistics.drift import Drift, drift, drift_of_groups, widening
from fp8migrate.statistics.noninferiority import Bounds, bounds
from fp8migrate.statistics.power import MAX_PAIRS, pairs_needed

# The run projected to ten times its length: a decade in log time. A gap that would pass the margin there is a trend.
HORIZON = 10.0
# Below this, a tenth of the run is too few steps for a median.
LEAST_STEPS_FOR_DRIFT = 100
# PARITY.md 5: from K to 4K steps the gap may grow by less than this share of the margin.
GROWTH_PER_MARGIN = 0.5


def no_drift_window(comparison: Comparison) -> str | None:
    if comparison.design == "screen":
        return "a screen is too short for a trend; it never acquits"
    if 0 < longest_run(comparison) < LEAST_STEPS_FOR_DRIFT:
        return f"a run of fewer than {LEAST_STEPS_FOR_DRIFT} steps is too short for a trend"
    return None


def no_widening(comparison: Comparison) -> Results:
    """The gap does not grow from 50–60 % of the run to its last 10 % on its way past the margin."""
    results = []
    for endpoint in comparison.primary:
        for fraction in comparison.fractions:
            cell = comparison.cell("candidate", endpoint, fraction)
            found = _drift(comparison, cell) if cell else None
            if found:
                results.append(_judged_drift(found, comparison.margin_of(endpoint), fraction, endpoint))
    # One pair has no trend to bound; pairs that should be there and are not show as TRUNCATED.
    return results or [CheckResult("no_widening", "skipped", "fewer than two whole runs to take a trend from", advisory=True)]


def _drift(comparison: Comparison, cell: Cell) -> Drift | None:
    """Trend over the pairs of a cell whose curves are whole; None with fewer than two."""
    if cell.groups is not None:
        return _group_drift(comparison, cell.groups)
    finals = {delta.pair: delta.value for delta in cell.deltas}
    gaps = {curves.pair: relative_gap(curves) for curves in curves_of(comparison, "candidate", cell.fraction)}
    growth = {pair: widening(gap) for pair, gap in gaps.items() if pair in finals and gap.size >= LEAST_STEPS_FOR_DRIFT}
    whole = [pair for pair, value in growth.items() if np.isfinite(value) and np.isfinite(finals[pair])]
    if len(whole) < 2:
        return None
    growths, final = np.array([growth[p] for p in whole]), np.array([finals[p] for p in whole])
    return drift(growths, final, HORIZON, cell.sampling_error or 0.0)


def _group_drift(comparison: Comparison, finals: tuple[tuple[float, ...], tuple[float, ...]]) -> Drift | None:
    """Trend of unpaired groups; None where an arm has fewer than two runs or their curves no trend."""
    growths = comparison.groups.growths if comparison.groups else ((), ())
    sizes = [(len(growth), len(final)) for growth, final in zip(growths, finals, strict=True)]
    if any(left != right or right < 2 for left, right in sizes) or not np.isfinite([*growths[0], *growths[1]]).all():
        return None
    logs = tuple(np.log(final) for final in finals)
    return drift_of_groups(growths, (logs[0], logs[1]), HORIZON)


def _judged_drift(found: Drift, margin: float, fraction: float | None, endpoint: Endpoint) -> CheckResult:
    grown, projected = found.widening, found.projected
    summary = (
        f"gap grew by {percent(grown.mean)} (from {percent(grown.lower)}) between 50–60 % and the last 10 % of the run; "
        f"projected to {found.horizon:g} × the run {percent(projected.mean)}, at most {percent(projected.upper)}"
    )
    widens = grown.lower > 0 and projected.mean > margin
    if not widens:
        summary += f": the scope ends at {f'{found.horizon:g} × the run' if projected.upper < margin else 'the tokens run'}"
    return CheckResult(
        "no_widening",
        "inconclusive" if widens else "pass",
        summary,
        "WIDENING" if widens else "",
        measured=projected.mean,
        limit=margin,
        unit="relative",
        interval=(projected.lower, projected.upper),
        fraction=fraction,
        metric=metric_of(endpoint),
    )


def no_screen_drift(comparison: Comparison) -> Results:
    """The gap of the long screen exceeds that of the screen, on the same pairs, by less than half the margin."""
    return [_judged_growth(comparison, endpoint) for endpoint in comparison.primary]


def _judged_growth(comparison: Comparison, endpoint: Endpoint) -> CheckResult:
    growth = next((growth for growth in comparison.growth if growth.endpoint == endpoint), None)
    (fraction,) = comparison.fractions
    if growth is None or not growth.pairs or not np.isfinite(growth.values).all():
        summary = f"{ENDPOINT_WORDS[endpoint]}: no finite gap over K and over 4K steps to compare in every pair"
        return CheckResult("no_screen_drift", "inconclusive", summary, "TRUNCATED", fraction=fraction)
    most, error = GROWTH_PER_MARGIN * comparison.margin_of(endpoint), growth.sampling_error or 0.0
    found = bounds(growth.values, error)
    status, code, why = _growth_verdict(found, most, error)
    return CheckResult(
        "no_screen_drift",
        status,
        f"{ENDPOINT_WORDS[endpoint]}: the gap grows by {percent(found.mean)} over {LONG_SCREEN_FACTOR} times the steps{why}",
        code,
        measured=found.mean,
        limit=most,
        unit="relative",
        interval=(found.lower, found.upper),
        evidence=tuple(f"pair {pair}" for pair in growth.pairs),
        fraction=fraction,
    )


def _growth_verdict(found: Bounds, most: float, error: float) -> tuple[CheckStatus, str, str]:
    """Growth that is shown is WIDENING; growth that pairs too few or too noisy cannot exclude is not."""
    said = f", {percent(found.lower)} to {percent(found.upper)}, {counted(found.n, 'pair')}, half the margin {limit(most)}"
    if found.n >= MIN_PAIRS_TO_PASS and found.upper < most:
        return "pass", "", f": upper bound {percent(found.upper)} is below half the margin, {limit(most)} ({found.n} pairs)"
    if found.lower > 0 and found.upper >= most:
        return "inconclusive", "WIDENING", f"{said}: it grows with the length of the run"
    if found.n < MIN_PAIRS_TO_PASS:
        return "inconclusive", "TOO_FEW_PAIRS", f"{said}: {MIN_PAIRS_TO_PASS} pairs are needed"
    needed = pairs_needed(found.sd, most, max(found.mean, 0.0), error) if found.mean < most else None
    how_many = f"more than {MAX_PAIRS}" if needed is None else str(needed)
    return "inconclusive", "UNDERPOWERED", f"{said}: {how_many} pairs would be needed at this growth and spread"


CHECKS = (Check("no_widening", no_widening, (PAIRS,), skip=no_drift_window),)
LONG_SCREEN_CHECKS = (Check("no_screen_drift", no_screen_drift, (RUNS,)),)
