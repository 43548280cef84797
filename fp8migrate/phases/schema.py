"""What a phase is given and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.schema import BaselineEvidence, Comparison, IntegrationEvidence
from fp8migrate.jobs import Job
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Environment, Record


@dataclass(frozen=True)
class Jobs:
    """Work to do before the phase can go on. Start jobs are named by digest and may be among them or already done."""

    jobs: tuple[Job, ...]
    because: str


@dataclass(frozen=True, eq=False)
class Done:
    """What the phase found. Its results decide whether the next phase runs."""

    results: tuple[CheckResult, ...]
    baseline: BaselineEvidence | None = None
    integration: IntegrationEvidence | None = None
    comparisons: tuple[Comparison, ...] = ()


@dataclass(frozen=True, eq=False)
class Findings:
    """All that is known so far: records by job digest, and what earlier phases found, by name."""

    environment: Environment
    records: Mapping[str, Record] = field(default_factory=dict)
    phases: Mapping[str, Done] = field(default_factory=dict)

    def missing(self, jobs: tuple[Job, ...]) -> tuple[Job, ...]:
        """Those of `jobs` without a record."""
        return tuple(job for job in jobs if job.digest not in self.records)


class Phase(Protocol):
    name: str

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        """What the phase needs next, or what it found. Pure: the same arguments give the same answer."""
        ...

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        """Every job that the phase may ask for, were nothing known yet."""
        ...
