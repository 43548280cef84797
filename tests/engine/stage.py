"""What the engine's tests act on: a tiny plan, jobs of it, a trainer that starts the fake program, phases, an observer."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.engine.pipeline import PipelineResult, run_pipeline
from fp8migrate.engine.workspace import Workspace
from fp8migrate.facts.backends import BackendName
from fp8migrate.jobs import CheckpointRef, DataOrder, Job, Precision, Role, Train
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import Design, Launch, LlamaModel, Plan, PythonSourceData, ScratchDesign, Training
from fp8migrate.records.schema import Environment, Outcome, Record
from fp8migrate.verdict import PhaseState
from tests.engine.fake_trainer import Behaviour

FAKE_TRAINER = Path(__file__).with_name("fake_trainer.py")
MODEL = LlamaModel(num_layers=1, hidden_size=16, num_heads=1, num_kv_heads=1, ffn_hidden_size=16)
TRAINING = Training(
    num_steps=40, sequence_length=8, micro_batch_size=1, global_batch_size=1, learning_rate=1e-3, warmup_steps=1
)
ENVIRONMENT = Environment(
    fp8migrate="0.1",
    source_sha256="0" * 64,
    python="3.11",
    torch="none",
    device="cpu",
    device_name="a test",
    cpu_capability="none",
    bf16_gemm="none",
    data_sha256="1" * 64,
    data_tokens=1000,
)


def tiny_plan(*, max_parallel: int = 2, stall_timeout_seconds: float = 60.0) -> Plan:
    return Plan(
        name="tiny",
        model=MODEL,
        training=TRAINING,
        design=Design(scratch=ScratchDesign()),
        launch=Launch(max_parallel=max_parallel, stall_timeout_seconds=stall_timeout_seconds),
    )


def train_job(
    label: str, *, seed: int = 0, last_step: int = 20, start: Job | None = None, start_step: int = 10, resume_every: int = 5
) -> Job:
    """A job of the tiny plan. With `start` it goes on from that job's checkpoint after `start_step` updates."""
    task = Train(
        model=MODEL,
        data=PythonSourceData(),
        training=TRAINING,
        precision=Precision(),
        data_order=DataOrder(seed=seed),
        first_step=start_step if start else 0,
        last_step=last_step,
        validate_at=(last_step,),
        checkpoint_at=(10,),
        resume_every=resume_every,
    )
    reference = CheckpointRef(job=start.digest, step=start_step) if start else None
    return Job(task=task, start=reference, label=label, role=Role(design="scratch", arm="baseline"))


@dataclass
class FakeTrainer:
    """behaviours: by job label; everybody else behaves."""

    behaviours: Mapping[str, Behaviour] = field(default_factory=dict)
    where: Environment = ENVIRONMENT

    def environment(self, plan: Plan) -> Environment:
        return self.where

    def demand_backend(self, plan: Plan, backend: BackendName) -> None:
        pass

    def seconds_per_step(self, job: Job) -> float:
        return self.behaviours.get(job.label, Behaviour()).step_seconds

    def command(self, job: Job, run_directory: Path, start: Path | None) -> Sequence[str]:
        behaviour = self.behaviours.get(job.label, Behaviour())
        begin = ["--start", str(start)] if start else []
        return [sys.executable, str(FAKE_TRAINER), str(run_directory), "--behaviour", behaviour.to_json(), *begin]


@dataclass
class AskOnce:
    """A phase that asks for its jobs in rounds, then is done."""

    name: str
    rounds: tuple[tuple[Job, ...], ...]

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        for jobs in self.rounds:
            if findings.missing(jobs):
                return Jobs(jobs, because="the test wants them")
        asked = [job for jobs in self.rounds for job in jobs]
        completed = all(findings.records[job.digest].outcome.status == "completed" for job in asked)
        status: CheckStatus = "pass" if completed else "fail"
        return Done((CheckResult("all completed", status, summary=""),))

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        return tuple(job for jobs in self.rounds for job in jobs)


@dataclass
class Diary:
    """An observer that writes down what it is told, and does what the test wants when it is told so."""

    lines: list[str] = field(default_factory=list)
    on_progress: Callable[[Job, int], None] | None = None
    on_start: Callable[[Job], None] | None = None

    def message(self, text: str) -> None:
        self.lines.append(text)

    def phase_started(self, name: str) -> None:
        self.lines.append(f"phase {name}")

    def jobs_planned(self, jobs: Sequence[Job], total_steps: int, because: str) -> None:
        self.lines.append(f"planned {' '.join(job.label for job in jobs)}: {total_steps} steps")

    def job_started(self, job: Job) -> None:
        self.lines.append(f"start {job.label}")
        if self.on_start is not None:
            self.on_start(job)

    def job_progress(self, job: Job, step: int) -> None:
        if self.on_progress is not None:
            self.on_progress(job, step)

    def job_finished(self, job: Job, outcome: Outcome, reused: bool) -> None:
        self.lines.append(f"{'reused' if reused else 'end'} {job.label}: {outcome.cause or outcome.status}")

    def phase_finished(self, name: str, state: str) -> None:
        self.lines.append(f"phase {name} {state}")

    def started(self) -> list[str]:
        return [line.removeprefix("start ") for line in self.lines if line.startswith("start ")]


def promote(name: str, done: Done) -> PhaseState:
    return "passed" if all(result.status == "pass" for result in done.results) else "failed"


def run_jobs(
    root: Path,
    *jobs: Job,
    behaviours: Mapping[str, Behaviour] | None = None,
    plan: Plan | None = None,
    observer: Diary | None = None,
    where: Environment = ENVIRONMENT,
    grace_seconds: float = 20.0,
) -> PipelineResult:
    """Run one phase that asks for `jobs`, in a workspace of its own."""
    with Workspace.open(root) as workspace:
        return run_pipeline(
            plan or tiny_plan(),
            workspace,
            FakeTrainer(behaviours or {}, where),
            [AskOnce("only", (jobs,))],
            promote,
            observer or Diary(),
            grace_seconds=grace_seconds,
        )


def evidence(record: Record) -> dict[str, Any]:
    """All of a record that must not depend on how often it was interrupted, nor on the clock."""
    series = {
        name: (s.steps.tolist(), [repr(value) for value in s.values.tolist()])
        for name, s in record.series.items()
        if name != "step_seconds"
    }
    evaluations = [(e.step, e.forward, e.loss, e.tokens, np.asarray(e.document_nll).tolist()) for e in record.evaluations]
    return {
        "key": record.key,
        "outcome": (record.outcome.status, record.outcome.cause, record.outcome.last_step),
        "series": series,
        "evaluations": evaluations,
        "tables": dict(record.tables),
        "facts": dict(record.facts),
        "unreadable_lines": record.unreadable_lines,
    }
