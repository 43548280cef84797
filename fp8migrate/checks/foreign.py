"""Finished runs of others: can they be compared as they are, and is what a policy requires known?"""

from fp8migrate.checks.check import Check, Need, Results
from fp8migrate.checks.schema import CheckResult
from fp8migrate.checks.words import counted, some
from fp8migrate.evidence.logged_settings import EVIDENCE_ROWS
from fp8migrate.evidence.schema import Comparison, Groups


def comparable(comparison: Comparison) -> Results:
    """Same quantity, unit and length, the same start where runs are pairs, a baseline that is BF16, a schedule at its end."""
    groups = _groups(comparison)
    found = [CheckResult("comparable", "inconclusive", obstacle.what, obstacle.code) for obstacle in groups.obstacles]
    if found:
        return found
    how = {
        "pairs": f"{counted(groups.sizes[0], 'pair')} on the same batches, by the noise of their losses",
        "shared": "all runs saw the same batches, by the noise of their losses; no run belongs to one of the other arm",
        "unpaired": "runs on data orders of their own, compared as groups",
        "unknown": "whether runs shared their data order cannot be told; compared as groups",
    }[groups.pairing]
    notes = f" ({some(list(groups.notes))})" if groups.notes else ""
    return [CheckResult("comparable", "pass", f"{how}{notes}", evidence=groups.notes)]


def fp8_on_logs(comparison: Comparison) -> Results:
    """Only positive evidence counts against FP8: logs cannot prove that it ran."""
    groups = _groups(comparison)
    fault = groups.no_fp8
    if comparison.identical_pairs:
        fault = f"{counted(comparison.identical_pairs, 'candidate run')} with the losses of a baseline run, digit for digit"
    if fault:
        return [CheckResult("fp8_active", "inconclusive", fault, "FP8_NOT_ACTIVE")]
    return [CheckResult("fp8_active", "pass", "nothing speaks against FP8 having run; logs cannot prove that it did")]


def required_evidence(comparison: Comparison) -> Results:
    """What the policy requires to be known is known, or somebody has put his name to it."""
    groups = _groups(comparison)
    rows = {row.setting: row for row in comparison.audit}
    told = [(name, rows.get(EVIDENCE_ROWS[name])) for name in groups.requires]
    lacking = [name for name, row in told if row is None or row.status not in ("same", "attested")]
    if lacking:
        hint = " ".join(f"--attest {name}='WHO: what'" for name in lacking)
        summary = f"required and not known: {some([EVIDENCE_ROWS[name] for name in lacking])} ({hint})"
        return [CheckResult("evidence", "inconclusive", summary, "EVIDENCE_REQUIRED", evidence=tuple(lacking))]
    said = [f"{row.setting}: {row.candidate}" for row in comparison.audit if row.status == "attested"]
    summary = f"known as the policy requires: {some([EVIDENCE_ROWS[name] for name in groups.requires])}"
    attested = f"; attested: {some(said)}" if said else ""
    return [CheckResult("evidence", "pass", f"{summary}{attested}" if groups.requires else f"nothing required{attested}")]


def _groups(comparison: Comparison) -> Groups:
    assert comparison.groups is not None
    return comparison.groups


GROUPS: Need[Comparison] = Need("any finished run", lambda c: c.groups is not None, "TRUNCATED")

CHECKS = (
    Check("comparable", comparable, (GROUPS,)),
    Check("fp8_active", fp8_on_logs, (GROUPS,)),
    Check("evidence", required_evidence, (GROUPS,)),
)
