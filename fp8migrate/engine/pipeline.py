"""The one loop: ask a phase what it needs, have it done, hand back what came of it; then the next phase, if promoted.

Several plans go through it side by side, over one pool of jobs: a job that two of them ask for is done once.

Phases are pure, so all state lies in the run directories: a pipeline that was stopped at any moment, kill -9 included, is
gone on with by running it again, and ends in the same evidence.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fp8migrate.engine.changes import environment_changes
from fp8migrate.engine.observer import Observer, SilentObserver
from fp8migrate.engine.scheduler import GO_ON, Execution, Interrupted, Pool
from fp8migrate.engine.slots import slots
from fp8migrate.engine.stop_requests import StopRequests
from fp8migrate.engine.supervisor import DEFAULT_GRACE_SECONDS
from fp8migrate.engine.workspace import Workspace
from fp8migrate.errors import UsageError, UserError
from fp8migrate.jobs import Job
from fp8migrate.phases.schema import Done, Findings, Jobs, Phase
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Environment, Record
from fp8migrate.records.store import RunStore
from fp8migrate.trainers.schema import Trainer
from fp8migrate.verdict import PhaseState

Promote = Callable[[str, Done], PhaseState]


@dataclass(frozen=True, eq=False)
class PhaseOutcome:
    """One phase as it ended. job_digests: of all jobs it asked for, in order.

    job_seconds: summed over the phase's jobs, whenever they ran. forced: the phase did not pass, and the next one was run all
    the same because the user said so.
    """

    name: str
    done: Done
    state: PhaseState
    job_seconds: float
    job_digests: tuple[str, ...]
    forced: bool = False


@dataclass(frozen=True, eq=False)
class PipelineResult:
    """Phases that ran, in order; not_run: names of those behind a phase that did not promote. records: by job digest."""

    phases: tuple[PhaseOutcome, ...]
    not_run: tuple[str, ...]
    environment: Environment
    records: Mapping[str, Record]

    @property
    def forced(self) -> tuple[str, ...]:
        """Names of the phases that did not pass and were gone past by force."""
        return tuple(phase.name for phase in self.phases if phase.forced)


def run_pipeline(
    plan: Plan,
    workspace: Workspace,
    trainer: Trainer,
    phases: Sequence[Phase],
    promote: Promote,
    observer: Observer | None = None,
    *,
    force: bool = False,
    execute: bool = True,
    environment: Environment | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
) -> PipelineResult:
    """Run `phases` in order until one is not promoted (`force`: run them all).

    execute: False only assesses what is there, and raises UsageError naming the runs that are missing. environment: where
    jobs run; absent, the trainer is asked, or without `execute` the environment of the last execution is taken, so that a
    report needs neither the machine nor torch. grace_seconds: what a stopped job gets to leave a checkpoint.

    Raises Interrupted (Ctrl-C, SIGTERM) and InfrastructureError with everything kept; UsageError.
    """
    results: list[PipelineResult] = []
    run_pipelines(
        [Lane(plan, SilentObserver() if observer is None else observer)],
        workspace,
        trainer,
        phases,
        promote,
        lambda _, result: results.append(result),
        force=force,
        execute=execute,
        environment=environment,
        grace_seconds=grace_seconds,
    )
    return results[0]


@dataclass(frozen=True, eq=False)
class Lane:
    """One of the plans that run side by side, and who is told of it."""

    plan: Plan
    observer: Observer


def run_pipelines(
    lanes: Sequence[Lane],
    workspace: Workspace,
    trainer: Trainer,
    phases: Sequence[Phase],
    promote: Promote,
    ended: Callable[[int, PipelineResult], None],
    *,
    force: bool = False,
    execute: bool = True,
    environment: Environment | None = None,
    grace_seconds: float = DEFAULT_GRACE_SECONDS,
) -> None:
    """As `run_pipeline`, of plans that differ in their candidate alone: runs lie in one workspace, and are launched alike.

    ended: told of each result as it comes, with the number of its lane; jobs of the others run on meanwhile.
    """
    first = lanes[0]
    with StopRequests() as stop:
        try:
            environment = environment or _environment(first.plan, workspace, trainer, first.observer, execute, stop)
            execution = None
            if execute:
                _begin(workspace, environment, first.observer)
                execution = Execution(
                    trainer=trainer,
                    slots=slots(first.plan.launch, environment.device),
                    stop=stop,
                    stall_timeout_seconds=first.plan.launch.stall_timeout_seconds,
                    grace_seconds=grace_seconds,
                )
            store = RunStore(workspace.runs_dir, environment)
            with Pool(store, execution) as pool:
                _drive([_Pipeline(lane, store, pool, promote, stop, force) for lane in lanes], phases, pool, ended)
        except KeyboardInterrupt:
            raise Interrupted("stopped by Ctrl-C", next_step=GO_ON) from None


def _drive(
    pipelines: Sequence["_Pipeline"], phases: Sequence[Phase], pool: Pool, ended: Callable[[int, PipelineResult], None]
) -> None:
    """Give each pipeline its turn as soon as the jobs that it waits for are done."""
    going = {number: pipeline.steps(phases) for number, pipeline in enumerate(pipelines)}
    awaited: dict[int, Sequence[Job]] = {}
    while going:
        for number, steps in tuple(going.items()):
            if pool.missing(awaited.get(number, ())):
                continue
            jobs = next(steps, None)
            if jobs is None:
                del going[number]
                ended(number, pipelines[number].result())
            else:
                awaited[number] = jobs
        if going and pool.executes:
            pool.advance()


def _environment(
    plan: Plan, workspace: Workspace, trainer: Trainer, observer: Observer, execute: bool, stop: StopRequests
) -> Environment:
    if execute:
        observer.message("looking at the machine")
        try:
            return trainer.environment(plan)
        except UserError:
            # Ctrl-C in a terminal reaches the trainer's probe as well: then its end is not the news.
            _check_stop(stop)
            raise
    environment = workspace.environment()
    if environment is None:
        raise UsageError("nothing has been run here yet", where=str(workspace.root), next_step="Run the plan first.")
    return environment


def _begin(workspace: Workspace, environment: Environment, observer: Observer) -> None:
    if workspace.lock is None:
        raise ValueError("a workspace that was opened to be read cannot execute jobs")
    before = workspace.environment()
    if before is not None and before != environment:
        changed = ", ".join(environment_changes(before, environment))
        observer.message(f"changed since the last time, so earlier runs are not reused: {changed}")
    workspace.remember(environment)


def _check_stop(stop: StopRequests) -> None:
    if stop.count:
        raise Interrupted(f"stopped by {stop.signal_name}", next_step=GO_ON)


class _Pipeline:
    """The state of one plan in one invocation."""

    def __init__(self, lane: Lane, store: RunStore, pool: Pool, promote: Promote, stop: StopRequests, force: bool) -> None:
        self._plan, self._observer = lane.plan, lane.observer
        self._store, self._pool = store, pool
        self._promote, self._stop, self._force = promote, stop, force
        self._records: dict[str, Record] = {}
        self._done: dict[str, Done] = {}
        self._outcomes: list[PhaseOutcome] = []
        self._not_run: tuple[str, ...] = ()

    def steps(self, phases: Sequence[Phase]) -> Iterator[Sequence[Job]]:
        """Go through the phases. Yields the jobs that must be done before the next step; at its end `result` is there."""
        for number, phase in enumerate(phases, 1):
            yield from self._run_phase(phase, last=number == len(phases))
            outcome = self._outcomes[-1]
            if outcome.state != "passed" and not outcome.forced:
                break
        self._not_run = tuple(phase.name for phase in phases[len(self._outcomes) :])

    def result(self) -> PipelineResult:
        return PipelineResult(tuple(self._outcomes), self._not_run, self._store.environment, self._records)

    def _run_phase(self, phase: Phase, last: bool) -> Iterator[Sequence[Job]]:
        """Answer the phase's requests until it is done."""
        self._observer.phase_started(phase.name)
        asked: dict[str, None] = {}
        while True:
            _check_stop(self._stop)
            findings = Findings(self._store.environment, dict(self._records), dict(self._done))
            answer = phase.next(self._plan, findings)
            if isinstance(answer, Done):
                break
            asked |= dict.fromkeys(job.digest for job in answer.jobs)
            jobs = self._ask(phase.name, answer)
            yield jobs
            self._records |= self._pool.records(jobs)
        self._done[phase.name] = answer
        state = self._promote(phase.name, answer)
        self._observer.phase_finished(phase.name, state)
        outcome = PhaseOutcome(
            name=phase.name,
            done=answer,
            state=state,
            job_seconds=sum(self._records[digest].outcome.wall_seconds for digest in asked),
            job_digests=tuple(asked),
            forced=self._force and state != "passed" and not last,
        )
        self._outcomes.append(outcome)

    def _ask(self, name: str, request: Jobs) -> Sequence[Job]:
        """Have the request's jobs done. A phase that asks only for what it has been given would never end: our own bug."""
        wanted: dict[str, Job] = {}
        for job in request.jobs:
            if job.digest not in self._records:
                wanted.setdefault(job.digest, job)  # one result may serve several roles: the first gives it its label
        jobs = list(wanted.values())
        if not jobs:
            raise RuntimeError(f"phase {name} asks again for jobs that it has been given: {request.because}")
        reachable = self._records.keys() | {job.digest for job in jobs}
        lost = [job.label for job in jobs if job.start is not None and job.start.job not in reachable]
        if lost:
            raise RuntimeError(f"phase {name} asks for jobs whose start job nobody asked for: {lost}")
        self._pool.ask(jobs, request.because, self._observer)
        waiting = self._pool.missing(jobs)
        if waiting and not self._pool.executes:
            raise self._missing(name, waiting)
        return jobs

    def _missing(self, name: str, waiting: Sequence[Job]) -> UsageError:
        lines = []
        for job in waiting[:10]:
            outcome = self._store.outcome(job)
            lines.append(f"  {job.label}: {'never started' if outcome is None else f'not finished ({outcome.status})'}")
        more = f"\n  and {len(waiting) - 10} more" if len(waiting) > 10 else ""
        listed = "\n".join(lines)
        return UsageError(
            f"phase {name} misses {len(waiting)} run(s) in this environment:\n{listed}{more}",
            where=str(self._store.runs_dir),
            next_step=f"Run the phase {name} first.",
        )
