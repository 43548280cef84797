"""One job as one process group: started without a shell, watched for progress, stopped when it hangs, accounted for."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import orjson

from fp8migrate.errors import ExitCode, InfrastructureError, UsageError
from fp8migrate.jobs import Job
from fp8migrate.records.files import write_errors
from fp8migrate.records.log_tail import last_words, read_tail
from fp8migrate.records.parent import PARENT_VARIABLE
from fp8migrate.records.schema import Outcome, RunFile
from fp8migrate.records.writer import (
    CHECKPOINTS,
    EVALS_FILE,
    LOG_FILE,
    METRICS_FILE,
    RUN_FILE,
    TABLES,
    load_run_file,
    save_run_file,
)

WORKER_INTERRUPTED = 75  # sysexits.h, EX_TEMPFAIL: stopped on request, checkpoint left
DEFAULT_GRACE_SECONDS = 30.0

StopReason = Literal["requested", "stalled"]

_WATCH_SECONDS = 0.2
_TAIL_BYTES = 4096
_SIGNS_OF_LIFE = (METRICS_FILE, EVALS_FILE, LOG_FILE, RUN_FILE, CHECKPOINTS, TABLES)
# Signals by which a program ends itself: a crash is the arm's own doing and stands as evidence. SIGKILL, SIGTERM and the
# others come from outside.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS)


class RunningJob:
    """A started job. Poll it until it answers with an outcome, which by then stands in run.json."""

    def __init__(
        self,
        job: Job,
        directory: Path,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        stall_timeout_seconds: float,
        grace_seconds: float = DEFAULT_GRACE_SECONDS,
    ) -> None:
        """Start `command` in its own process group. Raises UsageError when there is no such program, InfrastructureError."""
        self.job, self.directory = job, directory
        self._stall_timeout_seconds, self._grace_seconds = stall_timeout_seconds, grace_seconds
        self._stop_reason: StopReason | None = None
        self._stopped_at = 0.0
        self._log_start = _size(directory / LOG_FILE)
        self._started_at = time.monotonic()
        self._process = _start(command, directory / LOG_FILE, _child_variables(job, variables))
        self._watch = _Watch(directory)

    @property
    def last_step(self) -> int:
        """The last step that was logged, 0 before the first."""
        return self._watch.last_step

    def poll(self) -> Outcome | None:
        """Look after the job without waiting: None while it runs, then how it ended. Raises InfrastructureError."""
        code = self._process.poll()
        if code is None:
            self._look_after()
            return None
        self._signal(signal.SIGKILL)  # what the job itself started and left behind
        self._watch.look(time.monotonic(), force=True)
        return self._conclude(code)

    def stop(self, reason: StopReason = "requested") -> None:
        """Ask the job to leave a checkpoint and end (SIGTERM); `poll` kills it when it has not within the grace time."""
        if self._stop_reason is None:
            self._stop_reason, self._stopped_at = reason, time.monotonic()
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the job at once (SIGKILL). It can be resumed from its last checkpoint."""
        if self._stop_reason is None:
            self._stop_reason = "requested"
        self._signal(signal.SIGKILL)

    def _look_after(self) -> None:
        now = time.monotonic()
        if self._stop_reason is not None:
            if now - self._stopped_at > self._grace_seconds:
                self._signal(signal.SIGKILL)
            return
        self._watch.look(now)
        if now - self._watch.last_sign > self._stall_timeout_seconds:
            self.stop("stalled")

    def _signal(self, number: signal.Signals) -> None:
        # The group has the number of the process that started it.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _conclude(self, code: int) -> Outcome:
        run = load_run_file(self.directory)
        outcome = self._decide(run, code)
        if outcome != run.outcome:
            save_run_file(self.directory, run.model_copy(update={"outcome": outcome}))
        return outcome

    def _decide(self, run: RunFile, code: int) -> Outcome:
        """What the worker recorded counts; where it recorded nothing, how its process ended does."""
        recorded = run.outcome
        stalled = self._stop_reason == "stalled" and recorded.status in ("running", "interrupted")
        if recorded.status != "running" and not stalled:
            return recorded if recorded.exit_code is not None else recorded.model_copy(update={"exit_code": code})
        elapsed = time.monotonic() - self._started_at if recorded.status == "running" else 0.0
        ended = self._stalled() if stalled else self._unrecorded(code)
        return ended.model_copy(
            update={
                "exit_code": code,
                "last_step": max(self.last_step, recorded.last_step if stalled else 0),
                "attempts": recorded.attempts,
                "wall_seconds": recorded.wall_seconds + elapsed,
            }
        )

    def _stalled(self) -> Outcome:
        detail = f"no output for {self._stall_timeout_seconds:g} s (launch.stall_timeout_seconds), so it was stopped"
        return Outcome(status="failed", cause="stalled", detail=detail)

    def _unrecorded(self, code: int) -> Outcome:
        """The outcome of a process that ended with `code` and left run.json saying that it is running."""
        words = last_words(read_tail(self.directory / LOG_FILE, self._log_start))
        if self._stop_reason == "requested" or code == WORKER_INTERRUPTED:
            return Outcome(status="interrupted", detail="stopped on request before it recorded so itself")
        if code == ExitCode.INFRASTRUCTURE:
            return Outcome(status="failed", cause="disk", detail=words)
        if code >= 0:
            cause: Literal["out_of_memory", "error"] = "out_of_memory" if _says_out_of_memory(words) else "error"
            return Outcome(status="failed", cause=cause, detail=words or f"ended with exit code {code} and recorded no outcome")
        if -code in _CRASHES:
            return Outcome(status="failed", cause="error", detail=f"crashed with {_signal_name(-code)}\n{words}".strip())
        hint = " (by hand, or by the system when memory ran out)" if -code == signal.SIGKILL else ""
        return Outcome(status="failed", cause="killed", detail=f"ended by {_signal_name(-code)}{hint}")


