"""A trainer program without torch: "trains" a noise model with the real run writer, and misbehaves on request.

The model's one weight is an autoregressive walk driven by noise that depends on (data order, step) alone, so that a resumed
run ends in the same weight only if its checkpoint, its step and its log are all handled rightly.

    python fake_trainer.py RUN_DIRECTORY [--start CHECKPOINT] [--behaviour JSON]
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fp8migrate.errors import ExitCode, UserError
from fp8migrate.jobs import Train
from fp8migrate.records.parent import exit_with_parent
from fp8migrate.records.schema import Conversion, Outcome
from fp8migrate.records.writer import RunWriter, checkpoint_path, last_checkpoint

INTERRUPTED = 75


@dataclass(frozen=True)
class Behaviour:
    """Steps at which something goes wrong; none: it does not. file_size_limit: bytes that any file may have."""

    step_seconds: float = 0.0
    nan_at: int | None = None
    traceback_at: int | None = None
    segfault_at: int | None = None
    out_of_memory_at: int | None = None
    silent_exit_at: int | None = None
    hang_at: int | None = None
    ignore_sigterm: bool = False
    file_size_limit: int | None = None
    once: bool = False  # misbehave in the first attempt only

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Stop:
    requested = False

    def __init__(self, ignore: bool) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore else self._heard)

    def _heard(self, number: int, frame: object) -> None:
        self.requested = True


def misbehave(step: int, behaviour: Behaviour) -> None:
    if step == behaviour.hang_at:
        while True:
            time.sleep(3600)
    if step == behaviour.segfault_at:
        signal.raise_signal(signal.SIGSEGV)
    if step == behaviour.silent_exit_at:
        os._exit(0)
    if step == behaviour.traceback_at:
        raise ArithmeticError(f"no luck at step {step}")
    if step == behaviour.out_of_memory_at:
        raise MemoryError("64 GiB asked for")


def save(path: Path, step: int, weight: float) -> None:
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step, "weight": weight}))
    temporary.replace(path)


def begin(writer: RunWriter, task: Train, start: Path | None) -> tuple[int, float]:
    """Step and weight to go on from: the run's own last checkpoint, else the start checkpoint, else nothing."""
    own = last_checkpoint(writer.directory)
    writer.resume_after(own[0] if own else None)
    path = own[1] if own else start
    if path is None:
        return task.first_step, 0.0
    saved = json.loads(path.read_text())
    return int(saved["step"]), float(saved["weight"])


def train(writer: RunWriter, start: Path | None, behaviour: Behaviour) -> int:
    task = writer.run.job.task
    assert isinstance(task, Train)
    stop = Stop(behaviour.ignore_sigterm)
    step, weight = begin(writer, task, start)
    writer.update(
        facts={"parameters": 1}, conversion=Conversion(requested="none", effective="none", layers=(), fp8_flops_share=0.0)
    )
    while step < task.last_step:
        step += 1
        misbehave(step, behaviour)
        noise = random.Random(f"{task.data_order.seed}/{step}").gauss(0.0, 1.0)
        weight = 0.9 * weight + noise
        writer.log(step, loss=float("nan") if step == behaviour.nan_at else 3.0 + weight, step_seconds=time.perf_counter())
        if step == behaviour.nan_at:
            writer.finish(Outcome(status="failed", cause="non_finite", detail=f"loss NaN at step {step}", last_step=step))
            return 0
        if step in task.validate_at:
            writer.evaluation(step, "bf16", 3.0 + weight, [weight, 2.0], [5, 6], "documents")
        keep = step in task.checkpoint_at or step % task.resume_every == 0 or step == task.last_step
        if keep or stop.requested:
            writer.sync()
            save(checkpoint_path(writer.directory, step), step, weight)
        if stop.requested and step < task.last_step:
            writer.finish(Outcome(status="interrupted", last_step=step))
            return INTERRUPTED
        time.sleep(behaviour.step_seconds)
    writer.table("weights", [{"name": "w", "value": weight}])
    writer.finish(Outcome(status="completed", last_step=step))
    return 0


def main() -> int:
    exit_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--behaviour", default="{}")
    given = parser.parse_args()
    behaviour = Behaviour(**json.loads(given.behaviour))
    try:
        writer = RunWriter(given.directory)
        writer.lock()
        if behaviour.once and writer.run.outcome.attempts > 1:
            behaviour = Behaviour(step_seconds=behaviour.step_seconds)
        if behaviour.file_size_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (behaviour.file_size_limit, resource.RLIM_INFINITY))
        return train(writer, given.start, behaviour)
    except UserError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except OSError as error:
        print(error, file=sys.stderr)
        return int(ExitCode.INFRASTRUCTURE)


if __name__ == "__main__":
    sys.exit(main())
