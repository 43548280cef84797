"""Phase 1: BF16 alone. Does it learn, how much does it scatter, how fast and large is it?

The floor runs are the baseline once more from a late checkpoint, with every weight one ulp away.
"""

from fp8migrate.checks import judge_baseline
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.jobs import CheckpointRef, Job
from fp8migrate.phases.advisor import Device, tensor_stats
from fp8migrate.phases.build import JobBuilder, Start
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import Plan

FLOOR_START = 0.8
FLOOR_RUNS = 2


class Baseline:
    name = "baseline"

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        jobs = baseline_jobs(plan, findings)
        if findings.missing(jobs):
            return Jobs(jobs, "train the model in BF16, and its end again one ulp away")
        evidence = baseline_evidence(plan, jobs, findings.records)
        return Done(results=judge_baseline(evidence), baseline=evidence)

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        return baseline_jobs(plan, findings)


def baseline_jobs(plan: Plan, findings: Findings) -> tuple[Job, ...]:
    """The BF16 run of the plan's own model, and its floor runs from FLOOR_START on."""
    builder = JobBuilder(plan, findings.environment, "baseline", plan.model, plan.training)
    last = plan.training.num_steps
    floor_start = min(last - 1, round(FLOOR_START * last))
    order = builder.data_order("baseline", 0)
    # A schedule of one or two steps has no late checkpoint to start a floor from.
    kept = tuple(sorted({floor_start, last} - {0}))
    (run,) = builder.pair("baseline", 0, ["baseline"], start=Start(), last_step=last, data_order=order, checkpoint_at=kept)
    run = with_advisor(run, plan, findings.environment.device)
    start = Start(floor_start, run) if floor_start else Start()
    floors = [
        builder.pair("baseline", pair, ["floor"], start=start, last_step=last, data_order=order)[0]
        for pair in range(FLOOR_RUNS)
    ]
    return (run, *floors)


def with_advisor(run: Job, plan: Plan, device: Device) -> Job:
    """The BF16 run with its tensors looked at, which changes none of its bits."""
    return run.model_copy(update={"task": run.task.model_copy(update={"tensor_stats": tensor_stats(plan, device)})})


def final_checkpoint(plan: Plan, findings: Findings) -> CheckpointRef:
    """The checkpoint that the BF16 run leaves at its end."""
    return CheckpointRef(job=baseline_jobs(plan, findings)[0].digest, step=plan.training.num_steps)
