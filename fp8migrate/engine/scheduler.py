"""Carries out jobs: in the order of the DAG, several at a time, each once and to a record, whoever asks for them.

A job that fails by itself is evidence, and its neighbours go on. A job that something outside ended stops all: the others
are asked to leave a checkpoint, and the same command later goes on from there.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from fp8migrate.engine.observer import Observer, job_steps
from fp8migrate.engine.slots import VISIBLE_DEVICES, Slots
from fp8migrate.engine.stop_requests import StopRequests
from fp8migrate.engine.supervisor import DEFAULT_GRACE_SECONDS, RunningJob
from fp8migrate.errors import InfrastructureError, UsageError, UserError
from fp8migrate.jobs import Job
from fp8migrate.records.schema import Outcome, Record
from fp8migrate.records.store import RunStore, is_evidence, read_run
from fp8migrate.trainers.schema import Trainer

_POLL_SECONDS = 0.05
GO_ON = "Everything done so far is kept: give the same command again and it goes on from there."


class Interrupted(InfrastructureError):
    """Somebody asked to stop: Ctrl-C, a scheduler's SIGTERM, a closed terminal."""


@dataclass(frozen=True)
class Execution:
    """How jobs are carried out. stall_timeout_seconds: without output; grace_seconds: from SIGTERM to SIGKILL."""

    trainer: Trainer
    slots: Slots
    stop: StopRequests
    stall_timeout_seconds: float
    grace_seconds: float = DEFAULT_GRACE_SECONDS


def _settle_without_start(waiting: list[Job], records: Mapping[str, Record], store: RunStore) -> dict[str, Record]:
    """Take out of `waiting` the jobs whose start job failed, those that start from such a job too, and answer their records:
    failed, start_missing.
    """
    failed = {digest: record for digest, record in records.items() if record.outcome.status != "completed"}
    settled: dict[str, Record] = {}
    while hopeless := [job for job in waiting if job.start is not None and job.start.job in failed]:
        for job in hopeless:
            assert job.start is not None
            record = _without_start(job, failed[job.start.job], store)
            waiting.remove(job)
            failed[job.digest] = settled[job.digest] = record
    return settled


def _without_start(job: Job, start: Record, store: RunStore) -> Record:
    detail = f"{start.job.label}, which it starts from, failed ({start.outcome.cause})"
    outcome = Outcome(status="failed", cause="start_missing", detail=detail)
    return Record(
        key=store.key(job),
        job=job,
        environment=store.environment,
        outcome=outcome,
        conversion=None,
        facts={},
        series={},
        evaluations=(),
    )


