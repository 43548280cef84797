"""One job: started without a shell, watched, and accounted for whatever it did."""

import os
import sys
import time
from pathlib import Path

import pytest

from fp8migrate.engine.supervisor import RunningJob
from fp8migrate.errors import UsageError
from fp8migrate.records.log_tail import last_words
from fp8migrate.records.schema import Outcome
from fp8migrate.records.store import RunStore
from fp8migrate.records.writer import load_run_file
from tests.engine.stage import ENVIRONMENT, train_job

JOB = train_job("a").model_copy(update={"threads": 3})


def run_program(tmp_path: Path, program: str, *arguments: str) -> tuple[Outcome, Path]:
    """The outcome of a Python program that stands in for a worker, and its run directory."""
    directory = RunStore(tmp_path / "runs", ENVIRONMENT).prepare(JOB)
    command = [sys.executable, "-c", program, *arguments]
    running = RunningJob(JOB, directory, command, variables={"GIVEN": "1"}, stall_timeout_seconds=60, grace_seconds=1)
    deadline = time.monotonic() + 60
    while (outcome := running.poll()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert load_run_file(directory).outcome == outcome
    return outcome, directory


def test_what_a_worker_is_given(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdin.read(), os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'], "
    program += "os.environ['GIVEN'], os.environ['FP8MIGRATE_PARENT_PID'], os.getpgid(0) == os.getpid(), sys.argv[1])"
    _, directory = run_program(tmp_path, program, "$(touch pwned); `ls` *")
    assert (directory / "worker.log").read_text().split(maxsplit=5) == [
        "3",
        "3",
        "1",
        str(os.getpid()),
        "True",
        "$(touch pwned); `ls` *\n",
    ]


@pytest.mark.parametrize(
    ("program", "status", "cause", "says"),
    [
        ("raise SystemExit(5)", "failed", "disk", ""),
        ("raise SystemExit(75)", "interrupted", None, "stopped"),
        ("raise SystemExit(3)", "failed", "error", "exit code 3"),
        ("print('about to'); raise ValueError('too bad')", "failed", "error", "ValueError: too bad"),
        ("raise MemoryError('no more')", "failed", "out_of_memory", "MemoryError: no more"),
        ("class OutOfMemoryError(Exception): pass\nraise OutOfMemoryError", "failed", "out_of_memory", "OutOfMemoryError"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "killed", "SIGKILL"),
        ("import os; os.kill(os.getpid(), 15)", "failed", "killed", "SIGTERM"),
        ("import os; os.abort()", "failed", "error", "SIGABRT"),
        ("", "failed", "error", "exit code 0 and recorded no outcome"),
    ],
)
def test_how_a_process_ended_decides_where_it_recorded_nothing(
    tmp_path: Path, program: str, status: str, cause: str | None, says: str
) -> None:
    outcome, _ = run_program(tmp_path, program)
    assert (outcome.status, outcome.cause) == (status, cause)
    assert says in (outcome.detail.splitlines() or [""])[0]
    assert outcome.wall_seconds > 0


def test_what_a_worker_recorded_counts_even_if_it_crashes_on_its_way_out(tmp_path: Path) -> None:
    program = "import os, pathlib, sys\nfrom fp8migrate.records.writer import RunWriter\n"
    program += "from fp8migrate.records.schema import Outcome\n"
    program += "writer = RunWriter(max(pathlib.Path(sys.argv[1]).glob('a-*')))\n"
    program += "writer.finish(Outcome(status='completed', last_step=20))\nos.abort()"
    outcome, _ = run_program(tmp_path, program, str(tmp_path / "runs"))
    assert (outcome.status, outcome.last_step, outcome.exit_code) == ("completed", 20, -6)


def test_what_a_job_started_itself_ends_with_it(tmp_path: Path) -> None:
    program = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
    _, directory = run_program(tmp_path, program)
    pid = int((directory / "worker.log").read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_earlier_attempts_log_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    run_program(tmp_path, "raise ValueError('of the first attempt')")
    outcome, _ = run_program(tmp_path, "raise SystemExit(3)")
    assert "first attempt" not in outcome.detail
    assert outcome.attempts == 2


def test_a_program_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    directory = RunStore(tmp_path / "runs", ENVIRONMENT).prepare(JOB)
    with pytest.raises(UsageError, match=r"/no/such/program: cannot be started"):
        RunningJob(JOB, directory, ["/no/such/program"], variables={}, stall_timeout_seconds=60)


def test_last_words_begin_with_the_exception_and_carry_no_terminal_escapes() -> None:
    log = "\n".join(
        [
            "step 1",
            "Traceback (most recent call last):",
            '  File "x.py", line 1, in <module>',
            "    \x1b[31mboom()\x1b[0m",
            "RuntimeError: \x1b[2Jboom\x07",
            "[rank0] shutting down\r",
        ]
    )
    words = last_words(log).splitlines()
    assert words[0] == "RuntimeError: boom"
    assert words[-1] == "[rank0] shutting down"
    assert "\x1b" not in last_words(log)
    assert last_words("") == ""
    assert last_words("only this") == "only this"
    assert len(last_words("long " * 10_000)) <= 300
