"""Is FP8 as good? One-sided non-inferiority per fraction and primary endpoint, and whether the design could have told."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fp8migrate.checks.check import Check, Need, Results
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.stability import curves_of, diverged_runs, forward_penalty, is_non_finite
from fp8migrate.checks.validity import PAIRS, RUNS
from fp8migrate.checks.words import ENDPOINT_WORDS, counted_runs, labels, limit, metric_of, percent
from fp8migrate.evidence.schema import AS_LOGGED, Cell, Comparison, Endpoint
from fp8migrate.plan.schema import MIN_PAIRS_TO_PASS
from fp8migrate.statistics.divergence import LEAST_GAP, MARGINS
from fp8migrate.statistics.noninferiority import Bounds, holm
from fp8migrate.statistics.permutation import LEAST_PAIRS, sign_flip_p_value
from fp8migrate.statistics.power import MAX_PAIRS, pairs_needed
from fp8migrate.statistics.tokens import share_to_make_up

Place = tuple[Endpoint, float | None]


@dataclass(frozen=True)
class _Judged:
    """One cell with its bounds. fail_limit: what the lower bound must exceed to fail; penalty_known: whether the FP8 forward's
    part in it is known, or as much as ever a penalty may excuse is granted.

    floor: the BF16 runs at the same place, where there are any.
    """

    cell: Cell
    bounds: Bounds
    margin: float
    fail_limit: float
    convicted: bool
    penalty_known: bool
    floor: Cell | None = None


def parity(comparison: Comparison) -> Results:
    """One result per fraction and primary endpoint: U < m passes, L > m (after Holm over all of them) fails."""
    judged = _judge(comparison)
    places = [(endpoint, fraction) for endpoint in comparison.primary for fraction in comparison.fractions]
    return [_result(comparison, place, judged.get(place)) for place in places]


def _judge(comparison: Comparison) -> dict[Place, _Judged]:
    """Bounds of every primary cell that has only finite gaps, and Holm's verdict over them."""
    cells = {}
    for endpoint in comparison.primary:
        for fraction in comparison.fractions:
            cell = comparison.cell("candidate", endpoint, fraction)
            if cell and cell.finite:
                cells[endpoint, fraction] = cell
    found = {place: cell.bounds for place, cell in cells.items()}
    known = {place: fail_limit(comparison, *place) for place in cells}
    limits = {place: most_excused(comparison.margin_of(place[0])) if most is None else most for place, most in known.items()}
    p_values = [found[place].p_above(limits[place]) for place in cells]
    rejected = dict(zip(cells, holm(p_values), strict=True))
    return {
        place: _Judged(
            cell,
            found[place],
            comparison.margin_of(place[0]),
            limits[place],
            rejected[place],
            known[place] is not None,
            comparison.cell("floor", *place),
        )
        for place, cell in cells.items()
    }


def most_excused(margin: float) -> float:
    """m and the most that an unknown forward penalty may excuse, as in the threshold of divergence (PARITY.md 5): public
    recipes pay 0.13 to 0.27 %.
    """
    return margin + max(LEAST_GAP, MARGINS * margin)


def fail_limit(comparison: Comparison, endpoint: Endpoint, fraction: float | None) -> float | None:
    """m, or m + p for a loss under an FP8 forward of a model served in BF16 (PARITY.md 3); None: p is unknown."""
    margin = comparison.margin_of(endpoint)
    if endpoint not in AS_LOGGED or comparison.serve == "fp8":
        return margin
    penalty = forward_penalty(comparison, fraction, "candidate")
    return None if penalty is None else margin + max(0.0, penalty)


