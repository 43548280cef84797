"""What the advisor of the baseline's BF16 run keeps in BF16, where the plan asks for that."""

from fp8migrate.evidence.advice import unfit_layers
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.phases.baseline import baseline_jobs
from fp8migrate.phases.schema import Findings
from fp8migrate.plan.schema import Plan
from fp8migrate.sizing.keep import Kept


def advised_layers(plan: Plan, findings: Findings) -> Kept:
    """Layers of the plan's model, and why; none before the baseline ran, where nothing was advised, or not asked for."""
    if not plan.candidate.keep_advised:
        return ()
    done = findings.phases.get("baseline")
    evidence = done.baseline if done else None
    if evidence is None:
        evidence = baseline_evidence(plan, baseline_jobs(plan, findings), findings.records)
    return () if evidence.advice is None else tuple((one.layer, one.reason) for one in unfit_layers(evidence.advice, plan))
