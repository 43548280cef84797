"""One plan from start to report: which phases run, what is written where. The commands are thin around this."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fp8migrate import __version__
from fp8migrate.checks.schema import CheckResult
from fp8migrate.engine.bundle import check_bundle, write_bundle
from fp8migrate.engine.forecast import forecast
from fp8migrate.engine.observer import Observer
from fp8migrate.engine.odd_shapes import odd_shape_lines
from fp8migrate.engine.pipeline import Lane, PhaseOutcome, PipelineResult, run_pipeline, run_pipelines
from fp8migrate.engine.preflight import preflight, refuse_more_data_than_there_is
from fp8migrate.engine.scheduler import GO_ON, Interrupted
from fp8migrate.engine.stop_requests import StopRequests
from fp8migrate.engine.workspace import RUNS, Workspace
from fp8migrate.errors import UsageError
from fp8migrate.facts.backends import BackendName
from fp8migrate.phases import PHASES
from fp8migrate.phases.build import resolve_backend
from fp8migrate.phases.schema import Done, Findings, Phase
from fp8migrate.plan.load import LoadedPlan, load_plan
from fp8migrate.records.files import write_errors
from fp8migrate.records.schema import Environment
from fp8migrate.report import write_all
from fp8migrate.trainers import trainer_for
from fp8migrate.trainers.schema import Trainer
from fp8migrate.verdict import PhaseState, Report, build_report, phase_state

PLAN_COPY = "plan.yaml"


@dataclass(frozen=True, eq=False)
class Study:
    """A report and where its files lie, by format."""

    report: Report
    files: dict[str, Path]


def run_study(
    loaded: LoadedPlan,
    reports: Path,
    observer: Observer,
    *,
    only: str | None = None,
    force: bool = False,
    trainer: Trainer | None = None,
) -> Study:
    """Run the plan's phases, or `only` one of them after those before it passed, and write the report.

    reports: the folder that holds one folder per plan. Raises UserError; whatever was done by then is kept.
    """
    plan = loaded.plan
    preflight(loaded)
    trainer = trainer or trainer_for(plan)
    with Workspace.open(reports / plan.name) as workspace:
        workspace.write(PLAN_COPY, loaded.text)
        environment = _look_at_machine(loaded, trainer, observer)
        _admit([loaded], trainer, environment, [observer])
        phases = phases_until(only)
        if only is not None:
            _demand_earlier(loaded, workspace, trainer, phases[:-1], environment, force)
        result = run_pipeline(plan, workspace, trainer, phases, promote, observer, force=force, environment=environment)
        return _conclude(loaded, workspace, result, observer)


def run_studies(
    loaded: Sequence[LoadedPlan],
    home: Path,
    reports: Path,
    observers: Sequence[Observer],
    ended: Callable[[int, Study], None],
    *,
    force: bool = False,
    trainer: Trainer | None = None,
) -> None:
    """Run all phases of plans that differ in name and candidate alone, side by side, and write their reports.

    home: the report folder in which the runs of all lie; the plans' own folders refer to them. observers: of each plan.
    ended: told of each study as it comes, with its number. Raises UserError; whatever was done by then is kept.
    """
    for each in loaded:
        preflight(each)
    trainer = trainer or trainer_for(loaded[0].plan)
    with ExitStack() as stack:
        shared = stack.enter_context(Workspace.open(home))
        own = [stack.enter_context(_open_beside(reports / each.plan.name, shared)) for each in loaded]
        for each, workspace in zip(loaded, own, strict=True):
            workspace.write(PLAN_COPY, each.text)
        environment = _look_at_machine(loaded[0], trainer, observers[0])
        _admit(loaded, trainer, environment, observers)
        for workspace in own:
            workspace.remember(environment)

        def conclude(number: int, result: PipelineResult) -> None:
            ended(number, _conclude(loaded[number], own[number], result, observers[number]))

        lanes = [Lane(each.plan, observer) for each, observer in zip(loaded, observers, strict=True)]
        run_pipelines(lanes, shared, trainer, PHASES, promote, conclude, force=force, environment=environment)


def _open_beside(root: Path, shared: Workspace) -> Workspace:
    """A report folder that finds its runs among those of another one. Raises UsageError where it has runs of its own."""
    link = root / RUNS
    with write_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(os.path.relpath(shared.runs_dir, root), target_is_directory=True)
        own = link.resolve() != shared.runs_dir.resolve()
    if own:
        raise UsageError(
            f"has runs of its own, and those of all recipes lie in {shared.runs_dir}",
            where=str(link),
            next_step=f"Move {root} away, or give the plan another name.",
        )
    return Workspace.open(root)


def _admit(loaded: Sequence[LoadedPlan], trainer: Trainer, environment: Environment, observers: Sequence[Observer]) -> None:
    """What only a look at the machine can refuse, before anything runs, and what a user should know of each plan."""
    loads: set[BackendName] = set()
    for each, observer in zip(loaded, observers, strict=True):
        plan = each.plan
        refuse_more_data_than_there_is(each, environment)
        backend = resolve_backend(plan, environment)
        if backend not in loads:
            trainer.demand_backend(plan, backend)
            loads.add(backend)
        for line in odd_shape_lines(plan):
            observer.message(line)
        if plan.budget.gpu_hours is not None and environment.device == "cuda":
            observer.message("measuring a step, to hold the plan against its budget")
            forecast(plan, environment, trainer)
        elif plan.budget.gpu_hours is not None:
            observer.message("budget.gpu_hours bounds GPUs only: nothing is refused on this CPU")


def _conclude(loaded: LoadedPlan, workspace: Workspace, result: PipelineResult, observer: Observer) -> Study:
    """Write all that a finished pipeline leaves."""
    baseline = result.phases[0]
    if baseline.state == "passed":
        write_bundle(loaded.plan.name, workspace, baseline, result.environment)
    observer.message("writing the report")
    return _write(loaded, workspace, result)


def _look_at_machine(loaded: LoadedPlan, trainer: Trainer, observer: Observer) -> Environment:
    """The trainer's environment. A signal meanwhile is heard as a stop, not left to kill this process without a word."""
    with StopRequests() as stop:
        observer.message("looking at the machine")
        environment = trainer.environment(loaded.plan)
        if stop.count:
            raise Interrupted(f"stopped by {stop.signal_name}", next_step=GO_ON)
    return environment


