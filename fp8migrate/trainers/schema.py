"""What every trainer offers to the engine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fp8migrate.facts.backends import BackendName
from fp8migrate.jobs import Job
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Environment


class Trainer(Protocol):
    """Turns jobs into command lines. It never runs one: the engine does, and watches it."""

    def environment(self, plan: Plan) -> Environment:
        """Where the plan's jobs would run. Part of every run's key, so that a changed machine redoes its work."""
        ...

    def demand_backend(self, plan: Plan, backend: BackendName) -> None:
        """Raise UsageError, with what to do, where the library that the candidate runs on does not load here."""
        ...

    def seconds_per_step(self, job: Job) -> float:
        """Measured here, in a few seconds, without a trace: what one step of the job's training takes alone on this machine.

        Raises UsageError where it cannot be measured (the model does not fit, say).
        """
        ...

    def command(self, job: Job, run_directory: Path, start: Path | None) -> Sequence[str]:
        """The argument list (no shell) that carries out `job` and writes its record into `run_directory`.

        `start` is the checkpoint that the job's `start` refers to.
        """
        ...
