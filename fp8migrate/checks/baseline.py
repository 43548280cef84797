"""Phase 1: did the BF16 run learn, and how noisy are its pairs?"""

import numpy as np

from fp8migrate.checks.check import Check, Need, Results
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.stability import LEARNED_SHARE_OF_UNIFORM, crash_words, is_non_finite, unhealthy
from fp8migrate.checks.words import counted, labels, limit, percent, some
from fp8migrate.evidence.schema import BaselineEvidence
from fp8migrate.statistics.noninferiority import bounds
from fp8migrate.statistics.power import pairs_needed


def whole(evidence: BaselineEvidence) -> Results:
    """Every BF16 run reached its last step with every step logged."""
    if full := [run for run in evidence.runs if run.outcome and run.outcome.cause == "out_of_memory"]:
        shown = some([f"{run.label} {crash_words(run)}" for run in full])
        return [CheckResult("baseline_complete", "inconclusive", shown, "OUT_OF_MEMORY", evidence=labels(full))]
    faults = []
    for run in evidence.runs:
        outcome = run.outcome
        if outcome is None:
            faults.append(f"{run.label} is missing")
        elif not is_non_finite(run) and (outcome.status != "completed" or outcome.last_step < run.expected_last_step):
            cause = f" ({outcome.cause.replace('_', ' ')})" if outcome.cause else ""
            faults.append(f"{run.label} {outcome.status} at step {outcome.last_step} of {run.expected_last_step}{cause}")
        elif not is_non_finite(run) and run.missing_steps:
            faults.append(f"{run.label} has {counted(run.missing_steps, 'step')} without a logged loss")
    if faults:
        return [CheckResult("baseline_complete", "inconclusive", some(faults), "TRUNCATED")]
    return [CheckResult("baseline_complete", "pass", f"{counted(len(evidence.runs), 'BF16 run')} complete")]


def learned(evidence: BaselineEvidence) -> Results:
    """The BF16 run is finite, its loss moves, and its validation loss ends well below where it began."""
    runs = [run for run in evidence.runs if run.arm == "baseline"]
    faults = [(run, fault) for run in runs if (fault := unhealthy(run, evidence.uniform_loss))]
    if faults:
        summary = f"the BF16 baseline is unhealthy: {some([f'{run.label} {fault}' for run, fault in faults])}"
        evidence_of = labels([run for run, _ in faults])
        return [CheckResult("baseline_learned", "inconclusive", summary, "BASELINE_UNHEALTHY", evidence=evidence_of)]
    final = evidence.final_validation_loss
    if final is None:
        return [CheckResult("baseline_learned", "inconclusive", "no validation loss at the last step", "TRUNCATED")]
    start = min(evidence.uniform_loss, evidence.initial_validation_loss or evidence.uniform_loss)
    most = LEARNED_SHARE_OF_UNIFORM * start
    fell = np.isfinite(final) and final < most
    summary = f"validation loss {start:.3f} → {final:.3f} nats" + ("" if fell else ": the baseline did not learn")
    code = "" if fell else "BASELINE_UNHEALTHY"
    status: CheckStatus = "pass" if fell else "inconclusive"
    return [CheckResult("baseline_learned", status, summary, code, measured=final, limit=most, unit="nats")]


def floor(evidence: BaselineEvidence) -> Results:
    """How far BF16 pairs one ulp apart end from each other, and the pairs that a whole run would need at that spread."""
    values = np.array([delta.value for delta in evidence.floor])
    if values.size < 2 or not np.isfinite(values).all():
        return [CheckResult("baseline_floor", "inconclusive", "fewer than two finite floor pairs: the noise is not known")]
    b, margin = bounds(values), evidence.margin
    need = pairs_needed(b.sd, margin)
    pairs = f"{need} pairs" if need else "more than 64 pairs"
    summary = (
        f"BF16 pairs one ulp apart end {percent(b.sd, signed=False)} (SD) from each other, {counted(b.n, 'pair')}: "
        f"at that spread {pairs} have 80 % power against a margin of {limit(margin)}"
    )
    return [CheckResult("baseline_floor", "pass", summary, measured=b.sd, unit="relative")]


def no_floor(evidence: BaselineEvidence) -> str | None:
    return None if any(run.arm == "floor" for run in evidence.runs) else "no floor pairs were planned beside this run"


def spikes(evidence: BaselineEvidence) -> Results:
    """What the BF16 run does by itself."""
    summary = f"{counted(evidence.spikes, 'loss spike')} in the BF16 run"
    return [CheckResult("baseline_spikes", "pass", summary, measured=float(evidence.spikes), unit="spikes")]


def data_repeated(evidence: BaselineEvidence) -> Results:
    passes = evidence.data_passes
    repeated = passes > 1
    said = f"training text seen {passes:.3g} times" if repeated else "no training text seen more than once"
    code = "DATA_REPEATED" if repeated else ""
    return [CheckResult("baseline_data", "pass", said, code, measured=passes, limit=1.0, unit="passes")]


def advised(evidence: BaselineEvidence) -> Results:
    """What the BF16 run's tensors say about each recipe: a forecast, for information."""
    found = evidence.advice
    assert found is not None
    worst = None if found.first is None else found.forecast(found.first).worst.sqnr_db
    return [CheckResult("baseline_advisor", "pass", found.summary, measured=worst, unit="dB", limit=found.threshold.value)]


def not_advised(evidence: BaselineEvidence) -> str | None:
    return None if evidence.advice else "no tensors of the BF16 run were sampled, so no recipe is advised"


RUNS: Need[BaselineEvidence] = Need("a BF16 run", lambda e: any(run.arm == "baseline" for run in e.runs), "TRUNCATED")
LOSS: Need[BaselineEvidence] = Need("the BF16 run's loss", lambda e: e.loss is not None, "TRUNCATED")
# NaN in the validation before the first update leaves no loss, and is a finding all the same.
OUTCOME: Need[BaselineEvidence] = Need(
    "the BF16 run's loss",
    lambda e: e.loss is not None or any(is_non_finite(run) for run in e.runs if run.arm == "baseline"),
    "TRUNCATED",
)

CHECKS = (
    Check("baseline_complete", whole, (RUNS,)),
    Check("baseline_learned", learned, (RUNS, OUTCOME)),
    Check("baseline_floor", floor, (RUNS,), skip=no_floor, advisory=True),
    Check("baseline_spikes", spikes, (LOSS,), advisory=True),
    Check("baseline_data", data_repeated, (RUNS,), advisory=True),
    Check("baseline_advisor", advised, skip=not_advised, advisory=True),
)
