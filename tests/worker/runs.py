"""What the worker's tests train: a tiny model, in this process."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fp8migrate.facts.recipes import KNOWN_BAD, CurrentRecipe, DelayedRecipe, Recipe
from fp8migrate.jobs import DataOrder, Job, Precision, Role, Task, Train
from fp8migrate.plan.schema import LlamaModel, PythonSourceData, Training
from fp8migrate.records.schema import Outcome, RunFile
from fp8migrate.records.writer import RunWriter, load_run_file, save_run_file
from fp8migrate.worker.data import Corpus, load_corpus
from fp8migrate.worker.data.sampling import ValidationSet, validation_set
from fp8migrate.worker.probe import source_sha256
from fp8migrate.worker.runtime import make_deterministic
from fp8migrate.worker.tasks import TASKS, TaskContext
from fp8migrate.worker.tasks.train import TrainingState, build
from tests.engine.stage import ENVIRONMENT as SOMEWHERE

MODEL = LlamaModel(num_layers=2, hidden_size=32, num_heads=2, num_kv_heads=1, ffn_hidden_size=64)
DATA = PythonSourceData(validation_tokens=1024)
TRAINING = Training(
    num_steps=24, sequence_length=16, micro_batch_size=2, global_batch_size=4, learning_rate=1e-2, warmup_steps=4
)
CPU = torch.device("cpu")
# A worker refuses runs that were planned under other code than its own.
ENVIRONMENT = SOMEWHERE.model_copy(update={"source_sha256": source_sha256(), "torch": torch.__version__})

BF16 = Precision()
OFF = Precision(backend="emulated", recipe=None)
CURRENT = Precision(backend="emulated", recipe=CurrentRecipe(), keep_bf16=("lm_head",))
DELAYED = Precision(backend="emulated", recipe=DelayedRecipe(amax_history_len=4), keep_bf16=("lm_head",))
BAD = Precision(backend="emulated", recipe=KNOWN_BAD)


def emulated(recipe: Recipe, *keep_bf16: str) -> Precision:
    return Precision(backend="emulated", recipe=recipe, keep_bf16=keep_bf16)


def new_state(precision: Precision, training: Training = TRAINING) -> TrainingState:
    make_deterministic(1)
    return build(MODEL, training, precision, CPU)


def train_task(precision: Precision, **settings: Any) -> Train:
    defaults: dict[str, Any] = {
        "data_order": DataOrder(seed=1),
        "last_step": 12,
        "validate_at": (0, 6, 12),
        "validate_forwards": ("bf16", "fp8"),
        "resume_every": 4,
    }
    return Train(model=MODEL, data=DATA, training=TRAINING, precision=precision, **(defaults | settings))


def make_run(directory: Path, task: Task) -> Path:
    """A run directory as the engine prepares it."""
    job = Job(task=task, device="cpu", label=directory.name, role=Role(design="scratch", arm="candidate"))
    directory.mkdir(parents=True)
    save_run_file(directory, RunFile(key="k", job=job, environment=ENVIRONMENT, outcome=Outcome(status="running")))
    return directory


@functools.cache
def corpus() -> Corpus:
    return load_corpus(DATA)


@dataclass
class Stop:
    """Asks the run to stop when it has looked this often."""

    after: int | None = None
    looks: int = 0

    @property
    def requested(self) -> bool:
        self.looks += 1
        return self.after is not None and self.looks > self.after

    def listen(self) -> Stop:
        return self


@contextmanager
def context(directory: Path, start: Path | None = None, stop: Stop | None = None) -> Iterator[TaskContext]:
    make_deterministic(1)
    writer = RunWriter(directory)
    writer.lock(timeout_seconds=0)
    try:
        yield TaskContext(writer.run.job, directory, start, writer, CPU, corpus(), stop or Stop())  # type: ignore[arg-type]
    finally:
        writer._lock.release()


def carry_out(directory: Path, start: Path | None = None, stop: Stop | None = None) -> Path:
    """The run's task, as the worker does it, without a process of its own."""
    with context(directory, start, stop) as given:
        TASKS[given.job.task.kind](given)
    return directory


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / name).read_text().splitlines()]


def facts(directory: Path) -> dict[str, Any]:
    return load_run_file(directory).facts


def evidence(directory: Path) -> tuple[list[Any], list[str], str]:
    """Steps, losses and gradient norms as logged, evaluations as logged, digest of the data: all that a verdict reads."""
    metrics = [(row["step"], row["loss"], row["grad_norm"], row["learning_rate"]) for row in rows(directory, "metrics.jsonl")]
    return metrics, (directory / "evals.jsonl").read_text().splitlines(), facts(directory)["data_sha256"]


def validation() -> ValidationSet:
    return validation_set(corpus(), TRAINING.sequence_length, DATA.validation_tokens)