def _result(comparison: Comparison, place: Place, judged: _Judged | None) -> CheckResult:
    endpoint, fraction = place
    if judged is None:
        summary = f"{ENDPOINT_WORDS[endpoint]}: no finite gap to judge in every {'run' if comparison.groups else 'pair'}"
        return CheckResult("parity", "inconclusive", summary, "TRUNCATED", fraction=fraction, metric=metric_of(endpoint))
    status, code, why = _verdict(judged)
    b = judged.bounds
    return CheckResult(
        check="parity",
        status=status,
        summary=f"{ENDPOINT_WORDS[endpoint]} {percent(b.mean)}{why}{_notes(comparison, judged)}",
        code=code,
        measured=b.mean,
        limit=judged.margin,
        unit="relative",
        interval=(b.lower, b.upper),
        evidence=tuple(f"{judged.cell.unit} {delta.pair}" for delta in judged.cell.deltas),
        fraction=fraction,
        metric=metric_of(endpoint),
    )


def _verdict(judged: _Judged) -> tuple[CheckStatus, str, str]:
    """The rows of PARITY.md 4 that a single cell decides, in their order."""
    b, margin = judged.bounds, judged.margin
    pairs = counted_runs(judged.cell)
    span = f", {percent(b.lower)} to {percent(b.upper)}" if b.n > 1 else ""
    said = f"{span}, {pairs}, margin {limit(margin)}"
    if judged.convicted:
        penalty = "the forward penalty" if judged.penalty_known else "any forward penalty"
        more = "" if judged.fail_limit == margin else f" and {penalty}, {limit(judged.fail_limit)} together"
        return "fail", "GAP", f": lower bound {percent(b.lower)} is above the margin {limit(margin)}{more} ({pairs})"
    if not judged.penalty_known and b.lower > margin:
        return "inconclusive", "PENALTY_UNKNOWN", f"{said}: above it, but the forward penalty in it is not known"
    if b.n < MIN_PAIRS_TO_PASS:
        return "inconclusive", "TOO_FEW_PAIRS", f"{said}: a PASS needs {_at_least(judged.cell)}{_power(judged)}"
    if b.upper < -margin:
        return "inconclusive", "SUSPECT_MISMATCH", f"{said}: better than can be true"
    if b.upper < margin:
        code = "REAL_BUT_ACCEPTABLE" if b.lower > 0 else ""
        real = ", a real difference within the margin" if code else ""
        return "pass", code, f": upper bound {percent(b.upper)} is below the margin {limit(margin)} ({pairs}){real}"
    return "inconclusive", "UNDERPOWERED", f"{said}: {_need(judged)}"


def _at_least(cell: Cell) -> str:
    return f"{MIN_PAIRS_TO_PASS} pairs" if cell.groups is None else f"{MIN_PAIRS_TO_PASS} runs in each arm"


def _power(judged: _Judged) -> str:
    """What groups of finished runs would need at the scatter of the BF16 runs; two runs differ by √2 of it."""
    floor = judged.floor
    if judged.cell.groups is None or floor is None or len(floor.deltas) < 2 or not floor.finite:
        return ""
    ends = np.array([delta.candidate for delta in floor.deltas])
    runs = pairs_needed(float(2**0.5 * ends.std(ddof=1) / ends.mean()), judged.margin)
    return f"; at the scatter of the BF16 runs {runs or f'more than {MAX_PAIRS}'} in each arm have 80 % power"


def _need(judged: _Judged) -> str:
    """What a new design would need, at the spread seen and the gap seen, if that gap is below the margin."""
    b, margin = judged.bounds, judged.margin
    gap = max(b.mean, 0.0)
    if gap >= margin:
        return f"the gap itself is at the margin; more {judged.cell.unit}s would more likely fail than pass"
    error = judged.cell.sampling_error or 0.0
    if (pairs := pairs_needed(b.sd, margin, gap, error)) is not None:
        what = "pairs" if judged.cell.groups is None else "runs in each arm"
        return f"a new design needs {pairs} {what} for 80 % power at this gap and spread"
    if pairs_needed(b.sd, margin, gap) is not None:
        return f"the held-out documents leave ± {percent(error, signed=False)} open in every pair; validate on more tokens"
    if judged.cell.groups is not None:
        return f"more than {MAX_PAIRS} runs in each arm would be needed at this gap and spread; pairs of runs are quieter"
    return f"more than {MAX_PAIRS} pairs would be needed at this gap and spread; quieter pairs are needed (a later start)"


