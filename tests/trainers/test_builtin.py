"""The built-in trainer: command lines, and the worker's answer about the machine."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fp8migrate.errors import InfrastructureError, UserError
from fp8migrate.errors import UsageError as Usage
from fp8migrate.trainers import trainer_for
from fp8migrate.trainers.builtin import Builtin
from tests.engine.stage import ENVIRONMENT, tiny_plan, train_job


def play(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str = "", stderr: str = "") -> list[Any]:
    """Let the probe end so; answers the calls that were made of it."""
    calls: list[Any] = []

    def run(command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append((command, options))
        return subprocess.CompletedProcess(command, code, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    return calls


def test_the_plan_names_its_trainer() -> None:
    assert isinstance(trainer_for(tiny_plan()), Builtin)


def test_the_command_line_of_a_job(tmp_path: Path) -> None:
    worker = [sys.executable, "-P", "-m", "fp8migrate.worker"]
    job = train_job("a")
    assert list(Builtin().command(job, tmp_path, None)) == [*worker, "run", str(tmp_path)]
    start = tmp_path / "step-00000010.safetensors"
    assert list(Builtin().command(job, tmp_path, start)) == [*worker, "run", str(tmp_path), "--start", str(start)]


def test_the_last_line_of_the_probe_is_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = play(monkeypatch, 0, f"a library says hello\n{ENVIRONMENT.model_dump_json()}\n")
    assert Builtin().environment(tiny_plan()) == ENVIRONMENT
    [(command, options)] = calls
    assert command[4:6] == ("probe", "--device")
    assert options["env"]["OMP_NUM_THREADS"] == "1"


def test_without_torch_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Usage, match=r"pip install 'fp8migrate\[train\]'"):
        Builtin().environment(tiny_plan())


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (2, Usage, "no GPU here"),
        (1, Usage, "this machine cannot run the plan: no GPU here"),
        (5, InfrastructureError, "ended from outside"),
        (-9, InfrastructureError, "ended from outside"),
    ],
)
def test_a_probe_that_fails_is_explained(monkeypatch: pytest.MonkeyPatch, code: int, error: type[UserError], says: str) -> None:
    play(monkeypatch, code, stderr="no GPU here\n")
    with pytest.raises(error, match=says):
        Builtin().environment(tiny_plan())


@pytest.mark.parametrize("stdout", ["", "not an environment", "{}"])
def test_a_probe_that_answers_nonsense_is_our_bug(monkeypatch: pytest.MonkeyPatch, stdout: str) -> None:
    play(monkeypatch, 0, stdout)
    with pytest.raises(RuntimeError, match="printed no environment"):
        Builtin().environment(tiny_plan())


def test_the_speed_of_a_job_is_asked_for_with_its_own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = play(monkeypatch, 0, "warming up\n0.25\n")
    job = train_job("a").model_copy(update={"threads": 3})
    assert Builtin().seconds_per_step(job) == 0.25
    [(command, options)] = calls
    assert command[4:6] == ("speed", "--job")
    assert options["env"]["OMP_NUM_THREADS"] == "3"


def test_a_speed_that_is_no_number_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, 0, "fast\n")
    with pytest.raises(RuntimeError, match="printed no seconds"):
        Builtin().seconds_per_step(train_job("a"))
