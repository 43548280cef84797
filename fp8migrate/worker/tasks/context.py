"""What every task is given, and the exceptions by which it ends early."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fp8migrate.jobs import Job
from fp8migrate.records.writer import RunWriter
from fp8migrate.worker.data import Corpus
from fp8migrate.worker.runtime import StopSignal


@dataclass(frozen=True, eq=False)
class TaskContext:
    job: Job
    directory: Path
    start: Path | None
    writer: RunWriter
    device: torch.device
    corpus: Corpus
    stop: StopSignal


class Interrupted(Exception):
    """The run was asked to stop and has left a checkpoint. Carries the last finished step."""

    def __init__(self, step: int) -> None:
        self.step = step
        super().__init__(f"stopped after step {step}")


class NonFinite(Exception):
    """A loss or a gradient norm became NaN or Inf: a finding about this arm, recorded, never retried."""

    def __init__(self, step: int, what: str) -> None:
        self.step, self.what = step, what
        super().__init__(f"{what} at step {step}")
