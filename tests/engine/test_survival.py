"""kill -9 of a worker or of the engine at any moment, and the same command again: the evidence is the same to the bit."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from fp8migrate.engine.supervisor import RunningJob
from fp8migrate.errors import InfrastructureError, UsageError
from fp8migrate.jobs import Job
from fp8migrate.records.store import RunStore
from fp8migrate.records.writer import load_run_file
from tests.engine import run_engine
from tests.engine.fake_trainer import Behaviour
from tests.engine.stage import ENVIRONMENT, Diary, FakeTrainer, evidence, run_jobs, train_job

REPOSITORY = Path(__file__).parents[2]


def all_evidence(root: Path) -> Mapping[str, Any]:
    return {digest: evidence(record) for digest, record in run_jobs(root, *run_engine.jobs()).records.items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    return all_evidence(tmp_path_factory.mktemp("undisturbed"))


def worker_pids(root: Path) -> list[int]:
    """Of the workers that hold their run directories, by what they wrote into the locks."""
    contents = [path.read_bytes() for path in (root / "runs").glob("*/.lock")]
    return [int(orjson.loads(content)["pid"]) for content in contents if content]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def start_engine(root: Path, step_seconds: float = 0.02) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.engine.run_engine", str(root), str(step_seconds)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "start trunk\n"
    return process


def wait_until(condition: Callable[[], object], timeout_seconds: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def kill_worker(root: Path, undisturbed: Mapping[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    killed: list[int] = []
    victim_step = chance.randint(1, 20)

    def kill_once(job: Job, step: int) -> None:
        if step >= victim_step and not killed and (pids := worker_pids(root)):
            time.sleep(chance.random() * 0.05)
            killed.append(chance.choice(pids))
            os.kill(killed[0], signal.SIGKILL)

    slow = {job.label: Behaviour(step_seconds=0.01) for job in run_engine.jobs()}
    # It may have finished in the moment before it was killed: then there is nothing to report.
    with suppress(InfrastructureError):
        run_jobs(root, *run_engine.jobs(), behaviours=slow, observer=Diary(on_progress=kill_once))
    assert killed
    assert all_evidence(root) == undisturbed


def kill_engine(root: Path, undisturbed: Mapping[str, Any], seed: int) -> None:
    engine = start_engine(root)
    time.sleep(random.Random(seed).random() * 2.0)
    engine.kill()
    engine.communicate()
    # At once: workers of the killed engine may still be dying while the next one starts.
    assert all_evidence(root) == undisturbed


@pytest.mark.parametrize("seed", range(2))
def test_killed_worker(tmp_path: Path, undisturbed: Mapping[str, Any], seed: int) -> None:
    kill_worker(tmp_path, undisturbed, seed)


@pytest.mark.parametrize("seed", range(2))
def test_killed_engine(tmp_path: Path, undisturbed: Mapping[str, Any], seed: int) -> None:
    kill_engine(tmp_path, undisturbed, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_killed_worker_many_times(tmp_path: Path, undisturbed: Mapping[str, Any], seed: int) -> None:
    kill_worker(tmp_path, undisturbed, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_killed_engine_many_times(tmp_path: Path, undisturbed: Mapping[str, Any], seed: int) -> None:
    kill_engine(tmp_path, undisturbed, seed)


def test_a_killed_worker_stops_the_pipeline_after_its_neighbours_left_a_checkpoint(tmp_path: Path) -> None:
    victim, beside = train_job("victim", last_step=40), train_job("beside", seed=1, last_step=2000, resume_every=10_000)
    store = RunStore(tmp_path / "runs", ENVIRONMENT)

    killed: list[int] = []

    def kill_victim(job: Job, step: int) -> None:
        directory = store.find(victim)
        if job == beside and not killed and directory is not None and (content := (directory / ".lock").read_bytes()):
            killed.append(int(orjson.loads(content)["pid"]))
            os.kill(killed[0], signal.SIGKILL)

    slow = {"victim": Behaviour(step_seconds=1.0), "beside": Behaviour(step_seconds=0.05)}
    with pytest.raises(InfrastructureError, match="victim was ended from outside") as error:
        run_jobs(tmp_path, victim, beside, behaviours=slow, observer=Diary(on_progress=kill_victim))
    assert error.value.exit_code == 5
    assert "SIGKILL" in str(error.value)
    assert "same command again" in str(error.value)
    ends = [store.outcome(job) for job in (victim, beside)]
    assert [(end.status, end.cause) for end in ends if end] == [("failed", "killed"), ("interrupted", None)]


def test_workers_die_with_their_engine(tmp_path: Path) -> None:
    engine = start_engine(tmp_path, step_seconds=10.0)
    wait_until(lambda: worker_pids(tmp_path))
    pids = worker_pids(tmp_path)
    engine.kill()
    engine.communicate()
    wait_until(lambda: not any(map(is_running, pids)))


def test_an_engine_asked_to_stop_exits_5_and_is_gone_on_from(tmp_path: Path, undisturbed: Mapping[str, Any]) -> None:
    engine = start_engine(tmp_path, step_seconds=0.1)
    wait_until(lambda: worker_pids(tmp_path))
    engine.terminate()
    _, errors = engine.communicate()
    assert engine.returncode == 5
    assert "stopped by SIGTERM" in errors
    assert "same command again" in errors
    assert all_evidence(tmp_path) == undisturbed


def test_two_workers_never_write_the_same_run(tmp_path: Path) -> None:
    job = train_job("a")
    store = RunStore(tmp_path / "runs", ENVIRONMENT)
    directory = store.prepare(job)
    trainer = FakeTrainer({"a": Behaviour(step_seconds=10.0)})
    running = RunningJob(job, directory, trainer.command(job, directory, None), variables={}, stall_timeout_seconds=60)
    wait_until(lambda: worker_pids(tmp_path))
    with pytest.raises(UsageError, match=f"in use by process {worker_pids(tmp_path)[0]}"):
        store.prepare(job, lock_timeout_seconds=0.1)
    running.kill()
    wait_until(lambda: running.poll() is not None)
    assert load_run_file(store.prepare(job)).outcome.attempts == 2