def report_study(loaded: LoadedPlan, reports: Path, observer: Observer, *, force: bool = False) -> Study:
    """The report of what is there, without running anything. A phase that cannot be assessed is not run, and why."""
    plan = loaded.plan
    with Workspace.open_to_read(reports / plan.name) as workspace:
        trainer = trainer_for(plan)
        found: PipelineResult | None = None
        missing: UsageError | None = None
        for number in range(1, len(PHASES) + 1):
            try:
                found = run_pipeline(plan, workspace, trainer, PHASES[:number], promote, force=force, execute=False)
            except UsageError as error:
                missing = error
                break
        if found is None:
            assert missing is not None
            raise missing
        observer.message("writing the report")
        return _write(loaded, workspace, found, missing)


def plan_of(path: Path, reports: Path) -> LoadedPlan:
    """A plan by its file, or by a report folder that holds a copy of it."""
    if path.is_dir() and (path / PLAN_COPY).is_file():
        return load_plan(path / PLAN_COPY)
    if not path.exists() and (reports / path / PLAN_COPY).is_file():
        return load_plan(reports / path / PLAN_COPY)
    return load_plan(path)


def phases_until(only: str | None) -> Sequence[Phase]:
    """All phases, or those up to and including the one named."""
    names = [phase.name for phase in PHASES]
    return PHASES if only is None else PHASES[: names.index(only) + 1]


def promote(name: str, done: Done) -> PhaseState:
    """How a phase ended; the next one runs when it passed."""
    return phase_state(done.results)


def _demand_earlier(
    loaded: LoadedPlan, workspace: Workspace, trainer: Trainer, earlier: Sequence[Phase], environment: Environment, force: bool
) -> None:
    """A single phase runs on top of phases that were run here and passed; `force` takes those that did not pass too."""
    if not earlier:
        return
    plan = loaded.plan
    baseline_jobs = PHASES[0].planned(plan, Findings(environment))
    check_bundle(workspace, environment, [job.digest for job in baseline_jobs])
    result = run_pipeline(plan, workspace, trainer, earlier, promote, force=force, execute=False, environment=environment)
    last = result.phases[-1]
    if last.state != "passed" and not force:
        raise UsageError(
            f"the phase {last.name} is {last.state}: {_reason(last.done.results)}",
            where=str(workspace.root),
            next_step="Mend that first, or go past it with --force, which the report will say.",
        )


def _reason(results: Sequence[CheckResult]) -> str:
    bad = [result for result in results if result.status in ("fail", "inconclusive") and not result.advisory]
    return bad[0].summary if bad else "not everything that it needs was judged"


def _write(loaded: LoadedPlan, workspace: Workspace, result: PipelineResult, missing: UsageError | None = None) -> Study:
    """missing: why the phase after the last assessed one could not be assessed."""
    plan = loaded.plan
    outcomes: dict[str, PhaseOutcome] = {outcome.name: outcome for outcome in result.phases}
    report = build_report(
        plan,
        loaded.text,
        {phase.name: outcomes[phase.name].done if phase.name in outcomes else None for phase in PHASES},
        result.environment,
        notes={phase.name: _not_run(result, missing) for phase in PHASES if phase.name not in outcomes},
        wall_seconds={name: outcome.job_seconds for name, outcome in outcomes.items()},
        reproduce=_reproduce(loaded, result.environment),
        forced=result.forced,
        created=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
    )
    return Study(report, write_all(report, workspace.root))


def _not_run(result: PipelineResult, missing: UsageError | None) -> str:
    last = result.phases[-1]
    if last.state != "passed" and not last.forced:
        return f"not run: the phase {last.name} is {last.state}"
    return "not run yet" if missing is None else f"not assessed: {missing.where}: {missing.what}"


def _reproduce(loaded: LoadedPlan, environment: Environment) -> tuple[str, ...]:
    torch_version = environment.torch.partition("+")[0]
    return (
        f"pip install 'fp8migrate[train]=={environment.fp8migrate}' torch=={torch_version}",
        f"fp8migrate run {loaded.path.name} {loaded.options}".rstrip(),
    )
