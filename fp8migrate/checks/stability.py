"""Did the runs stay whole? Baseline health, non-finite losses, crashes, divergence, spikes (PARITY.md 4 and 5)."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fp8migrate.checks.check import Check, Results
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.validity import PAIRS, RUNS
from fp8migrate.checks.words import counted, labels, limit, percent, some
from fp8migrate.evidence.endpoints import shared_steps
from fp8migrate.evidence.schema import Comparison, Groups, PairCurves, RunFact
from fp8migrate.jobs import Arm
from fp8migrate.statistics import divergence as rule
from fp8migrate.statistics.robust import block_medians
from fp8migrate.statistics.spikes import EXCESS_ALPHA, HISTORY, excess_p_value, own_spikes

# A model that has learned anything from text is well below a uniform guess; bytes fall from 5.5 to about 3 nats in 50 steps.
LEARNED_SHARE_OF_UNIFORM = 0.95

Array = NDArray[np.float64]


def baseline_health(comparison: Comparison) -> Results:
    """No baseline is NaN, flat or without gradients, and each that ended is below a uniform guess."""
    runs = [run for run in comparison.runs if run.arm == "baseline"]
    faults = [(run, fault) for run in runs if (fault := unhealthy(run, comparison.uniform_loss))]
    if comparison.groups and not faults:
        told = dict(comparison.groups.not_learned)
        faults = [(run, told[run.label]) for run in runs if run.label in told]
    if faults:
        summary = f"the BF16 baseline is unhealthy: {some([f'{run.label} {fault}' for run, fault in faults])}"
        evidence = labels([run for run, _ in faults])
        return [CheckResult("baseline_health", "inconclusive", summary, code="BASELINE_UNHEALTHY", evidence=evidence)]
    return [CheckResult("baseline_health", "pass", f"{counted(len(runs), 'BF16 baseline run')} finite and learning")]


def unhealthy(run: RunFact, uniform_loss: float | None) -> str | None:
    """What is wrong with a BF16 run's learning, or None."""
    if is_non_finite(run):
        return f"is not finite at step {_non_finite_step(run)}"
    if run.constant_loss:
        return "has a loss that never changes"
    if run.zero_gradients:
        return "has gradients that are all zero"
    ended = run.outcome is not None and run.outcome.status == "completed"
    if ended and uniform_loss and run.final_loss is not None and run.final_loss > LEARNED_SHARE_OF_UNIFORM * uniform_loss:
        return f"ends at {run.final_loss:.3f} nats, where a uniform guess has {uniform_loss:.3f}"
    return None


def is_non_finite(run: RunFact) -> bool:
    return run.non_finite_at is not None or (run.outcome is not None and run.outcome.cause == "non_finite")


def _non_finite_step(run: RunFact) -> int:
    if run.non_finite_at is not None:
        return run.non_finite_at
    return run.outcome.last_step if run.outcome else 0


def finite(comparison: Comparison) -> Results:
    """No candidate has a NaN or an Inf in its losses or gradients, at any step, whatever it reported."""
    runs = [run for run in comparison.runs if run.arm == "candidate"]
    if bad := [run for run in runs if is_non_finite(run)]:
        summary = f"NaN or Inf in the candidate: {some([f'{run.label} at step {_non_finite_step(run)}' for run in bad])}"
        return [CheckResult("finite", "fail", summary, code="NON_FINITE", evidence=labels(bad))]
    return [CheckResult("finite", "pass", f"{counted(len(runs), 'candidate run')} finite at every step")]


def no_crash(comparison: Comparison) -> Results:
    """No candidate ran out of memory or into an error where the baseline of its pair ran through."""
    through = {
        (run.pair, run.fraction)
        for run in comparison.runs
        if run.arm == "baseline" and run.outcome and run.outcome.status == "completed"
    }
    crashed = [
        run
        for run in comparison.runs
        if run.arm == "candidate" and _crashed(run) and _ran_through(run, through, comparison) and not is_non_finite(run)
    ]
    if crashed:
        shown = some([f"{run.label} {crash_words(run)}" for run in crashed])
        summary = f"the candidate alone crashed: {shown}"
        return [CheckResult("no_crash", "fail", summary, code="CANDIDATE_CRASH", evidence=labels(crashed))]
    return [CheckResult("no_crash", "pass", "no candidate crashed where its baseline ran through")]


