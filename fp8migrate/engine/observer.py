"""Whom the engine tells what it does. The command line draws progress from it; tests write it down."""

from collections.abc import Sequence
from typing import Protocol

from fp8migrate.jobs import Job, Train
from fp8migrate.records.schema import Outcome


def job_steps(job: Job) -> int:
    """Training steps of a job, for progress and time left; tasks that do not train count as one."""
    return job.task.last_step - job.task.first_step if isinstance(job.task, Train) else 1


class Observer(Protocol):
    """Told from the engine's own thread, so it must return soon."""

    def message(self, text: str) -> None:
        """Something that takes a while or is worth knowing: probing the machine, a changed environment."""

    def phase_started(self, name: str) -> None: ...

    def jobs_planned(self, jobs: Sequence[Job], total_steps: int, because: str) -> None:
        """A phase asked for `jobs`, each once. Those that are there already are told at once as finished and reused.

        Jobs that were planned before may still be on their way: those of another plan that runs beside.
        """

    def job_started(self, job: Job) -> None: ...

    def job_progress(self, job: Job, step: int) -> None:
        """`step` as logged: counted from the start of the schedule, so a Train job has done step - first_step of its steps."""

    def job_finished(self, job: Job, outcome: Outcome, reused: bool) -> None: ...

    def phase_finished(self, name: str, state: str) -> None: ...


class NamedObserver:
    """Passes on what one of several plans does, with its name before it."""

    def __init__(self, name: str, observer: Observer) -> None:
        self._name, self._observer = name, observer

    def message(self, text: str) -> None:
        self._observer.message(f"{self._name}: {text}")

    def phase_started(self, name: str) -> None:
        self._observer.phase_started(f"{self._name}: {name}")

    def jobs_planned(self, jobs: Sequence[Job], total_steps: int, because: str) -> None:
        self._observer.jobs_planned([self._named(job) for job in jobs], total_steps, f"{self._name}: {because}")

    def job_started(self, job: Job) -> None:
        self._observer.job_started(self._named(job))

    def job_progress(self, job: Job, step: int) -> None:
        self._observer.job_progress(self._named(job), step)

    def job_finished(self, job: Job, outcome: Outcome, reused: bool) -> None:
        self._observer.job_finished(self._named(job), outcome, reused)

    def phase_finished(self, name: str, state: str) -> None:
        self._observer.phase_finished(f"{self._name}: {name}", state)

    def _named(self, job: Job) -> Job:
        """The digest, by which jobs are known, has no part in the label."""
        return job.model_copy(update={"label": f"{self._name}: {job.label}"})


class SilentObserver:
    """Hears everything, says nothing."""

    def message(self, text: str) -> None:
        pass

    def phase_started(self, name: str) -> None:
        pass

    def jobs_planned(self, jobs: Sequence[Job], total_steps: int, because: str) -> None:
        pass

    def job_started(self, job: Job) -> None:
        pass

    def job_progress(self, job: Job, step: int) -> None:
        pass

    def job_finished(self, job: Job, outcome: Outcome, reused: bool) -> None:
        pass

    def phase_finished(self, name: str, state: str) -> None:
        pass
