"""The result of one check."""

from dataclasses import dataclass
from typing import Literal

CheckStatus = Literal["pass", "fail", "inconclusive", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """One check on one piece of evidence.

    check: its name, stable across versions. code: a code of the ranked table in `verdict`, empty where status is pass or
    skipped without one (a pass may carry REAL_BUT_ACCEPTABLE). measured, limit, interval: in `unit`; None where the check has no number. summary: one sentence
    for people. evidence: where it can be looked up (run labels, table names). advisory results never decide.
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