def _notes(comparison: Comparison, judged: _Judged) -> str:
    """What stands behind a number: unknown documents; the gap in training time, where it is above zero."""
    notes = []
    if judged.cell.sampling_error is None and judged.cell.endpoint not in AS_LOGGED:
        notes.append("sampling error of the held-out documents unknown, counted as 0")
    if comparison.design in ("scratch", "groups") and judged.bounds.mean > 0:
        share = extra_training(comparison, judged.bounds.mean, judged.cell.fraction)
        if share is not None:
            notes.append(f"about {percent(share)} BF16 training would make up for it")
    return f"; {'; '.join(notes)}" if notes else ""


def extra_training(comparison: Comparison, gap: float, fraction: float | None) -> float | None:
    """BF16 training, as a share of the run, that makes up for a relative gap; None where the curve does not tell."""
    curves = next(iter(curves_of(comparison, "candidate", fraction)), None)
    if curves is None or curves.baseline.steps.size == 0:
        return None
    return share_to_make_up(gap, curves.baseline.steps, curves.baseline.values)


def sensitivity(comparison: Comparison) -> Results:
    """The recipe known to be bad is convicted by this design: L > m somewhere, or it broke by its own numerics."""
    if not comparison.planned_sensitivity:
        return [_not_sensitive("no run of a recipe known to be bad was planned: the design has not shown that it can convict")]
    broken = [run for run in comparison.runs if run.arm == "sensitivity" and is_non_finite(run)]
    if broken:
        summary = "the recipe known to be bad was convicted: NaN or Inf"
        return [CheckResult("sensitivity", "pass", summary, evidence=labels(broken))]
    if diverged := diverged_runs(comparison, "sensitivity"):
        gap = max(found.gap for _, found in diverged)
        return [CheckResult("sensitivity", "pass", f"the recipe known to be bad was convicted: it diverged, {percent(gap)}")]
    excess = _sensitivity_excess(comparison)
    if not excess:
        return [_not_sensitive("no two runs of the recipe known to be bad to judge")]
    (endpoint, fraction), (b, most) = max(excess.items(), key=lambda item: item[1][0].lower - item[1][1])
    said = f"{ENDPOINT_WORDS[endpoint]} {percent(b.mean)}, lower bound {percent(b.lower)}"
    if b.lower <= most:
        why = f"{said} is not above {limit(most)}{_stretched(comparison, endpoint, most)}"
        return [_not_sensitive(f"the recipe known to be bad was not convicted: {why}")]
    summary = f"the recipe known to be bad was convicted: {said} is above {limit(most)}"
    interval = (b.lower, b.upper)
    return [
        CheckResult(
            "sensitivity", "pass", summary, measured=b.mean, limit=most, unit="relative", interval=interval, fraction=fraction
        )
    ]


def _stretched(comparison: Comparison, endpoint: Endpoint, most: float) -> str:
    """What a limit above the margin is made of."""
    return "" if most == comparison.margin_of(endpoint) else " (the margin and the bad recipe's own forward penalty)"


def _not_sensitive(summary: str) -> CheckResult:
    return CheckResult("sensitivity", "inconclusive", summary, "NO_SENSITIVITY")


def _sensitivity_excess(comparison: Comparison) -> Mapping[Place, tuple[Bounds, float]]:
    """Bounds of every judgeable cell of the bad recipe with the limit that convicts it.

    The training loss counts beside the primary endpoints, but only above what the FP8 forward alone adds to it: a forward
    penalty shows that FP8 ran, not that the design sees lost quality.
    """
    endpoints: set[Endpoint] = {*comparison.primary, "training_loss"}
    found = {}
    for cell in comparison.cells:
        if cell.arm != "sensitivity" or cell.endpoint not in endpoints or not cell.finite:
            continue
        most = comparison.margin_of(cell.endpoint)
        if cell.endpoint == "training_loss" and comparison.serve == "bf16":
            penalty = forward_penalty(comparison, cell.fraction, "sensitivity")
            if penalty is None:
                continue
            most += max(0.0, penalty)
        if len(cell.deltas) > 1:
            found[cell.endpoint, cell.fraction] = cell.bounds, most
    return found


