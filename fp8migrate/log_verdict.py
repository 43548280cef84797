"""Finished runs: check results, a policy's tiers → verdict → Report."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import orjson

from fp8migrate.checks.schema import CheckResult
from fp8migrate.checks.words import limit, percent
from fp8migrate.evidence.items import ItemComparison
from fp8migrate.evidence.schema import Comparison
from fp8migrate.plan.policy import Policy
from fp8migrate.verdict import ROWS, PhaseReport, Report, Verdict, decide, evidence_digest, phase_state

PHASE = "compare"
# Measures that a reader asks for beside the verdict, in this order.
_ASIDE = ("evals", "speed", "worth_it", "memory")


def apply_tiers(results: Sequence[CheckResult], policy: Policy) -> tuple[CheckResult, ...]:
    """A metric's results as its tier has them: advisory ones are told, supporting ones can take a PASS away by failing."""
    return tuple(_tiered(result, policy) for result in results)


def _tiered(result: CheckResult, policy: Policy) -> CheckResult:
    tier = policy.metrics.tier_of(result.metric) if result.metric else "critical"
    if tier == "critical" or result.advisory:
        return result
    if tier == "supporting" and (result.status == "fail" or (result.status == "inconclusive" and _beyond(result))):
        summary = f"supporting metric {result.metric}: {result.summary} ({result.code})"
        return replace(result, status="inconclusive", code="SUPPORTING_FAILED", summary=summary)
    return replace(result, advisory=True)


def _beyond(result: CheckResult) -> bool:
    """Whether what was measured lies on the bad side of its limit, decided or not."""
    if result.measured is None or result.limit is None:
        return False
    if result.unit == "points":
        return result.measured < -result.limit
    return result.measured < result.limit if result.metric in ("speed", "worth_it") else result.measured > result.limit


def log_report(
    policy: Policy,
    policy_text: str,
    comparisons: Sequence[Comparison],
    results: Sequence[CheckResult],
    *,
    items: ItemComparison | None = None,
    reproduce: Sequence[str] = (),
    created: str = "",
    version: str = "",
) -> Report:
    """Everything that a report on finished runs shows. results: tiers applied."""
    verdict = decide(results)
    return Report(
        name=policy.name,
        verdict=verdict,
        headline=_headline(verdict, comparisons),
        scope=(*_scope(policy, comparisons, results), *_items_scope(items)),
        not_covered=_not_covered(policy, comparisons),
        phases=(PhaseReport(PHASE, phase_state(results), tuple(results)),),
        baseline=None,
        integration=None,
        comparisons=tuple(comparisons),
        environment=None,
        plan_text=policy_text,
        plan_sha256=policy_digest(policy),
        evidence_sha256=evidence_digest(results, None, comparisons),
        reproduce=tuple(reproduce),
        created=created,
        version=version,
        items=items,
    )


def policy_digest(policy: Policy) -> str:
    """SHA-256 (hex) of the policy's meaning: its name makes no difference."""
    content = policy.model_dump(mode="json", exclude={"name"})
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _headline(verdict: Verdict, comparisons: Sequence[Comparison]) -> str:
    """`PASS (not known: same data, FP8 ran): FP8 is as good as BF16 within the margin.`"""
    tags = [verdict.code] if verdict.code != verdict.name else []
    rows = [row for comparison in comparisons for row in comparison.audit]
    unknown = [row.setting for row in rows if row.status == "unknown"]
    if not comparisons:
        unknown = ["FP8 ran"]
    attested = [row.setting for row in rows if row.status == "attested"]
    tags += [f"not known: {', '.join(_few(unknown))}"] if unknown else []
    tags += [f"on somebody's word: {', '.join(attested)}"] if attested else []
    said = f" ({'; '.join(tags)})" if tags else ""
    return f"{verdict.name}{said}: {ROWS[verdict.code].meaning}"


def _few(names: Sequence[str], most: int = 4) -> list[str]:
    return [*names[:most], f"{len(names) - most} settings"] if len(names) > most else list(names)


