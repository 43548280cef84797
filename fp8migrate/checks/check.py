"""What a check is, and the one way to run one: a need that is not met is INCONCLUSIVE, never a pass and never silence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from fp8migrate.checks.schema import CheckResult
from fp8migrate.jobs import DesignName

E = TypeVar("E")
Results = Sequence[CheckResult]


@dataclass(frozen=True)
class Need(Generic[E]):
    """Something without which a check cannot say anything. code: of the ranked table, for its absence."""

    what: str
    present: Callable[[E], bool]
    code: str


@dataclass(frozen=True)
class Check(Generic[E]):
    """One check. run: evidence that meets all needs → at least one result.

    skip: why the check does not apply to this evidence, or None where it does. advisory: it informs and never decides.
    """

    name: str
    run: Callable[[E], Results]
    needs: tuple[Need[E], ...] = ()
    skip: Callable[[E], str | None] = lambda evidence: None
    advisory: bool = False


def run_check(check: Check[E], evidence: E, design: DesignName) -> tuple[CheckResult, ...]:
    """The results of one check, each with its design and place filled in."""
    results = _results(check, evidence)
    if not results:
        raise AssertionError(f"check {check.name} gave no result")
    return tuple(
        replace(r, advisory=r.advisory or check.advisory, design=design, scope=r.scope or place(design, r.fraction))
        for r in results
    )


def _results(check: Check[E], evidence: E) -> Results:
    if (reason := check.skip(evidence)) is not None:
        return [CheckResult(check.name, "skipped", reason, advisory=True)]
    for need in check.needs:
        if not need.present(evidence):
            return [CheckResult(check.name, "inconclusive", f"{need.what} is missing", code=need.code)]
    return check.run(evidence)


def run_checks(checks: Sequence[Check[E]], evidence: E, design: DesignName) -> tuple[CheckResult, ...]:
    return tuple(result for check in checks for result in run_check(check, evidence, design))


def place(design: DesignName, fraction: float | None) -> str:
    """`long screen at 30 % of the trunk`. Finished runs of others are all there is: they need no place."""
    if design in ("groups", "items"):
        return ""
    words = design.replace("_", " ")
    return words if fraction is None else f"{words} at {100 * fraction:g} % of the trunk"
