"""One ranked table: check results -> verdict -> Report. The Report holds everything that any format shows."""

from dataclasses import dataclass
from typing import Literal

from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.schema import BaselineEvidence, Comparison, IntegrationEvidence
from fp8migrate.records.schema import Environment

VerdictName = Literal["PASS", "FAIL", "INCONCLUSIVE", "SCREENED"]
SCHEMA_VERSION = 1


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
    state: Literal["passed", "failed", "inconclusive", "screened", "not_run"]
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

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(result for phase in self.phases for result in phase.results)
