"""`fp8migrate watch` as a user gives it: what it prints where, and the exit codes that a supervisor acts on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command

LOSSES = 1 + 2 * np.exp(-np.arange(500) / 100)


def log(path: Path, values: np.ndarray) -> None:
    path.write_text("".join(json.dumps({"step": step, "loss": float(value)}) + "\n" for step, value in enumerate(values, 1)))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for place, offset in enumerate((0.0, 0.001, -0.001, 0.0005)):
        log(tmp_path / f"bf16-{place}.jsonl", LOSSES * (1 + offset))
    log(tmp_path / "good.jsonl", LOSSES[:120] * 1.0005)
    log(tmp_path / "bad.jsonl", LOSSES[:120] * 1.02)
    return tmp_path


def test_no_alarm_is_no_pass(fp8migrate: Command, logs: Path) -> None:
    floor = ("--floor", "bf16-1.jsonl", "bf16-2.jsonl", "bf16-3.jsonl")
    found = fp8migrate("watch", "good.jsonl", "--baseline", "bf16-0.jsonl", *floor, "--once", "--forward-penalty", "0.24%")
    assert found.returncode == 4, found.stderr
    first, last = found.stdout.splitlines()
    assert first.startswith("step 120 of 500: block 24 of 100, loss 1.6092 (baseline 1.6084), gap +0.050 % (limit 0.766 %)")
    assert last == "no alarm until step 120 of 500; a watch never passes a run"
    assert found.stderr == ""


def test_an_alarm_is_exit_3(fp8migrate: Command, logs: Path) -> None:
    baselines = ("bf16-0.jsonl", "bf16-1.jsonl", "bf16-2.jsonl", "bf16-3.jsonl")
    found = fp8migrate("watch", "bad.jsonl", "--baseline", *baselines, "--forward-penalty", "0", "--margin", "strict")
    assert found.returncode == 3, found.stderr
    assert "ALARM at step 40: block after block above its limit, wealth 28.4 of 20" in found.stdout


def test_an_unknown_penalty_is_said(fp8migrate: Command, logs: Path) -> None:
    found = fp8migrate("watch", "bad.jsonl", "--baseline", "bf16-0.jsonl", "--floor", "bf16-[123].jsonl", "--once")
    assert found.returncode == 3
    assert "note: the loss is judged as logged, FP8 forward penalty and all" in found.stderr
    assert "an alarm takes 1 % more than the margin" in found.stderr


def test_what_cannot_be_read_is_exit_2(fp8migrate: Command, logs: Path) -> None:
    (logs / "empty.log").touch()
    for arguments, said in (
        (("good.jsonl", "--baseline", "missing.log"), "missing.log: cannot be read"),
        (("good.jsonl", "--baseline", "empty.log"), "empty.log: is empty"),
        (("good.jsonl", "--baseline", "bf16-0.jsonl", "--floor", "bf16-0.jsonl"), "tells nothing of the noise"),
        (("missing.log", "--baseline", "bf16-0.jsonl", "--once"), "missing.log: is not there yet"),
        ((".", "--baseline", "bf16-0.jsonl", "--once"), "is a folder"),
        (("good.jsonl", "--baseline", "bf16-0.jsonl", "--every", "0"), "--every"),
        (("good.jsonl",), "--baseline"),
    ):
        refused = fp8migrate("watch", *arguments)
        assert refused.returncode == 2, arguments
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_growing_log_is_followed_and_ctrl_c_is_exit_5(logs: Path) -> None:
    command = [sys.executable, "-m", "fp8migrate", "watch", "live.jsonl", "--baseline", "bf16-0.jsonl", "--every", "0.05"]
    environment = os.environ | {"NO_COLOR": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=logs, text=True, env=environment, stdout=pipe, stderr=pipe) as watching:
        assert watching.stderr.readline() == "live.jsonl: is not there yet; waiting for it\n"
        log(logs / "live.jsonl", LOSSES[:50])
        assert watching.stdout.readline().startswith("step 50 of 500: block 10 of 100")
        log(logs / "live.jsonl", LOSSES[:62])
        assert watching.stdout.readline().startswith("step 62 of 500: block 12 of 100")
        time.sleep(0.3)
        watching.send_signal(signal.SIGINT)
        rest, errors = watching.communicate(timeout=60)
    assert watching.returncode == 5
    assert rest == ""
    assert "Traceback" not in errors


def test_help_says_that_it_never_passes(fp8migrate: Command) -> None:
    assert "never says that a run passes" in fp8migrate("watch", "--help").stdout