def side_by_side(comparison: Comparison) -> Results:
    """Numbers that inform and do not decide: forward penalty, floor, module swap, training loss."""
    results = []
    for cell in comparison.cells:
        if (name := _informing(comparison, cell)) and cell.finite:
            results.append(_informative(name, cell, groups=comparison.groups is not None))
    return results or [CheckResult("side_by_side", "skipped", "neither floor, control nor forward penalty was measured")]


def _informing(comparison: Comparison, cell: Cell) -> str | None:
    """The name of the check that tells a cell; None for one that is judged, or of an endpoint beside the first."""
    if cell.arm == "candidate" and cell.endpoint in comparison.primary:
        return None
    if cell.arm in ("floor", "control") and cell.endpoint != comparison.primary[0]:
        return None
    names = {"floor": "floor", "control": "module_swap", "candidate": metric_of(cell.endpoint)}
    return names.get(cell.arm)


_MEANING = {
    "forward_penalty": "the candidate's own weights under an FP8 forward against a BF16 forward",
    "training_loss": "training loss, each arm under its own forward",
    "validation_loss": "validation loss as logged",
    "validation_loss_fp8": "the candidate under its FP8 forward against the baseline under BF16",
    "floor": "BF16 against BF16 one ulp apart",
    "module_swap": "the candidate's modules with FP8 off against BF16",
}


# Their runs differ in seed or data order, whatever the users chose to repeat.
_FLOOR_OF_GROUPS = "BF16 runs among themselves, each against the mean of the others"


def _informative(name: str, cell: Cell, *, groups: bool) -> CheckResult:
    b = cell.bounds
    meaning = _FLOOR_OF_GROUPS if name == "floor" and groups else _MEANING[name]
    spread = f" ± {percent(b.sd, signed=False)} over {cell.unit}s" if b.n > 1 else ""
    return CheckResult(
        check=name,
        status="pass",
        summary=f"{meaning}: {percent(b.mean)}{spread} ({counted_runs(cell)})",
        measured=b.mean,
        unit="relative",
        interval=(b.lower, b.upper) if b.n > 1 else None,
        fraction=cell.fraction,
    )


def permutation(comparison: Comparison) -> Results:
    """A sign-flip test beside the t bounds, from six pairs on: the same conclusion without normality."""
    results = []
    for (endpoint, fraction), judged in _judge(comparison).items():
        if judged.cell.groups is not None or judged.bounds.n < LEAST_PAIRS:
            continue
        p_value = sign_flip_p_value(judged.cell.values, judged.margin)
        agrees = (p_value < judged.bounds.alpha) == (judged.bounds.upper < judged.margin)
        summary = f"{ENDPOINT_WORDS[endpoint]}: sign-flip p = {p_value:.3g} for a gap of the margin or more"
        said = "agrees with" if agrees else "disagrees with"
        results.append(
            CheckResult(
                "permutation",
                "pass" if agrees else "inconclusive",
                f"{summary}; {said} the t bound",
                measured=p_value,
                limit=judged.bounds.alpha,
                unit="probability",
                fraction=fraction,
            )
        )
    return results or [CheckResult("permutation", "skipped", f"fewer than {LEAST_PAIRS} pairs")]


CELLS: Need[Comparison] = Need("a validated pair", lambda c: any(cell.arm == "candidate" for cell in c.cells), "TRUNCATED")

CHECKS = (
    Check("parity", parity, (PAIRS, CELLS)),
    Check("sensitivity", sensitivity, (RUNS,)),
    Check("permutation", permutation, (PAIRS,), advisory=True),
    Check("side_by_side", side_by_side, (RUNS,), advisory=True),
)
GROUP_CHECKS = tuple(check for check in CHECKS if check.name != "sensitivity")
