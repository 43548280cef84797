"""One ranked table: check results -> verdict -> Report. The Report holds everything that any format shows."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import orjson

from fp8migrate.checks import required_checks
from fp8migrate.checks.check import place
from fp8migrate.checks.drift import HORIZON
from fp8migrate.checks.schema import CheckResult
from fp8migrate.checks.words import counted, limit, percent, some
from fp8migrate.evidence.items import ItemComparison
from fp8migrate.evidence.schema import BaselineEvidence, Comparison, IntegrationEvidence
from fp8migrate.jobs import DesignName
from fp8migrate.plan.digest import plan_digest
from fp8migrate.plan.schema import LONG_SCREEN_FACTOR, Plan
from fp8migrate.records.schema import Environment, Series

VerdictName = Literal["PASS", "FAIL", "INCONCLUSIVE", "SCREENED"]
PhaseState = Literal["passed", "failed", "inconclusive", "screened", "not_run"]
SCHEMA_VERSION = 1

# PARITY.md 2: designs whose pairs can acquit. A screen can only convict.
ACQUITTING_DESIGNS: tuple[DesignName, ...] = ("branch", "scratch", "groups", "items")
# The checks that say "as good": of losses, and of item evaluations.
ACQUITTING_CHECKS = ("parity", "evals")

# Designs that are all there is, and so have no place of their own to be named by.
DESIGN_NAMES: Mapping[DesignName, str] = {"groups": "finished runs", "items": "item evaluations"}

# What a screen may leave open where longer pairs answer the same question: that it could not decide by itself.
UNDECIDED_SCREEN = ("UNDERPOWERED", "TOO_FEW_PAIRS", "NO_SENSITIVITY")


@dataclass(frozen=True)
class Row:
    """One row of the ranked table. meaning: what the code says, in one sentence. next_step: what would change it."""

    code: str
    verdict: VerdictName
    meaning: str
    next_step: str


# PARITY.md 4: the first row that holds decides. The numerics of the integration phase stand with the other plain failures.
RANKED: tuple[Row, ...] = (
    Row(
        "BASELINE_UNHEALTHY",
        "INCONCLUSIVE",
        "The BF16 baseline did not learn, so there is nothing to be as good as.",
        "Make the BF16 run train: check learning rate, warm-up, initial weights and data, then run the baseline again.",
    ),
    Row(
        "NON_FINITE",
        "FAIL",
        "The candidate produced NaN or Inf.",
        "Keep the layers named in BF16, or choose a recipe with current scaling.",
    ),
    Row(
        "DIVERGED",
        "FAIL",
        "The candidate left its baseline for good.",
        "Look where the curves part; keep first and last layers in BF16, or choose a recipe with more precision.",
    ),
    Row(
        "CANDIDATE_CRASH",
        "FAIL",
        "The candidate alone crashed or ran out of memory.",
        "Read the end of its log; with out of memory, try a smaller micro-batch in both arms.",
    ),
    Row(
        "RESUME_MISMATCH",
        "FAIL",
        "A saved and loaded FP8 run does not go on as if it had not stopped.",
        "Save the scaling state (amax histories, scales) with the checkpoint.",
    ),
    Row(
        "GRADIENT_LOST",
        "FAIL",
        "A gradient is zero in FP8 where it is not in BF16.",
        "Scale gradients (per tensor, or the loss), or keep the layer in BF16.",
    ),
    Row(
        "GRADIENT_MISMATCH",
        "FAIL",
        "FP8 gradients are mostly error.",
        "Use a gradient format with more range or precision, or keep the layers named in BF16.",
    ),
    Row(
        "ACCUMULATION_MISMATCH",
        "FAIL",
        "Accumulating micro-batches gives another gradient than one batch.",
        "Check the FP8 weight cache and which micro-batch's gradient is kept.",
    ),
    Row(
        "INFERENCE_MISMATCH",
        "FAIL",
        "The same weights predict something else under an FP8 forward.",
        "Check that scales are loaded and warmed before the forward, then the recipe.",
    ),
    Row(
        "OUTPUT_MISMATCH",
        "FAIL",
        "A layer's output is mostly error under an FP8 forward.",
        "Keep the layers named in BF16, or choose a recipe with more precision.",
    ),
    Row(
        "BF16_KERNELS",
        "FAIL",
        "Layers that were to run in FP8 ran in BF16.",
        "Look at the layers named: shapes, the library's fallbacks; name what may stay in BF16 in candidate.keep_bf16.",
    ),
    Row(
        "LAYER_MISMATCH",
        "FAIL",
        "A GEMM by itself, on the same operands, is mostly error in FP8.",
        "Keep the layers named in BF16 (or only that GEMM, by a policy rule), or choose a recipe with more precision.",
    ),
    Row(
        "INVALID_PAIR",
        "INCONCLUSIVE",
        "The arms are known to differ in more than precision.",
        "Make the settings named the same in both arms and run the pairs again.",
    ),
    Row(
        "REPEATED_RUN",
        "INCONCLUSIVE",
        "One run stands for several.",
        "Name each run once.",
    ),
    Row(
        "OUT_OF_MEMORY",
        "INCONCLUSIVE",
        "The BF16 run does not fit into the memory that is free here.",
        "Put what fits into the plan; or free memory, delete the run's folder, and give the same command again.",
    ),
    Row(
        "TRUNCATED",
        "INCONCLUSIVE",
        "A run, an arm, a step or a measurement is missing.",
        "Complete what is named and give the same command again.",
    ),
    Row(
        "FP8_NOT_ACTIVE",
        "INCONCLUSIVE",
        "Nothing proves that the candidate ran in FP8.",
        "Check what was converted and why not (a plan that is an A/A test says parity.require_fp8: false).",
    ),
    Row(
        "LOW_RESOLUTION",
        "INCONCLUSIVE",
        "The losses have fewer digits than the margin needs.",
        "Log the losses with more digits.",
    ),
    Row(
        "GAP",
        "FAIL",
        "The candidate is worse than the margin allows.",
        "Keep more layers in BF16 or choose another recipe, and confirm it on fresh data orders.",
    ),
    Row(
        "TOO_SLOW",
        "FAIL",
        "The candidate is slower than the policy allows.",
        "Look at the shapes: small GEMMs lose more in casts than they gain; keep the losers in BF16, compile the rest.",
    ),
    Row(
        "TOO_MUCH_MEMORY",
        "FAIL",
        "The candidate takes more memory than the policy allows.",
        "Keep no BF16 copies of the weights beside the FP8 ones, or raise the limit.",
    ),
    Row(
        "GRADIENTS_GREW",
        "FAIL",
        "The candidate's gradient norm is above what the policy allows.",
        "Look for layers whose gradients FP8 inflates; keep them in BF16.",
    ),
    Row(
        "NOT_WORTH_IT",
        "FAIL",
        "What FP8 saves does not make up for what it costs in quality.",
        "Tune the speed first: it is the gain at equal quality that counts.",
    ),
    Row(
        "PENALTY_UNKNOWN",
        "INCONCLUSIVE",
        "The loss as logged is above the margin, but how much of that is the FP8 forward alone is not known.",
        "Validate both arms under a BF16 forward (or say what the forward alone costs: --forward-penalty).",
    ),
    Row(
        "NO_SENSITIVITY",
        "INCONCLUSIVE",
        "The design did not convict a recipe known to be bad, so its silence proves nothing.",
        "Run longer or with more pairs (a PASS needs at least 4) until the bad recipe is convicted.",
    ),
    Row(
        "TOO_FEW_PAIRS",
        "INCONCLUSIVE",
        "Fewer runs than a PASS needs.",
        "A PASS needs at least 4 pairs, or 4 runs in each arm.",
    ),
    Row(
        "NO_REPLICATES",
        "INCONCLUSIVE",
        "How much evaluations scatter from run to run is not known.",
        "Evaluate a second BF16 run beside the first.",
    ),
    Row(
        "SUSPECT_MISMATCH",
        "INCONCLUSIVE",
        "The candidate is better than can be true.",
        "Look for a difference between the arms that is not precision: learning rate, data, weight decay.",
    ),
    Row(
        "WIDENING",
        "INCONCLUSIVE",
        "The gap still grows at the end of the run, towards the margin.",
        "Run longer pairs.",
    ),
    Row(
        "SPIKES",
        "INCONCLUSIVE",
        "The candidate has more loss spikes of its own than chance gives.",
        "Look at the spikes; lower the learning rate or lengthen the warm-up in both arms.",
    ),
    Row(
        "SUPPORTING_FAILED",
        "INCONCLUSIVE",
        "What decides is good; a supporting metric failed.",
        "Look at the metric named, or make it advisory in the policy.",
    ),
    Row(
        "EVIDENCE_REQUIRED",
        "INCONCLUSIVE",
        "Evidence that the policy requires is not known.",
        "Put the configuration beside the logs, or let somebody answer for it with --attest.",
    ),
    Row(
        "SPEED_UNKNOWN",
        "INCONCLUSIVE",
        "Whether the candidate is fast enough cannot be told from these logs.",
        "Log tokens per second or step times in every run, in at least two runs of each arm.",
    ),
    Row(
        "MEMORY_UNKNOWN",
        "INCONCLUSIVE",
        "Whether the candidate needs more memory cannot be told from these logs.",
        "Log peak memory in every run.",
    ),
    Row(
        "GRADIENTS_UNKNOWN",
        "INCONCLUSIVE",
        "How the gradient norms compare cannot be told from these logs.",
        "Log the gradient norm in every run.",
    ),
    Row(
        "WORTH_UNKNOWN",
        "INCONCLUSIVE",
        "Whether FP8 is worth it cannot be told from these logs.",
        "Log the speed in at least two runs of each arm.",
    ),
    Row(
        "UNDERPOWERED",
        "INCONCLUSIVE",
        "The runs scatter too much to tell.",
        "Plan a new design with the pairs named, or quieter ones: a later start, a longer run.",
    ),
    Row(
        "NOT_JUDGED",
        "INCONCLUSIVE",
        "Nothing failed, but not everything that a PASS needs was judged.",
        "Run the phases and checks named.",
    ),
    Row(
        "SCREENED",
        "SCREENED",
        "The screens convicted nothing. A short screen cannot acquit.",
        "Run branch or scratch pairs for a PASS.",
    ),
    Row(
        "REAL_BUT_ACCEPTABLE",
        "PASS",
        "FP8 is measurably worse, by less than the margin.",
        "Decide whether the gap is worth what FP8 saves.",
    ),
    Row(
        "PASS",
        "PASS",
        "FP8 is as good as BF16 within the margin.",
        "Rehearse at full size: the scope says what this does not cover.",
    ),
)
ROWS: Mapping[str, Row] = {row.code: row for row in RANKED}


@dataclass(frozen=True)
class Verdict:
    """The answer. code: from the ranked table. why: one sentence with the numbers. next_step: what would change it."""

    name: VerdictName
    code: str
    why: str
    next_step: str = ""
    decided_by: str = ""


@dataclass(frozen=True)
class PhaseReport:
    """One phase as it passed. state: passed, failed, inconclusive, or not run and why."""

    name: str
    state: PhaseState
    results: tuple[CheckResult, ...]
    note: str = ""
    wall_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Report:
    """headline: verdict in one line, with "emulated" and "A/A test" where they apply. scope, not_covered: short sentences.
    evidence_sha256: over results, deltas and losses, without any wall-clock time: equal evidence gives an equal digest.
    """

    name: str
    verdict: Verdict
    headline: str
    scope: tuple[str, ...]
    not_covered: tuple[str, ...]
    phases: tuple[PhaseReport, ...]
    baseline: BaselineEvidence | None
    integration: IntegrationEvidence | None
    comparisons: tuple[Comparison, ...]
    environment: Environment | None
    plan_text: str
    plan_sha256: str
    evidence_sha256: str
    reproduce: tuple[str, ...]
    forced: tuple[str, ...] = ()
    created: str = ""
    version: str = ""
    schema_version: int = SCHEMA_VERSION
    items: ItemComparison | None = None

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(result for phase in self.phases for result in phase.results)


class PhaseFindings(Protocol):
    """What a phase found, as far as a report needs it."""

    @property
    def results(self) -> tuple[CheckResult, ...]: ...
    @property
    def baseline(self) -> BaselineEvidence | None: ...
    @property
    def integration(self) -> IntegrationEvidence | None: ...
    @property
    def comparisons(self) -> tuple[Comparison, ...]: ...


def decide(results: Sequence[CheckResult]) -> Verdict:
    """The first row of the ranked table that holds. Fail closed: without every required check there is no PASS."""
    acquits = any(result.design in ACQUITTING_DESIGNS for result in results)
    deciding = [r for r in results if not r.advisory and not (acquits and r.design == "screen" and r.code in UNDECIDED_SCREEN)]
    if problem := _first_problem(deciding):
        row, result = problem
        return Verdict(row.verdict, row.code, _said(result), row.next_step, result.check)
    if lacking := _not_judged(deciding, results):
        return Verdict("INCONCLUSIVE", "NOT_JUDGED", f"not judged: {some(lacking)}", ROWS["NOT_JUDGED"].next_step)
    acquitting = [r for r in deciding if r.check in ACQUITTING_CHECKS and r.design in ACQUITTING_DESIGNS]
    parity = [r for r in acquitting or deciding if r.check == "parity"]
    worst = _closest_to_margin(parity or acquitting)
    why = _said(worst)
    if not acquitting:
        return Verdict("SCREENED", "SCREENED", why, ROWS["SCREENED"].next_step, "parity")
    real = any(result.code == "REAL_BUT_ACCEPTABLE" for result in acquitting)
    row = ROWS["REAL_BUT_ACCEPTABLE" if real else "PASS"]
    return Verdict("PASS", row.code, why, row.next_step, worst.check)


def _first_problem(deciding: Sequence[CheckResult]) -> tuple[Row, CheckResult] | None:
    """The highest-ranked row that a failed or inconclusive result names, with the first result that names it."""
    problems = [result for result in deciding if result.status in ("fail", "inconclusive")]
    unknown = [result.code for result in problems if result.code not in ROWS]
    assert not unknown, f"codes without a row in the ranked table: {unknown}"
    for row in RANKED:
        for result in problems:
            if result.code == row.code:
                return row, result
    return None


def _not_judged(deciding: Sequence[CheckResult], results: Sequence[CheckResult]) -> list[str]:
    """What a SCREENED or PASS still needs: a judged comparison, every required check of each design seen, nothing skipped."""
    lacking = [f"{result.check} was skipped ({result.summary})" for result in deciding if result.status == "skipped"]
    designs = dict.fromkeys(result.design for result in results if result.design)
    if "screen" in designs and not any(design in ACQUITTING_DESIGNS for design in designs):
        designs["long_screen"] = None  # a screen that is the last word must also have looked for drift
    for design in designs:
        have = {result.check for result in results if result.design == design}
        words = place(design, None) or DESIGN_NAMES[design]
        missing = [f"{name} of the {words}" for name in sorted(required_checks(design) - have)]
        lacking += missing if have else [f"the {words}"]
    needed = "evals" if set(designs) == {"items"} else "parity"
    if not any(result.check == needed and result.status == "pass" for result in deciding):
        lacking.append("item evaluations" if needed == "evals" else "parity on pairs of runs")
    return lacking


def _closest_to_margin(results: Sequence[CheckResult]) -> CheckResult:
    """The result whose bound on the bad side uses most of its margin: a loss that is higher, a score that is lower."""

    def used(result: CheckResult) -> float:
        if not (result.interval and result.limit):
            return float("-inf")
        return (-result.interval[0] if result.unit == "points" else result.interval[1]) / result.limit

    return max(results, key=used)


def _said(result: CheckResult) -> str:
    """Where a result has a place of its own, its place first."""
    return f"{result.scope}: {result.summary}" if result.scope else result.summary


def phase_state(results: Sequence[CheckResult]) -> PhaseState:
    """How a phase ended. A phase without pairs passes when all that it requires was judged and nothing spoke against it."""
    verdict = decide(results)
    states: Mapping[VerdictName, PhaseState] = {"PASS": "passed", "FAIL": "failed", "SCREENED": "screened"}
    if verdict.name in states:
        return states[verdict.name]
    designs = {result.design for result in results}
    complete = bool(designs) and designs <= {"baseline", "integration"} and verdict.code == "NOT_JUDGED"
    deciding = [result for result in results if not result.advisory]
    return "passed" if complete and _not_judged(deciding, results) == ["parity on pairs of runs"] else "inconclusive"


def build_report(
    plan: Plan,
    plan_text: str,
    phases: Mapping[str, PhaseFindings | None],
    environment: Environment | None,
    *,
    notes: Mapping[str, str] | None = None,
    wall_seconds: Mapping[str, float] | None = None,
    reproduce: Sequence[str] = (),
    forced: Sequence[str] = (),
    created: str = "",
    version: str = "",
) -> Report:
    """Everything that a report shows. phases: in order, by name; None where a phase was not run, `notes` says why."""
    reports = tuple(
        _phase_report(name, findings, (notes or {}).get(name, ""), (wall_seconds or {}).get(name, 0.0))
        for name, findings in phases.items()
    )
    ran = [findings for findings in phases.values() if findings is not None]
    comparisons = tuple(comparison for findings in ran for comparison in findings.comparisons)
    baseline = next((findings.baseline for findings in ran if findings.baseline), None)
    integration = next((findings.integration for findings in ran if findings.integration), None)
    verdict = decide([result for report in reports for result in report.results])
    results = tuple(result for report in reports for result in report.results)
    emulated = any(c.emulated for c in comparisons) or (integration is not None and integration.emulated)
    return Report(
        name=plan.name,
        verdict=verdict,
        headline=_headline(verdict, plan, emulated, forced, main_comparison(comparisons)),
        scope=_scope(plan, comparisons, results, environment),
        not_covered=_not_covered(plan, comparisons, results, emulated),
        phases=reports,
        baseline=baseline,
        integration=integration,
        comparisons=comparisons,
        environment=environment,
        plan_text=plan_text,
        plan_sha256=plan_digest(plan),
        evidence_sha256=evidence_digest(results, baseline, comparisons),
        reproduce=tuple(reproduce),
        forced=tuple(forced),
        created=created,
        version=version,
    )


def _phase_report(name: str, findings: PhaseFindings | None, note: str, wall_seconds: float) -> PhaseReport:
    if findings is None:
        return PhaseReport(name, "not_run", (), note, wall_seconds)
    return PhaseReport(name, phase_state(findings.results), findings.results, note, wall_seconds)


# Below this share of the GEMM FLOPs in FP8 the headline says so: as good as BF16 is then mostly BF16.
LITTLE_FP8 = 0.5


def _headline(verdict: Verdict, plan: Plan, emulated: bool, forced: Collection[str], comparison: Comparison | None) -> str:
    """`PASS (emulated FP8): FP8 is as good as BF16 within the margin.` What limits the evidence stands before the claim."""
    tags = [verdict.code] if verdict.code != verdict.name else []
    if plan.candidate.recipe.kind == "bf16":
        tags.append("A/A test, BF16 against BF16")
    elif emulated:
        tags.append("emulated FP8")
    if not plan.parity.require_fp8 and plan.candidate.recipe.kind != "bf16":
        tags.append("FP8 not required by the plan")
    share = comparison.conversion.fp8_flops_share if comparison and comparison.conversion else 0.0
    if 0 < share < LITTLE_FP8:
        tags.append(f"FP8 in only {100 * share:.1f} % of the GEMM FLOPs")
    tags += [f"forced past {what}" for what in forced]
    said = f" ({', '.join(tags)})" if tags else ""
    return f"{verdict.name}{said}: {ROWS[verdict.code].meaning}"


def main_comparison(comparisons: Sequence[Comparison]) -> Comparison | None:
    """The comparison that says most: the last that can acquit, else the last screen. A long screen only adds to its screen."""
    acquitting = [comparison for comparison in comparisons if comparison.design in ACQUITTING_DESIGNS]
    found = acquitting or [comparison for comparison in comparisons if comparison.design != "long_screen"]
    return found[-1] if found else None


def _scope(
    plan: Plan, comparisons: Sequence[Comparison], results: Sequence[CheckResult], environment: Environment | None
) -> tuple[str, ...]:
    """What the verdict is about: recipe, model, margin, start, tokens, hardware, software."""
    lines = []
    if comparison := main_comparison(comparisons):
        lines = [
            f"Recipe: {comparison.recipe}{', emulated' if comparison.emulated else ''}{_share(comparison)}.",
            f"Model: {comparison.model}.",
            f"Margin: {limit(comparison.margin)} of the loss, served in {plan.parity.serve.upper()}.",
            f"Start: {_start(comparison)}.",
            f"Length: {comparison.tokens:,} tokens a run, {_pairs(comparison)}{_reach(results, comparison.design)}.",
        ]
    if environment:
        lines.append(f"Hardware: {environment.device_name} ({environment.device}); BF16 GEMMs {environment.bf16_gemm}.")
        lines.append(f"Software: {_software(environment)}.")
    return tuple(lines)


def _share(comparison: Comparison) -> str:
    share = comparison.conversion.fp8_flops_share if comparison.conversion else 0
    return f"; {100 * share:.1f} % of the GEMM FLOPs in FP8" if share else ""


def _start(comparison: Comparison) -> str:
    if comparison.design == "screen":
        fractions = ", ".join(f"{100 * fraction:g} %" for fraction in comparison.fractions if fraction is not None)
        return f"{comparison.last_step - comparison.first_step} cooled steps from {fractions} of a BF16 run"
    if comparison.first_step == 0:
        return "the initial weights, each pair its own"
    return f"one BF16 checkpoint at step {comparison.first_step}, and from there on"


def _pairs(comparison: Comparison) -> str:
    fractions = len(comparison.fractions)
    return counted(comparison.planned_pairs, "pair") + (f" at each of {fractions} starts" if fractions > 1 else "")


def _reach(results: Sequence[CheckResult], design: DesignName) -> str:
    """How far the trend lets the verdict reach: a horizon only where the gap projected to it stays below the margin."""
    longer = [r for r in results if r.check == "no_screen_drift"]
    if design == "screen" and longer and all(r.status == "pass" for r in longer):
        return f"; {longer[0].scope} {LONG_SCREEN_FACTOR} × that, where the gap grew by less than half the margin; not beyond"
    trends = [r for r in results if r.check == "no_widening" and r.design == design and r.interval and r.limit]
    if trends and all(r.interval and r.limit and r.interval[1] < r.limit for r in trends):
        return f"; the trend reaches {HORIZON:g} × that"
    return "; not beyond"


def _software(environment: Environment) -> str:
    named = {
        "fp8migrate": environment.fp8migrate,
        "Python": environment.python,
        "torch": environment.torch,
        "Transformer Engine": environment.transformer_engine,
        "torchao": environment.torchao,
        "CUDA": environment.cuda,
        "driver": environment.driver,
    }
    return ", ".join(f"{name} {version}" for name, version in named.items() if version)


def _not_covered(
    plan: Plan, comparisons: Sequence[Comparison], results: Sequence[CheckResult], emulated: bool
) -> tuple[str, ...]:
    """What the verdict says nothing about."""
    lines = ["Larger models and longer training: outliers that grow late, tensor-parallel amax groups, experts."]
    if emulated:
        lines.append("Speed, memory and the kernels of an FP8 GPU: FP8 was emulated.")
    comparison = main_comparison(comparisons)
    if comparison is None:
        lines.append("Learned quality: no pairs of runs were compared.")
    elif comparison.design == "screen":
        lines.append("Acquittal: a short screen understates a bad recipe.")
    elif comparison.design == "branch":
        lines.append(f"Training in FP8 before step {comparison.first_step}.")
    if plan.parity.serve == "bf16" and (penalty := _largest(results, "forward_penalty")) is not None:
        lines.append(f"Serving in FP8: the FP8 forward alone costs {percent(penalty)} of the loss on the same weights.")
    if comparison and comparison.data_passes > 1:
        lines.append(f"Fresh data: the runs saw their text {comparison.data_passes:.3g} times.")
    lines.append("Item evaluations: only losses were compared.")
    return tuple(lines)


def _largest(results: Iterable[CheckResult], check: str) -> float | None:
    return max((r.measured for r in results if r.check == check and r.measured is not None), default=None)


def evidence_digest(
    results: Sequence[CheckResult], baseline: BaselineEvidence | None, comparisons: Sequence[Comparison]
) -> str:
    """SHA-256 (hex) over what was judged and what was measured: results, gaps, losses. No time, no path, no speed."""
    digest = hashlib.sha256()
    for result in results:
        numbers = [result.measured, result.limit, *(result.interval or ())]
        _add(digest, [result.check, result.status, result.code, result.design, result.fraction, _exact(numbers)])
    if baseline:
        _add(digest, _exact([value for delta in baseline.floor for value in (delta.baseline, delta.candidate)]))
        _add_series(digest, [series for series in (baseline.loss, baseline.grad_norm) if series])
    for comparison in comparisons:
        for cell in comparison.cells:
            deltas = [value for delta in cell.deltas for value in (delta.pair, delta.baseline, delta.candidate)]
            _add(digest, [cell.arm, cell.endpoint, cell.fraction, _exact([cell.sampling_error, *deltas])])
        for curves in comparison.curves:
            _add(digest, [curves.arm, curves.pair, curves.fraction])
            _add_series(digest, [curves.baseline, curves.candidate])
        for growth in comparison.growth:
            _add(digest, [growth.endpoint, growth.pairs, _exact([growth.sampling_error, *growth.values])])
    return digest.hexdigest()


def _exact(numbers: Iterable[float | None]) -> list[str | None]:
    """Every bit of each number, NaN and Inf included."""
    return [None if number is None else float(number).hex() for number in numbers]


def _add(digest: Any, content: Any) -> None:
    digest.update(orjson.dumps(content))


def _add_series(digest: Any, series: Iterable[Series]) -> None:
    for one in series:
        digest.update(np.ascontiguousarray(one.steps).tobytes() + np.ascontiguousarray(one.values).tobytes())
