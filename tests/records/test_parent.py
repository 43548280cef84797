"""A worker dies with the process that started it, and only with that one."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

WORKER = """
import os, sys, time
from fp8migrate.records.parent import exit_with_parent
sys.platform = sys.argv[1]
exit_with_parent()
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
variables = os.environ | {"FP8MIGRATE_PARENT_PID": str(os.getpid())}
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=variables)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("platform", ["linux", "another"])
def test_a_worker_dies_with_its_parent(platform: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, WORKER, platform], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert is_running(worker)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 60
    while is_running(worker):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_worker(parent: str | None) -> "subprocess.Popen[bytes]":
    variables = {name: value for name, value in os.environ.items() if name != "FP8MIGRATE_PARENT_PID"}
    if parent is not None:
        variables["FP8MIGRATE_PARENT_PID"] = parent
    return subprocess.Popen([sys.executable, "-c", WORKER, sys.platform], env=variables, stdout=subprocess.PIPE)


@pytest.mark.parametrize("parent", [None, "", "nonsense", "-1"])
def test_a_worker_started_by_hand_is_left_alone(parent: str | None) -> None:
    worker = start_worker(parent)
    assert worker.stdout is not None
    assert int(worker.stdout.readline()) == worker.pid
    worker.kill()
    worker.communicate()


def test_a_worker_whose_parent_was_gone_before_it_asked_does_not_start() -> None:
    worker = start_worker("1" if os.getpid() != 1 else "2")
    assert worker.communicate()[0] == b""
    assert worker.returncode == -9
