"""The result of one check."""

from dataclasses import dataclass
from typing import Literal

from fp8migrate.jobs import DesignName

CheckStatus = Literal["pass", "fail", "inconclusive", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """One check on one piece of evidence.

    check: its name, stable across versions. code: a code of the ranked table in `verdict`, empty where status is pass or
    skipped without one (a pass may carry REAL_BUT_ACCEPTABLE). measured, limit, interval: in `unit`; None where the check
    has no number. summary: one sentence for people. evidence: where it can be looked up (run labels, table names).
    advisory results never decide. design: of the evidence judged; fraction: of the trunk where its pairs start.
    metric: by which a gate policy knows it; empty where no policy has a word in it.
    """

    check: str
    status: CheckStatus
    summary: str
    code: str = ""
    measured: float | None = None
    limit: float | None = None
    unit: str = ""
    interval: tuple[float, float] | None = None
    evidence: tuple[str, ...] = ()
    scope: str = ""
    advisory: bool = False
    design: DesignName | None = None
    fraction: float | None = None
    metric: str = ""
