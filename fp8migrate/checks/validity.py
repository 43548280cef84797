"""Is this a comparison at all? Complete runs, arms that differ in precision alone, losses with enough digits."""

from fp8migrate.checks.check import Check, Need, Results
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.words import counted, labels, limit, percent, short, some
from fp8migrate.evidence.logged_settings import EVIDENCE_ROWS
from fp8migrate.evidence.schema import Comparison, RunFact

# A rounded loss is a multiple of 10^(1 − digits) of its leading digit; that quantum may use up at most half of the margin.
QUANTUM_PER_MARGIN = 0.5

# Runs that a verdict stands on. A known-bad arm that is missing shows as NO_SENSITIVITY.
DECIDING_ARMS = ("baseline", "candidate", "floor", "control")


def completeness(comparison: Comparison) -> Results:
    """Every planned run of the deciding arms reached its last step, with every step logged and the last one validated."""
    runs = [run for run in comparison.runs if run.arm in DECIDING_ARMS]
    faults = [(run, fault) for run in runs if (fault := run_fault(run, comparison))]
    if not comparison.decayed:
        return [_truncated("the runs stop before the learning rate has decayed")]
    if not comparison.groups and (absent := _absent_pairs(comparison)):
        return [_truncated(f"{counted(absent, 'planned run')} of the baseline or the candidate not among the jobs")]
    if faults:
        shown = some([f"{run.label}: {fault}" for run, fault in faults])
        return [_truncated(shown, labels([run for run, _ in faults]))]
    return [CheckResult("completeness", "pass", f"all {len(runs)} runs reached their last step, with every step logged")]


def _truncated(summary: str, evidence: tuple[str, ...] = ()) -> CheckResult:
    return CheckResult("completeness", "inconclusive", summary, code="TRUNCATED", evidence=evidence)


def _absent_pairs(comparison: Comparison) -> int:
    """Baseline and candidate runs that the plan asks for and no job stands for."""
    have = {(run.arm, run.pair, run.fraction) for run in comparison.runs}
    counts = [
        len([pair for pair in have if pair[0] == arm and pair[2] == fraction])
        for arm in ("baseline", "candidate")
        for fraction in comparison.fractions
    ]
    return sum(max(0, comparison.planned_pairs - count) for count in counts)


def run_fault(run: RunFact, comparison: Comparison) -> str | None:
    """What keeps a run from being whole, or None. A non-finite end is not a cut: the stability check judges it."""
    outcome = run.outcome
    if comparison.groups:
        failed = f"its log says that it failed: {run.outcome.detail}" if run.outcome and run.outcome.detail else ""
        return (run.fault or failed or None) if run.non_finite_at is None else None
    if outcome is None:
        return "missing"
    if run.non_finite_at is not None or outcome.cause == "non_finite":
        return None
    if outcome.status != "completed" or outcome.last_step < run.expected_last_step:
        cause = f" ({outcome.cause.replace('_', ' ')})" if outcome.cause else ""
        return f"{outcome.status} at step {outcome.last_step} of {run.expected_last_step}{cause}"
    if run.missing_steps:
        return f"{counted(run.missing_steps, 'step')} without a logged loss"
    forwards = {"validation_loss": "bf16", "validation_loss_fp8": "fp8"}
    needed = [forwards[e] for e in comparison.primary if e in forwards and (forwards[e] == "bf16" or run.arm == "candidate")]
    lacking = [forward for forward in needed if forward not in run.validated]
    return f"no validation under a {lacking[0].upper()} forward at its last step" if lacking else None


def same_setup(comparison: Comparison) -> Results:
    """Nothing but precision is known to differ between the arms."""
    spoiling = [row for row in comparison.audit if row.status == "different" and not row.expected]
    if spoiling:
        shown = some([f"{row.setting} ({short(row.baseline)} against {short(row.candidate)})" for row in spoiling])
        settings = tuple(row.setting for row in spoiling)
        return [
            CheckResult("same_setup", "inconclusive", f"the arms differ in {shown}", code="INVALID_PAIR", evidence=settings)
        ]
    unknown = [row.setting for row in comparison.audit if row.status == "unknown"]
    if comparison.groups:
        return [_logged_setup(comparison, unknown)]
    same = sum(row.status == "same" for row in comparison.audit)
    rest = f"; not known: {some(unknown)}" if unknown else ""
    summary = f"the arms differ in precision alone ({counted(same, 'setting')} the same){rest}"
    return [CheckResult("same_setup", "pass", summary, evidence=tuple(unknown))]


def _logged_setup(comparison: Comparison, unknown: list[str]) -> CheckResult:
    """Finished runs: what their configurations say, and what is not known, which is said in every headline too."""
    compared = [row for row in comparison.audit if row.setting not in EVIDENCE_ROWS.values()]
    attested = [row.setting for row in comparison.audit if row.status == "attested"]
    said = (
        f"{counted(len(compared), 'setting')} compared, none differs beyond precision"
        if compared
        else "no configuration to compare"
    )
    parts = [
        said,
        *([f"attested: {some(attested)}"] if attested else []),
        *([f"not known: {some(unknown)}"] if unknown else []),
    ]
    return CheckResult("same_setup", "pass", "; ".join(parts), evidence=tuple(unknown))


def resolution(comparison: Comparison) -> Results:
    """The losses carry enough digits for the margin."""
    margin = min(comparison.margin_of(endpoint) for endpoint in comparison.primary)
    if comparison.step_digits is None:
        return [CheckResult("resolution", "pass", "losses have full precision")]
    quantum, most = 10.0 ** (1 - comparison.step_digits), QUANTUM_PER_MARGIN * margin
    low = quantum > most
    summary = f"losses have {comparison.step_digits} digits, steps of up to {percent(quantum, signed=False)}"
    if low:
        summary += f": too coarse for a margin of {limit(margin)}"
    status: CheckStatus = "inconclusive" if low else "pass"
    code = "LOW_RESOLUTION" if low else ""
    return [CheckResult("resolution", status, summary, code, measured=quantum, limit=most, unit="relative")]


def data_repeated(comparison: Comparison) -> Results:
    """How often the runs saw their text; more than once is said."""
    passes = comparison.data_passes
    if passes > 1:
        summary = f"the runs saw their training text {passes:.3g} times"
        return [CheckResult("data", "pass", summary, code="DATA_REPEATED", measured=passes, limit=1.0, unit="passes")]
    return [
        CheckResult("data", "pass", "no run saw its training text more than once", measured=passes, limit=1.0, unit="passes")
    ]


RUNS: Need[Comparison] = Need("any planned run", lambda c: bool(c.runs), "TRUNCATED")
PAIRS: Need[Comparison] = Need("a pair of which both runs left a record", lambda c: bool(c.audit), "TRUNCATED")

CHECKS = (
    Check("completeness", completeness, (RUNS,)),
    Check("same_setup", same_setup, (PAIRS,)),
    Check("resolution", resolution, (PAIRS,)),
    Check("data", data_repeated, (RUNS,), advisory=True),
)
# Of finished runs: whether they are whole is told before whether they can be compared, their configurations after it.
WHOLE_CHECKS, SETUP_CHECKS = CHECKS[:1], CHECKS[1:3]