def _says_out_of_memory(words: str) -> bool:
    first = words.partition("\n")[0]
    return "OutOfMemoryError" in first or first.startswith("MemoryError") or "CUDA out of memory" in first


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _child_variables(job: Job, variables: Mapping[str, str]) -> dict[str, str]:
    threads = str(job.threads)
    fixed = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, PARENT_VARIABLE: str(os.getpid())}
    return {**os.environ, **fixed, **variables}


def _start(command: Sequence[str], log: Path, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with write_errors(log), log.open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=variables,
                start_new_session=True,
            )
        except (FileNotFoundError, PermissionError) as error:
            raise UsageError(f"cannot be started: {error.strerror}", where=command[0]) from error
        except OSError as error:
            raise InfrastructureError(
                f"cannot be started: {error.strerror or error}",
                where=command[0],
                next_step="Once the machine has room for another process, give the same command again.",
            ) from error


class _Watch:
    """Signs of life of a run directory: any of its files growing or being replaced."""

    def __init__(self, directory: Path) -> None:
        self.last_sign = time.monotonic()
        self.last_step = 0
        self._directory = directory
        self._looked_at = 0.0
        self._seen: tuple[tuple[int, int], ...] = ()

    def look(self, now: float, force: bool = False) -> None:
        """Look again if the last look was a while ago. now: seconds of time.monotonic."""
        if not force and now - self._looked_at < _WATCH_SECONDS:
            return
        self._looked_at = now
        seen = tuple(_size_and_time(self._directory / name) for name in _SIGNS_OF_LIFE)
        if seen != self._seen:
            self._seen, self.last_sign = seen, now
            self.last_step = _last_step(self._directory / METRICS_FILE)


def _size(path: Path) -> int:
    return _size_and_time(path)[0]


def _size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return (0, 0)
    return (status.st_size, status.st_mtime_ns)


def _last_step(metrics: Path) -> int:
    """The step on the last whole line; 0 where there is none."""
    try:
        with metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        return 0
    for line in reversed(lines):
        with suppress(orjson.JSONDecodeError):
            row = orjson.loads(line)
            if isinstance(row, dict) and type(row.get("step")) is int and row["step"] >= 0:
                return int(row["step"])
    return 0
