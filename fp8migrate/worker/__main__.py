"""`python -m fp8migrate.worker run DIRECTORY [--start CHECKPOINT]` with `probe`, `speed` and others: what the engine starts.

Exit codes: 0 the outcome is recorded (a NaN is an outcome), 2 wrong use, 5 the disk failed, 75 stopped on request.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path

import torch

from fp8migrate.errors import InfrastructureError, UserError
from fp8migrate.jobs import Job, Precision, Train
from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.records.parent import exit_with_parent
from fp8migrate.records.schema import Environment, Outcome
from fp8migrate.records.writer import RunWriter
from fp8migrate.worker.backends import BACKENDS
from fp8migrate.worker.data import load_corpus
from fp8migrate.worker.fitting import what_would_fit
from fp8migrate.worker.probe import probe, source_sha256
from fp8migrate.worker.runtime import StopSignal, choose_device, make_deterministic
from fp8migrate.worker.speed import seconds_per_step
from fp8migrate.worker.tasks import TASKS, TaskContext
from fp8migrate.worker.tasks.context import Interrupted, NonFinite

EXIT_INTERRUPTED = 75


def main(arguments: list[str]) -> int:
    exit_with_parent()
    parser = argparse.ArgumentParser(prog="python -m fp8migrate.worker")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("directory", type=Path)
    run.add_argument("--start", type=Path)
    look = commands.add_parser("probe")
    look.add_argument("--device", required=True)
    look.add_argument("--data", required=True)
    machine = commands.add_parser("examine")
    machine.add_argument("--device", required=True)
    speed = commands.add_parser("speed")
    speed.add_argument("--job", required=True)
    layers = commands.add_parser("break-even")
    layers.add_argument("--request", required=True)
    load = commands.add_parser("load")
    load.add_argument("--backend", required=True)
    options = parser.parse_args(arguments)
    try:
        if options.command == "probe":
            print(probe(options.device, PythonSourceData.model_validate_json(options.data)).model_dump_json())
            return 0
        if options.command == "load":
            print(BACKENDS[options.backend](Precision()).name)
            return 0
        if options.command == "examine":
            from fp8migrate.worker.examine import examine  # not part of a run

            print(examine(options.device).model_dump_json())
            return 0
        if options.command == "break-even":
            from fp8migrate.sizing.break_even import BreakEvenRequest  # not part of a run
            from fp8migrate.worker.break_even import measure_break_even

            request = BreakEvenRequest.model_validate_json(options.request)
            print(measure_break_even(request, choose_device(request.device)).model_dump_json())
            return 0
        if options.command == "speed":
            print(seconds_per_step(Job.model_validate_json(options.job)))
            return 0
        return run_job(options.directory, options.start)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def run_job(directory: Path, start: Path | None) -> int:
    """Carry out the job of a run directory and record how it ended."""
    stop = StopSignal().listen()
    started = time.monotonic()
    writer = RunWriter(directory)
    writer.lock()
    job = writer.run.job
    demand_unchanged(writer.run.environment)
    make_deterministic(job.threads)
    device = choose_device(job.device)
    corpus = load_corpus(job.task.data)
    context = TaskContext(job, directory, start, writer, device, corpus, stop)
    code, outcome = 0, Outcome(status="completed")
    try:
        TASKS[job.task.kind](context)
        outcome = Outcome(status="completed", last_step=getattr(job.task, "last_step", 0))
    except Interrupted as error:
        code, outcome = EXIT_INTERRUPTED, Outcome(status="interrupted", detail=str(error), last_step=error.step)
    except NonFinite as error:
        outcome = Outcome(status="failed", cause="non_finite", detail=str(error), last_step=error.step)
    except torch.OutOfMemoryError as error:
        traceback.print_exc()
        detail = str(error).splitlines()[0]
        error.__traceback__ = None  # its frames hold the model that did not fit
        if isinstance(job.task, Train):
            detail = f"{detail}; {what_would_fit(job.task, device)}"
        outcome = Outcome(status="failed", cause="out_of_memory", detail=detail)
    except OSError as error:
        raise InfrastructureError(f"could not write the run: {error}", where=str(directory)) from error
    elapsed = time.monotonic() - started
    writer.finish(outcome.model_copy(update={"exit_code": code, "wall_seconds": elapsed}))
    return code


def demand_unchanged(planned: Environment) -> None:
    """A run is recorded under the code and the torch that its engine found. Raises InfrastructureError where they changed."""
    found = {"fp8migrate's own training code": source_sha256(), "torch": torch.__version__}
    wanted = {"fp8migrate's own training code": planned.source_sha256, "torch": planned.torch}
    changed = [what for what in found if found[what] != wanted[what]]
    if changed:
        raise InfrastructureError(
            f"{' and '.join(changed)} changed while the plan was running", next_step="Run the plan again."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
