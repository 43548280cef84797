"""Checks: evidence in, CheckResult out. Each names what it needs; absence is never a pass.

A new check is one function in a family's file and one line in that family's CHECKS; a new family is one line here.
"""

from collections.abc import Sequence
from dataclasses import replace

from fp8migrate.checks import baseline, coverage, drift, efficiency, evals, foreign, numerics, parity, stability, validity
from fp8migrate.checks.check import Check, E, run_checks
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.items import ItemComparison
from fp8migrate.evidence.schema import BaselineEvidence, Comparison, IntegrationEvidence
from fp8migrate.jobs import DesignName

PAIR_CHECKS = (*stability.CHECKS, *validity.CHECKS, *coverage.CHECKS)
COMPARISON_CHECKS = (*PAIR_CHECKS, *drift.CHECKS, *parity.CHECKS)
# Its runs must be as sound as any; what it is run for is the growth of the gap. The gap itself is judged over K steps.
LONG_SCREEN_CHECKS = (*PAIR_CHECKS, *drift.LONG_SCREEN_CHECKS)
# Finished runs of others: what only runs of our own can show (conversion, passes over the data, a bad recipe) is not asked.
GROUP_CHECKS = (
    *stability.CHECKS,
    *validity.WHOLE_CHECKS,
    *foreign.CHECKS,
    *validity.SETUP_CHECKS,
    *drift.CHECKS,
    *parity.GROUP_CHECKS,
    *efficiency.CHECKS,
)
BASELINE_CHECKS = baseline.CHECKS
INTEGRATION_CHECKS = (*coverage.INTEGRATION_CHECKS, *numerics.CHECKS)


def judge_comparison(comparison: Comparison) -> tuple[CheckResult, ...]:
    """Every check on one comparison."""
    return run_checks(_comparison_checks(comparison.design), comparison, comparison.design)


def judge_evaluations(comparison: ItemComparison, *, alone: bool) -> tuple[CheckResult, ...]:
    """Item evaluations of finished runs. alone: no losses are judged beside them."""
    found = evals.judge_items(comparison)
    return tuple(replace(result, design="items") for result in found) if alone else found


def judge_baseline(evidence: BaselineEvidence) -> tuple[CheckResult, ...]:
    return run_checks(BASELINE_CHECKS, evidence, "baseline")


def judge_integration(evidence: IntegrationEvidence) -> tuple[CheckResult, ...]:
    return run_checks(INTEGRATION_CHECKS, evidence, "integration")


def required_checks(design: DesignName) -> frozenset[str]:
    """Names that must be among the results of a design before it can pass."""
    if design == "baseline":
        return _deciding(BASELINE_CHECKS)
    if design == "items":
        return frozenset({evals.MACRO})
    return _deciding(INTEGRATION_CHECKS) if design == "integration" else _deciding(_comparison_checks(design))


def _comparison_checks(design: DesignName) -> Sequence[Check[Comparison]]:
    if design == "groups":
        return GROUP_CHECKS
    return LONG_SCREEN_CHECKS if design == "long_screen" else COMPARISON_CHECKS


def _deciding(checks: Sequence[Check[E]]) -> frozenset[str]:
    return frozenset(check.name for check in checks if not check.advisory)
