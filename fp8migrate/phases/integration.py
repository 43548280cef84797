"""Phase 2: can FP8 run here, what does it reach, is inference right, then one training step, then save and load."""

from collections.abc import Sequence

from fp8migrate.checks import judge_integration
from fp8migrate.errors import PlanError
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.evidence.integration import integration_evidence
from fp8migrate.jobs import ForwardCheck, Job, OneStep, Role
from fp8migrate.phases.advised import advised_layers
from fp8migrate.phases.baseline import baseline_jobs, final_checkpoint
from fp8migrate.phases.build import JobBuilder
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import Plan
from fp8migrate.sizing.keep import Kept, advised_names
from fp8migrate.sizing.planned import planned_policy


class Integration:
    name = "integration"

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        jobs = integration_jobs(plan, findings)
        if findings.missing(jobs):
            because = "compare one forward and one training step in FP8 with BF16, on the baseline's last weights"
            return Jobs(jobs, because + _advised_words(plan, jobs))
        advised = baseline_evidence(plan, baseline_jobs(plan, findings), findings.records).advice
        evidence = integration_evidence(plan, jobs, findings.records, advised)
        return Done(results=judge_integration(evidence), integration=evidence)

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        return integration_jobs(plan, findings)


def _advised_words(plan: Plan, jobs: Sequence[Job]) -> str:
    """What the plan's keep_advised came to, in a few words."""
    if not plan.candidate.keep_advised:
        return ""
    count = len(advised_names(jobs[0].task.precision.kept))
    return f"; {count} of its layers kept in BF16 as advised" if count else "; nothing is advised to stay in BF16"


def _demand_layers_left(plan: Plan, advised: Kept) -> None:
    """Raises PlanError where the advice leaves nothing in FP8. Without advice a plan is refused before anything runs."""
    if advised and not any(site.recipes for site in planned_policy(plan, plan.model, advised).sites.values()):
        raise PlanError(
            f"the advisor keeps {len(advised)} layers in BF16, and none is left in FP8: nothing is left to judge",
            where=f"{plan.name}: candidate.keep_advised",
            next_step="Choose another candidate.recipe (`fp8migrate baseline` forecasts each), or say keep_advised: false.",
        )


def integration_jobs(plan: Plan, findings: Findings) -> tuple[Job, ...]:
    """A forward check and a one-step check of the candidate, from the baseline's final checkpoint."""
    advised = advised_layers(plan, findings)
    builder = JobBuilder(plan, findings.environment, "integration", plan.model, plan.training, advised)
    _demand_layers_left(plan, advised)
    start = final_checkpoint(plan, findings)
    return tuple(
        builder.job(
            task(
                model=plan.model,
                data=plan.data,
                training=plan.training,
                precision=builder.precision("candidate"),
                data_order=builder.data_order("integration", 0),
            ),
            Role(design="integration", arm="candidate", pair=number),
            start,
        )
        for number, task in enumerate((ForwardCheck, OneStep))
    )