def _ran_through(run: RunFact, through: set[tuple[int, float | None]], comparison: Comparison) -> bool:
    """Whether the baseline of its pair ran through; of finished groups, whether any baseline run did."""
    return bool(through) if comparison.groups else (run.pair, run.fraction) in through


def _crashed(run: RunFact) -> bool:
    return run.outcome is not None and run.outcome.cause in ("out_of_memory", "error")


def crash_words(run: RunFact) -> str:
    assert run.outcome is not None
    if run.outcome.cause != "out_of_memory":
        return f"ended with an error at step {run.outcome.last_step}"
    # The worker tried what would fit, and said so last.
    _, _, fits = run.outcome.detail.partition("; ")
    return f"out of memory at step {run.outcome.last_step}" + (f" ({fits})" if fits else "")


def relative_gap(curves: PairCurves) -> Array:
    """(other − baseline)/baseline on shared steps, (steps of the whole run,): the tail of a cut run is NaN."""
    baseline, other = shared_steps(curves.baseline, curves.candidate)
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = (other - baseline) / baseline
    ends = [series.expected_last_step for series in (curves.baseline, curves.candidate) if series.expected_last_step]
    if not ends or gap.size == 0:
        return gap
    spacing = (int(curves.baseline.steps[-1]) - curves.first_step) / max(1, curves.baseline.steps.size)
    expected = round((max(ends) - curves.first_step) / spacing)
    return np.concatenate([gap, np.full(max(0, expected - gap.size), np.nan)])