class Pool:
    """Jobs that were asked for, and their records. Use it as a context manager: what still runs is ended on the way out.

    execution: None only looks up what is there.
    """

    def __init__(self, store: RunStore, execution: Execution | None) -> None:
        self._store, self._do = store, execution
        self._observers: dict[str, Observer] = {}
        self._records: dict[str, Record] = {}
        self._waiting: list[Job] = []
        self._running: list[RunningJob] = []
        self._gpus: dict[str, str] = {}
        self._shown: dict[str, int] = {}

    @property
    def executes(self) -> bool:
        return self._do is not None

    def ask(self, jobs: Sequence[Job], because: str, observer: Observer) -> None:
        """Take on those `jobs` that nobody has asked for yet, and tell `observer` of them.

        The job that one starts from is among them or was asked for before: else it would wait for ever. Records that are there
        are reused. A job whose start job failed is settled too: it has nothing to start from.
        """
        new = [job for job in jobs if job.digest not in self._observers]
        if not new:
            return
        self._observers |= {job.digest: observer for job in new}
        observer.jobs_planned(new, sum(map(job_steps, new)), because)
        for job in new:
            record = self._store.read(job)
            if record is None:
                self._waiting.append(job)
            else:
                self._records[job.digest] = record
                observer.job_finished(job, record.outcome, reused=True)
        self._settle()

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Those that have no record yet."""
        return [job for job in jobs if job.digest not in self._records]

    def records(self, jobs: Sequence[Job]) -> dict[str, Record]:
        """Of jobs none of which is missing, by digest."""
        return {job.digest: self._records[job.digest] for job in jobs}

    def advance(self) -> None:
        """Start what can start and see what has ended; returns at once where nothing runs.

        Raises Interrupted, InfrastructureError or UsageError.
        """
        if self._do is None:
            raise ValueError("a pool without an execution starts nothing")
        # With jobs running the count of stop requests is watched here, so no signal may break in.
        self._do.stop.shielded = True
        if self._do.stop.count:
            raise Interrupted(f"stopped by {self._do.stop.signal_name}", next_step=GO_ON)
        for job in self._ready():
            self._waiting.remove(job)
            self._start(job, self._do)
        for running in tuple(self._running):
            outcome = self._poll(running)
            if outcome is None:
                continue
            if not is_evidence(outcome):
                raise _ended_from_outside(running, outcome)
            self._records[running.job.digest] = read_run(running.directory)
            self._settle()
        self._do.stop.shielded = bool(self._running)
        if self._running:
            time.sleep(_POLL_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._do is None:
            return
        try:
            self._do.stop.shielded = True
            self._end_running(at_once=error is not None and not isinstance(error, UserError))
        finally:
            self._do.stop.shielded = False

    def _settle(self) -> None:
        for digest, record in _settle_without_start(self._waiting, self._records, self._store).items():
            self._records[digest] = record
            self._observers[digest].job_finished(record.job, record.outcome, reused=False)

    def _ready(self) -> list[Job]:
        """Jobs that can start now, in the order they were asked for, as many as there are free slots."""
        assert self._do is not None
        free = self._do.slots.count - len(self._running)
        ready = [job for job in self._waiting if job.start is None or job.start.job in self._records]
        return ready[: max(0, free)]

    def _start(self, job: Job, do: Execution) -> None:
        start = self._store.start_path(job, self._records)
        if start is not None and not start.is_file():
            raise UsageError(
                "the checkpoint is gone, and another run starts from it",
                where=str(start),
                next_step=f"Delete the folder {start.parent.parent} to have that run done again.",
            )
        directory = self._store.prepare(job)
        variables = do.slots.variables(list(self._gpus.values()))
        running = RunningJob(
            job,
            directory,
            do.trainer.command(job, directory, start),
            variables=variables,
            stall_timeout_seconds=do.stall_timeout_seconds,
            grace_seconds=do.grace_seconds,
        )
        self._running.append(running)
        if VISIBLE_DEVICES in variables:
            self._gpus[job.digest] = variables[VISIBLE_DEVICES]
        self._observers[job.digest].job_started(job)

    def _poll(self, running: RunningJob) -> Outcome | None:
        job = running.job
        outcome = running.poll()
        if running.last_step > self._shown.get(job.digest, 0):
            self._shown[job.digest] = running.last_step
            self._observers[job.digest].job_progress(job, running.last_step)
        if outcome is not None:
            self._running.remove(running)
            self._gpus.pop(job.digest, None)
            self._observers[job.digest].job_finished(job, outcome, reused=False)
        return outcome

    def _end_running(self, at_once: bool) -> None:
        """Stop what runs and wait for it; a second stop request (or `at_once`) does not wait for checkpoints."""
        assert self._do is not None
        for running in self._running:
            running.stop()
        while self._running:
            for running in tuple(self._running):
                if at_once or self._do.stop.count > 1:
                    running.kill()
                try:
                    self._poll(running)
                except UserError:
                    # Its end cannot be written down (full disk), so it will be resumed. The first trouble is on its way up.
                    self._running.remove(running)
            time.sleep(_POLL_SECONDS)


def _ended_from_outside(running: RunningJob, outcome: Outcome) -> InfrastructureError:
    how = outcome.cause or outcome.status
    first = outcome.detail.partition("\n")[0]
    return InfrastructureError(
        f"{running.job.label} was ended from outside ({how}{f': {first}' if first else ''})",
        where=str(running.directory),
        next_step=GO_ON,
    )
