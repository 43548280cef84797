"""`fp8migrate run`, killed with -9 at random points twenty times, ends in the report of a run that nobody touched."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fp8migrate.records.files import FileLock
from tests.cli.conftest import TINY_PLAN

COMMAND = [sys.executable, "-m", "fp8migrate", "run", "plan.yaml"]
KILLS = 20


def evidence(folder: Path) -> dict[str, Any]:
    """What a report says bit for bit whatever happened on the way: all but times, speeds and folders."""
    report = json.loads((folder / "reports" / "tiny" / "report.json").read_text())
    return {
        "evidence_sha256": report["evidence_sha256"],
        "verdict": report["verdict"],
        "results": [phase["results"] for phase in report["phases"]],
        "cells": [comparison["cells"] for comparison in report["comparisons"]],
        "curves": [comparison["curves"] for comparison in report["comparisons"]],
    }


def make(folder: Path) -> Path:
    folder.mkdir()
    (folder / "plan.yaml").write_text(TINY_PLAN.replace("num_steps: 24", "num_steps: 240"))
    return folder


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(COMMAND, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    whole, killed = make(tmp_path / "whole"), make(tmp_path / "killed")
    reference = start(whole)
    reference.communicate(timeout=600)
    assert reference.returncode == 4
    generator = random.Random(7)
    for _ in range(KILLS):
        process = start(killed)
        # From before the first job to well into several; the probe alone takes some seconds.
        time.sleep(generator.uniform(0.5, 12.0))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    last = start(killed)
    _, errors = last.communicate(timeout=600)
    assert last.returncode == 4, errors.decode()
    assert evidence(killed) == evidence(whole)


def test_ctrl_c_keeps_what_is_there_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = make(tmp_path / "stopped")
    process = start(folder)
    deadline = time.monotonic() + 120
    while not list(folder.glob("reports/tiny/runs/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 5
    assert b"same command" in errors
    logged = [path for path in folder.glob("reports/tiny/runs/*/metrics.jsonl") if path.stat().st_size]
    outcomes = [json.loads((path.parent / "run.json").read_text())["outcome"]["status"] for path in logged]
    assert outcomes
    assert set(outcomes) <= {"completed", "interrupted"}
    for path in logged:  # no worker is left behind: each would hold its run's lock
        lock = FileLock(path.parent / ".lock")
        lock.acquire(0.0)
        lock.release()