def diverged_runs(comparison: Comparison, arm: Arm) -> list[tuple[PairCurves, rule.Divergence]]:
    """Pairs of `arm` that left their baseline, by the block rule; the floor at the same start sets the threshold.

    The floor of a long screen is the screen's, at the same share of the run: four quarters stand for a hundred blocks.
    """
    found = []
    for fraction in comparison.fractions:
        own = curves_of(comparison, "floor", fraction)
        floors = [_blocks(relative_gap(curves), comparison) for curves in own or comparison.floor_curves]
        penalty = 0.0 if comparison.serve == "fp8" else forward_penalty(comparison, fraction, arm) or 0.0
        for curves in curves_of(comparison, arm, fraction):
            gap = relative_gap(curves)
            if gap.size < rule.QUARTERS:
                continue
            blocks = _blocks(gap, comparison)
            levels = [floor.repeat(blocks.size // floor.size) for floor in floors if blocks.size % floor.size == 0]
            tau = rule.floor_level(np.array(levels)) if levels else np.zeros(blocks.size)
            if comparison.groups and comparison.groups.pairing != "pairs":
                tau = np.maximum(tau, rule.block_noise(gap, blocks.size))
            limits = rule.threshold(comparison.margin, tau, len(levels), penalty)
            if (verdict := rule.divergence(blocks, limits)) is not None:
                found.append((curves, verdict))
    return found


def _blocks(gap: Array, comparison: Comparison) -> Array:
    """Block medians: by steps for runs that log each, by points for logs of others."""
    return block_medians(gap, rule.log_blocks(gap.size)) if comparison.groups else rule.gap_blocks(gap)


def forward_penalty(comparison: Comparison, fraction: float | None, arm: Arm) -> float | None:
    """Mean forward penalty of an arm at one fraction, as measured or, for finished runs, as the user knows it.

    0 for an A/A test, which has no FP8 forward.
    """
    if comparison.groups:
        return comparison.groups.forward_penalty
    cell = comparison.cell(arm, "forward_penalty", fraction)
    if cell is not None and np.isfinite(cell.values).all():
        return float(cell.values.mean())
    aa_test = not comparison.require_fp8 and (comparison.conversion is None or comparison.conversion.fp8_flops_share == 0)
    return 0.0 if aa_test and arm == "candidate" else None


def curves_of(comparison: Comparison, arm: Arm, fraction: float | None) -> list[PairCurves]:
    return [curves for curves in comparison.curves if (curves.arm, curves.fraction) == (arm, fraction)]


def not_diverged(comparison: Comparison) -> Results:
    """No candidate left its baseline for good."""
    found = diverged_runs(comparison, "candidate")
    if found:
        curves, worst = max(found, key=lambda item: item[1].gap)
        where = f"pair {curves.pair}" + (f" at {100 * curves.fraction:g} %" if curves.fraction is not None else "")
        summary = (
            f"{counted(len(found), 'candidate run')} diverged; {where} is {percent(worst.gap)} from its baseline at "
            f"{100 * worst.share:.0f} % of the run (threshold {limit(worst.threshold)})"
        )
        gap, threshold = worst.gap, worst.threshold
        return [CheckResult("not_diverged", "fail", summary, "DIVERGED", measured=gap, limit=threshold, unit="relative")]
    return [CheckResult("not_diverged", "pass", "no candidate left its baseline for good")]


def spikes(comparison: Comparison) -> Results:
    """The candidate has no more spikes of its own than chance gives it, and none that doubles the loss."""
    if comparison.groups:
        return _group_spikes(comparison.groups)
    found = [own_spikes(*shared_steps(curves.baseline, curves.candidate)) for curves in _candidates(comparison)]
    candidate, baseline = sum(s.candidate for s in found), sum(s.baseline for s in found)
    p_value = excess_p_value(candidate, baseline)
    summary = f"{counted(candidate, 'spike')} in the candidate alone, {baseline} in the baseline alone"
    status: CheckStatus = "inconclusive" if p_value < EXCESS_ALPHA else "pass"
    code = "SPIKES" if p_value < EXCESS_ALPHA else ""
    return [CheckResult("spikes", status, summary, code, measured=p_value, limit=EXCESS_ALPHA, unit="probability")]


def _group_spikes(groups: Groups) -> Results:
    """Spikes of all runs, by how many runs each arm has; a doubled loss in the candidate alone is one too many."""
    if groups.wild_ends:
        shown = some([f"{name} {percent(gap)}" for name, gap in groups.wild_ends])
        return [CheckResult("spikes", "inconclusive", f"far from its baseline at the very end: {shown}", "SPIKES")]
    if groups.gross_spikes:
        shown = some([f"{name} at {step:,g}" for name, step in groups.gross_spikes])
        return [CheckResult("spikes", "inconclusive", f"the loss of the candidate alone more than doubled: {shown}", "SPIKES")]
    baseline, candidate = groups.spikes
    p_value = excess_p_value(candidate, baseline, groups.sizes[1] / sum(groups.sizes))
    summary = (
        f"{counted(candidate, 'spike')} in {counted(groups.sizes[1], 'candidate run')}, {baseline} in {groups.sizes[0]} of BF16"
    )
    excess = p_value < EXCESS_ALPHA
    status: CheckStatus = "inconclusive" if excess else "pass"
    code = "SPIKES" if excess else ""
    return [CheckResult("spikes", status, summary, code, measured=p_value, limit=EXCESS_ALPHA, unit="probability")]


def _candidates(comparison: Comparison) -> Iterable[PairCurves]:
    return (curves for curves in comparison.curves if curves.arm == "candidate")


def longest_run(comparison: Comparison) -> int:
    return max((curves.candidate.steps.size for curves in _candidates(comparison)), default=0)


def no_spike_history(comparison: Comparison) -> str | None:
    steps = longest_run(comparison)
    if comparison.groups and (comparison.groups.gross_spikes or comparison.groups.wild_ends):
        return None
    return f"a run of {steps} steps has no {HISTORY} steps before a spike" if 0 < steps <= HISTORY else None


CHECKS = (
    Check("baseline_health", baseline_health, (RUNS,)),
    Check("finite", finite, (RUNS,)),
    Check("no_crash", no_crash, (RUNS,)),
    Check("not_diverged", not_diverged, (PAIRS,)),
    Check("spikes", spikes, (PAIRS,), skip=no_spike_history),
)