def asides(results: Sequence[CheckResult]) -> tuple[str, ...]:
    """What stands beside the verdict on the terminal: speed, worth and memory, where the logs hold them."""
    told = [r for check in _ASIDE for r in results if r.check == check and r.status != "skipped" and r.measured is not None]
    return tuple(result.summary for result in told if result.status not in ("fail", "inconclusive") or result.advisory)


def _scope(policy: Policy, comparisons: Sequence[Comparison], results: Sequence[CheckResult]) -> tuple[str, ...]:
    lines = []
    for comparison in comparisons:
        assert comparison.groups
        baseline, candidate = comparison.groups.sizes
        reach = next((r.summary.rpartition(": ")[2] for r in results if r.check == "no_widening" and r.interval), "")
        lines += [
            f"Runs: {baseline} BF16 against {candidate} FP8, finished, as their logs have them ({comparison.model}).",
            f"Judged: {', '.join(_endpoints(comparison))}; served in {policy.serve.upper()}.",
            f"Length: {comparison.groups.axis} to {comparison.last_step:,}{f'; {reach}' if reach else ''}.",
        ]
        lines += [
            f"On somebody's word: {row.setting}: {row.candidate}." for row in comparison.audit if row.status == "attested"
        ]
    return tuple(lines)


def _items_scope(items: ItemComparison | None) -> tuple[str, ...]:
    if items is None:
        return ()
    documents = sum(task.num_items or 0 for task in items.compared)
    sides = f"{len(items.baseline)} BF16 against {len(items.candidate)} FP8 results"
    return (f"Item evaluations: {len(items.compared)} tasks, {documents:,} documents, {sides}.",)


def _endpoints(comparison: Comparison) -> list[str]:
    words = {"logged_validation_loss": "validation loss as logged", "training_loss": "training loss"}
    return [f"{words.get(e, e)} (margin {limit(comparison.margin_of(e))})" for e in comparison.primary]


def _not_covered(policy: Policy, comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    lines = ["Larger models and longer training: outliers that grow late, tensor-parallel amax groups, experts."]
    for comparison in comparisons:
        unknown = [row.setting for row in comparison.audit if row.status == "unknown"]
        if unknown:
            lines.append(f"What logs cannot prove: {', '.join(_few(unknown))}.")
        if policy.serve == "bf16" and policy.forward_penalty is None:
            lines.append("Under which forward the losses were measured: FP8's own forward penalty may stand in them.")
        elif policy.forward_penalty:
            lines.append(f"The forward penalty of {percent(policy.forward_penalty)} is the user's figure, not measured here.")
        lines.append("Whether this comparison would have seen a bad recipe: finished runs have no positive control.")
    return tuple(lines)


def _also(report: Report, most: int = 3) -> list[str]:
    """What else keeps it from a PASS, beside the row that decides: who mends one thing wants to know of the next."""
    problems = [r for r in report.results if r.status in ("fail", "inconclusive") and not r.advisory and r.code in ROWS]
    others = list(dict.fromkeys(r.summary for r in problems if r.summary != report.verdict.why))
    return [*others[:most], *([f"{len(others) - most} more, in the report"] if len(others) > most else [])]


def _supporting_open(report: Report) -> list[str]:
    """Metrics that a policy names and the logs leave open: they decide nothing, and silence would look like a pass."""
    open_ones = [r for r in report.results if r.advisory and r.metric and r.status == "inconclusive" and r.check != "worth_it"]
    return [r.summary for r in open_ones[:3]]


def verdict_lines(report: Report) -> tuple[str, ...]:
    """The verdict for the terminal, most important first."""
    told = [report.headline, f"  {report.verdict.why}"]
    told += [f"  Also: {line}" for line in _also(report)]
    told += [f"  Not judged: {line}" for line in _supporting_open(report)]
    told += [f"  {line}" for line in asides(report.results)]
    told += [f"  Next: {report.verdict.next_step}"] if report.verdict.next_step else []
    return tuple(told)
