"""The built-in trainer: fp8migrate's own worker, started as a program so that torch stays out of every other process."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fp8migrate.errors import ExitCode, InfrastructureError, UsageError
from fp8migrate.facts.backends import BackendName
from fp8migrate.jobs import Job
from fp8migrate.plan.schema import Plan, PythonSourceData
from fp8migrate.records.log_tail import last_words
from fp8migrate.records.machine import Machine
from fp8migrate.records.schema import Environment
from fp8migrate.sizing.break_even import BreakEven, BreakEvenRequest

_PROBE_TIMEOUT_SECONDS = 600
# A step that has not ended by then is no step to plan a run of minutes with; the estimate then says that it was not measured.
_SPEED_TIMEOUT_SECONDS = 40
# -P: the current folder is not searched for modules, so that a user's profile.py or datasets/ does not stand in for a real one.
_WORKER = (sys.executable, "-P", "-m", "fp8migrate.worker")


class Builtin:
    """Runs every task with `python -m fp8migrate.worker`."""

    def environment(self, plan: Plan) -> Environment:
        """Ask the worker (a few seconds: it imports torch and reads the data). Never cached: any of it may have changed.

        Raises UsageError when torch is missing or the machine cannot run the plan, InfrastructureError when the probe is ended.
        """
        return probe(plan.launch.device, plan.data, plan.launch.threads_per_job)

    def demand_backend(self, plan: Plan, backend: BackendName) -> None:
        if backend != "emulated":
            _ask(("load", "--backend", backend), plan.launch.threads_per_job)

    def seconds_per_step(self, job: Job) -> float:
        _need_torch()
        printed = _ask(("speed", "--job", job.model_dump_json()), job.threads, _SPEED_TIMEOUT_SECONDS)
        try:
            return float(printed)
        except ValueError as error:
            raise RuntimeError(f"the worker printed no seconds: {printed[-500:]!r}") from error

    def command(self, job: Job, run_directory: Path, start: Path | None) -> Sequence[str]:
        begin = () if start is None else ("--start", str(start))
        return (*_WORKER, "run", str(run_directory), *begin)


def probe(device: str, data: PythonSourceData, threads: int) -> Environment:
    """What a worker on `device` finds here. Raises UsageError, InfrastructureError."""
    _need_torch()
    printed = _ask(("probe", "--device", device, "--data", data.model_dump_json()), threads)
    try:
        return Environment.model_validate_json(printed)
    except ValidationError as error:
        raise RuntimeError(f"the worker's probe printed no environment: {printed[-500:]!r}") from error


def examine(device: str) -> Machine:
    """Everything that a worker finds here, for `doctor`: up to minutes. Raises UsageError, InfrastructureError."""
    _need_torch()
    printed = _ask(("examine", "--device", device), threads=1)
    try:
        return Machine.model_validate_json(printed)
    except ValidationError as error:
        raise RuntimeError(f"the worker's examination printed no machine: {printed[-500:]!r}") from error


def break_even(request: BreakEvenRequest) -> BreakEven:
    """Linear shapes timed here, each in BF16 and in FP8. Raises UsageError, InfrastructureError."""
    _need_torch()
    arguments = ("break-even", "--request", request.model_dump_json())
    printed = _ask(arguments, 1, int(2 * request.seconds) + _PROBE_TIMEOUT_SECONDS)
    try:
        return BreakEven.model_validate_json(printed)
    except ValidationError as error:
        raise RuntimeError(f"the worker printed no times: {printed[-500:]!r}") from error


def _failure(code: int, stderr: str) -> UsageError | InfrastructureError:
    words = last_words(stderr) or f"exit code {code}"
    if code == ExitCode.INFRASTRUCTURE or code < 0:
        return InfrastructureError(f"looking at the machine was ended from outside: {words}")
    if code == ExitCode.USAGE:
        return UsageError(words)
    return UsageError(f"this machine cannot run the plan: {words}")


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise UsageError(
            "the built-in trainer needs PyTorch, which is not installed here", next_step="pip install 'fp8migrate[train]'"
        )


def _ask(arguments: Sequence[str], threads: int, timeout_seconds: int = _PROBE_TIMEOUT_SECONDS) -> str:
    """The last line that the worker prints. Raises UsageError, InfrastructureError."""
    # What the worker's threads will be is fixed by the plan, whatever this shell says: else its variables would change
    # the environment, and every run would be done again.
    variables = os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    try:
        ended = subprocess.run(
            (*_WORKER, *arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=variables,
            timeout=timeout_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"looking at the machine took longer than {timeout_seconds} s") from error
    except OSError as error:
        raise InfrastructureError(f"cannot be started: {error.strerror}", where=sys.executable) from error
    if ended.returncode != 0:
        raise _failure(ended.returncode, ended.stderr)
    lines = ended.stdout.strip().splitlines()
    return lines[-1] if lines else ""
