"""The one loop: ask a phase what it needs, have it done, hand back what came of it; then the next phase, if promoted.

Phases are pure, so all state lies in the run directories: a pipeline that was stopped at any moment, kill -9 included, is
gone on with by running it again, and ends in the same evidence.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fp8migrate.engine.changes import environment_changes
from fp8migrate.engine.observer import Observer, SilentObserver, job_steps
from fp8migrate.engine.scheduler import GO_ON, Batch, Execution, Interrupted, reuse
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

    wall_seconds: of this invocation, near zero where everything was reused. job_seconds: summed over the phase's jobs, whenever
    they ran. forced: the phase did not pass, and the next one was run all the same because the user said so.
    """

    name: str
    done: Done
    state: PhaseState
    wall_seconds: float
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
    observer = SilentObserver() if observer is None else observer
    with StopRequests() as stop:
        try:
            environment = environment or _environment(plan, workspace, trainer, observer, execute, stop)
            store = RunStore(workspace.runs_dir, environment)
            execution = None
            if execute:
                _begin(workspace, environment, observer)
                execution = Execution(
                    store=store,
                    trainer=trainer,
                    slots=slots(plan.launch, environment.device),
                    observer=observer,
                    stop=stop,
                    stall_timeout_seconds=plan.launch.stall_timeout_seconds,
                    grace_seconds=grace_seconds,
                )
            return _Pipeline(plan, store, execution, promote, observer, stop, force).run(phases)
        except KeyboardInterrupt:
            raise Interrupted("stopped by Ctrl-C", next_step=GO_ON) from None


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
    """The state of one invocation. Without `execution` nothing is started."""

    def __init__(
        self,
        plan: Plan,
        store: RunStore,
        execution: Execution | None,
        promote: Promote,
        observer: Observer,
        stop: StopRequests,
        force: bool,
    ) -> None:
        self._plan, self._store, self._execution = plan, store, execution
        self._promote, self._observer, self._stop, self._force = promote, observer, stop, force
        self._records: dict[str, Record] = {}
        self._done: dict[str, Done] = {}

    def run(self, phases: Sequence[Phase]) -> PipelineResult:
        outcomes: list[PhaseOutcome] = []
        for number, phase in enumerate(phases, 1):
            outcome = self._run_phase(phase, last=number == len(phases))
            outcomes.append(outcome)
            if outcome.state != "passed" and not outcome.forced:
                break
        not_run = tuple(phase.name for phase in phases[len(outcomes) :])
        return PipelineResult(tuple(outcomes), not_run, self._store.environment, self._records)

    def _run_phase(self, phase: Phase, last: bool) -> PhaseOutcome:
        started = time.monotonic()
        self._observer.phase_started(phase.name)
        done, digests = self._carry_out(phase)
        self._done[phase.name] = done
        state = self._promote(phase.name, done)
        self._observer.phase_finished(phase.name, state)
        return PhaseOutcome(
            name=phase.name,
            done=done,
            state=state,
            wall_seconds=time.monotonic() - started,
            job_seconds=sum(self._records[digest].outcome.wall_seconds for digest in digests),
            job_digests=digests,
            forced=self._force and state != "passed" and not last,
        )

    def _carry_out(self, phase: Phase) -> tuple[Done, tuple[str, ...]]:
        """Answer the phase's requests until it is done; its result and the digests of all jobs it asked for."""
        asked: dict[str, None] = {}
        while True:
            _check_stop(self._stop)
            findings = Findings(self._store.environment, dict(self._records), dict(self._done))
            answer = phase.next(self._plan, findings)
            if isinstance(answer, Done):
                return answer, tuple(asked)
            asked |= dict.fromkeys(job.digest for job in answer.jobs)
            self._answer(phase.name, answer)

    def _answer(self, name: str, request: Jobs) -> None:
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
        self._observer.jobs_planned(jobs, sum(map(job_steps, jobs)), request.because)
        found, waiting = reuse(jobs, self._records, self._store, self._observer)
        self._records |= found
        if not waiting:
            return
        if self._execution is None:
            raise self._missing(name, waiting)
        self._records |= Batch(waiting, self._records, self._execution).run()

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
