"""Phase 3: pairs of a smaller model. Screens first, since they convict cheaply; then the pairs that can acquit."""

from fp8migrate.checks import judge_baseline, judge_comparison
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.evidence.growth import with_growth
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import Comparison
from fp8migrate.jobs import Cooldown, DesignName, Job
from fp8migrate.phases.advised import advised_layers
from fp8migrate.phases.build import JobBuilder, Start, arms_of_pair
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import LONG_SCREEN_FACTOR, BranchDesign, Plan, ScratchDesign, ScreenDesign
from fp8migrate.plan.shrink import shrink, shrunk_training


class SmallScale:
    name = "small_scale"

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        builder = small_builder(plan, findings)
        trunk = trunk_job(plan, builder)
        results: list[CheckResult] = []
        comparisons: list[Comparison] = []
        for design, jobs in designs(plan, builder, trunk):
            wanted = jobs if trunk is None else (trunk, *jobs)
            if findings.missing(wanted):
                return Jobs(wanted, _because(design))
            comparison = compare(plan, design, jobs, findings.records)
            if design == "long_screen":
                comparison = with_growth(comparison, screen=comparisons[-1])
            comparisons.append(comparison)
            results += judge_comparison(comparison)
            # A conviction is final: no later or longer pairs could turn it into a pass.
            if any(result.status == "fail" and not result.advisory for result in results):
                break
        if trunk is not None:
            judged = judge_baseline(baseline_evidence(plan, (trunk,), findings.records))
            # The trunk has no floor runs and no speed of its own to tell: only whether it learned counts here.
            results = [*(result for result in judged if not result.advisory), *results]
        return Done(results=tuple(results), comparisons=tuple(comparisons))

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        builder = small_builder(plan, findings)
        trunk = trunk_job(plan, builder)
        jobs = () if trunk is None else (trunk,)
        return jobs + tuple(job for _, batch in designs(plan, builder, trunk) for job in batch)


def small_builder(plan: Plan, findings: Findings) -> JobBuilder:
    """Builds jobs of the shrunk model under its own learning rate."""
    settings = plan.phases.small_scale
    model = shrink(plan.model, settings.shrink)
    training = shrunk_training(plan.training, plan.model, model, settings.learning_rate_rule)
    return JobBuilder(plan, findings.environment, "small_scale", model, training, advised_layers(plan, findings))


def trunk_job(plan: Plan, builder: JobBuilder) -> Job | None:
    """The BF16 run that screens and branches start from, as far as the last of them needs it; None where nothing does."""
    starts = start_steps(plan)
    if not starts:
        return None
    order = builder.data_order("baseline", 0)
    (job,) = builder.pair(
        "baseline", 0, ["baseline"], start=Start(), last_step=max(starts), data_order=order, checkpoint_at=tuple(sorted(starts))
    )
    return job


def start_steps(plan: Plan) -> set[int]:
    """Steps of the trunk at which a design starts runs."""
    fractions = list(plan.design.screen.fractions) if plan.design.screen else []
    fractions += [plan.design.branch.at] if plan.design.branch else []
    return {plan.training.step_at(fraction) for fraction in fractions}


def designs(plan: Plan, builder: JobBuilder, trunk: Job | None) -> list[tuple[DesignName, tuple[Job, ...]]]:
    """The plan's designs with their jobs, in the order in which they run."""
    design, found = plan.design, list[tuple[DesignName, tuple[Job, ...]]]()
    if design.screen and trunk:
        found.append(("screen", screen_jobs(plan, builder, trunk, design.screen)))
    if design.long_screen and trunk:
        found.append(("long_screen", long_screen_jobs(plan, builder, trunk, design.long_screen)))
    if design.branch and trunk:
        found.append(("branch", branch_jobs(plan, builder, trunk, design.branch)))
    if design.scratch:
        found.append(("scratch", scratch_jobs(plan, builder, design.scratch)))
    return found


def screen_jobs(plan: Plan, builder: JobBuilder, trunk: Job, screen: ScreenDesign) -> tuple[Job, ...]:
    """K cooled steps from each fraction, `data_orders` pairs each, every pair on a data order of its own."""
    jobs: list[Job] = []
    for place, fraction in enumerate(screen.fractions):
        first = plan.training.step_at(fraction)
        for pair in range(screen.data_orders):
            jobs += builder.pair(
                "screen",
                pair,
                arms_of_pair(plan, pair),
                start=Start(first, trunk),
                last_step=first + screen.num_steps,
                data_order=builder.data_order("screen", place * screen.data_orders + pair),
                fraction=fraction,
                cooldown=Cooldown(start=first, num_steps=screen.num_steps),
            )
    return tuple(jobs)


def long_screen_jobs(plan: Plan, builder: JobBuilder, trunk: Job, screen: ScreenDesign) -> tuple[Job, ...]:
    """The screen's pairs at one fraction once more, over 4K: same start, same data orders, cooled over the whole 4K."""
    first = plan.training.step_at(screen.long_fraction)
    place, length = screen.fractions.index(screen.long_fraction), LONG_SCREEN_FACTOR * screen.num_steps
    jobs: list[Job] = []
    for pair in range(screen.data_orders):
        jobs += builder.pair(
            "long_screen",
            pair,
            ("baseline", "candidate"),
            start=Start(first, trunk),
            last_step=first + length,
            data_order=builder.data_order("screen", place * screen.data_orders + pair),
            fraction=screen.long_fraction,
            cooldown=Cooldown(start=first, num_steps=length),
        )
    return tuple(jobs)


def branch_jobs(plan: Plan, builder: JobBuilder, trunk: Job, branch: BranchDesign) -> tuple[Job, ...]:
    """Pairs from one checkpoint of the trunk to the end of the schedule."""
    jobs: list[Job] = []
    for pair in range(branch.pairs):
        jobs += builder.pair(
            "branch",
            pair,
            arms_of_pair(plan, pair),
            start=Start(plan.training.step_at(branch.at), trunk),
            last_step=plan.training.num_steps,
            data_order=builder.data_order("branch", pair),
        )
    return tuple(jobs)


def scratch_jobs(plan: Plan, builder: JobBuilder, scratch: ScratchDesign) -> tuple[Job, ...]:
    """Pairs from initial weights, each with a seed and a data order of its own."""
    jobs: list[Job] = []
    for pair in range(scratch.pairs):
        jobs += builder.pair(
            "scratch",
            pair,
            arms_of_pair(plan, pair),
            start=Start(),
            last_step=plan.training.num_steps,
            data_order=builder.data_order("scratch", pair),
            seed=builder.training.seed + pair,
        )
    return tuple(jobs)


def _because(design: DesignName) -> str:
    reasons = {
        "screen": "short cooled screens from a BF16 trunk: they convict cheaply",
        "long_screen": "one start of the screen again over four times the steps: does the gap grow?",
        "branch": "pairs from one BF16 checkpoint to the end of the schedule",
        "scratch": "pairs from initial weights over the whole schedule",
    }
    return reasons[design]
