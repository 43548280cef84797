"""Carries out one batch of jobs: in the order of the DAG, several at a time, each to a record.

A job that fails by itself is evidence, and its neighbours go on. A job that something outside ended stops the batch: the
others are asked to leave a checkpoint, and the same command later goes on from there.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp8migrate.engine.observer import Observer
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

    store: RunStore
    trainer: Trainer
    slots: Slots
    observer: Observer
    stop: StopRequests
    stall_timeout_seconds: float
    grace_seconds: float = DEFAULT_GRACE_SECONDS


def reuse(
    jobs: Sequence[Job], known: Mapping[str, Record], store: RunStore, observer: Observer
) -> tuple[dict[str, Record], list[Job]]:
    """Records of those `jobs` that are there already, by job digest, and the jobs that are still to be done, in order.

    known: records that jobs may start from. A job whose start job failed is settled too: it has nothing to start from.
    """
    found: dict[str, Record] = {}
    waiting: list[Job] = []
    for job in jobs:
        record = store.read(job)
        if record is None:
            waiting.append(job)
        else:
            found[job.digest] = record
            observer.job_finished(job, record.outcome, reused=True)
    found |= settle_without_start(waiting, {**known, **found}, store, observer)
    return found, waiting


def settle_without_start(
    waiting: list[Job], records: Mapping[str, Record], store: RunStore, observer: Observer
) -> dict[str, Record]:
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
            observer.job_finished(job, record.outcome, reused=False)
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


class Batch:
    """Jobs on their way. known: records by job digest that jobs may start from."""

    def __init__(self, waiting: Sequence[Job], known: Mapping[str, Record], execution: Execution) -> None:
        self._waiting = list(waiting)
        self._records = dict(known)
        self._new: dict[str, Record] = {}
        self._running: list[RunningJob] = []
        self._gpus: dict[str, str] = {}
        self._shown: dict[str, int] = {}
        self._do = execution

    def run(self) -> dict[str, Record]:
        """Carry out all jobs; the new records by job digest.

        Raises Interrupted, InfrastructureError or UsageError, after running jobs have ended and left what they have.
        """
        self._do.stop.shielded = True
        try:
            while self._waiting or self._running:
                self._advance()
                if self._running:
                    time.sleep(_POLL_SECONDS)
        except UserError:
            self._end_running(at_once=False)
            raise
        except BaseException:
            self._end_running(at_once=True)
            raise
        finally:
            self._do.stop.shielded = False
        return self._new

    def _advance(self) -> None:
        if self._do.stop.count:
            raise Interrupted(f"stopped by {self._do.stop.signal_name}", next_step=GO_ON)
        self._add(settle_without_start(self._waiting, self._records, self._do.store, self._do.observer))
        for job in self._ready():
            self._waiting.remove(job)
            self._start(job)
        for running in tuple(self._running):
            outcome = self._poll(running)
            if outcome is None:
                continue
            if not is_evidence(outcome):
                raise _ended_from_outside(running, outcome)
            self._add({running.job.digest: read_run(running.directory)})

    def _ready(self) -> list[Job]:
        """Jobs that can start now, in the order they were asked for, as many as there are free slots."""
        free = self._do.slots.count - len(self._running)
        ready = [job for job in self._waiting if job.start is None or job.start.job in self._records]
        return ready[: max(0, free)]

    def _start(self, job: Job) -> None:
        store = self._do.store
        start = store.start_path(job, self._records)
        if start is not None and not start.is_file():
            raise UsageError(
                "the checkpoint is gone, and another run starts from it",
                where=str(start),
                next_step=f"Delete the folder {start.parent.parent} to have that run done again.",
            )
        directory = store.prepare(job)
        variables = self._do.slots.variables(list(self._gpus.values()))
        running = RunningJob(
            job,
            directory,
            self._do.trainer.command(job, directory, start),
            variables=variables,
            stall_timeout_seconds=self._do.stall_timeout_seconds,
            grace_seconds=self._do.grace_seconds,
        )
        self._running.append(running)
        if VISIBLE_DEVICES in variables:
            self._gpus[job.digest] = variables[VISIBLE_DEVICES]
        self._do.observer.job_started(job)

    def _poll(self, running: RunningJob) -> Outcome | None:
        job = running.job
        outcome = running.poll()
        if running.last_step > self._shown.get(job.digest, 0):
            self._shown[job.digest] = running.last_step
            self._do.observer.job_progress(job, running.last_step)
        if outcome is not None:
            self._running.remove(running)
            self._gpus.pop(job.digest, None)
            self._do.observer.job_finished(job, outcome, reused=False)
        return outcome

    def _add(self, records: Mapping[str, Record]) -> None:
        self._new |= records
        self._records |= records

    def _end_running(self, at_once: bool) -> None:
        """Stop what runs and wait for it; a second stop request (or `at_once`) does not wait for checkpoints."""
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
