"""Ctrl-C and its kin: once keeps everything, twice is at once; either way the same command goes on."""

import os
import signal
from pathlib import Path

import pytest

from fp8migrate.engine.pipeline import run_pipeline
from fp8migrate.engine.scheduler import Interrupted
from fp8migrate.engine.stop_requests import StopRequests
from fp8migrate.engine.workspace import Workspace
from fp8migrate.errors import UsageError
from fp8migrate.jobs import Job
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Environment
from fp8migrate.records.store import RunStore
from fp8migrate.records.writer import last_checkpoint
from tests.engine.fake_trainer import Behaviour
from tests.engine.stage import ENVIRONMENT, Diary, FakeTrainer, evidence, promote, run_jobs, tiny_plan, train_job


class Once:
    """Sends signals to this process at a job's first progress."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers

    def __call__(self, job: Job, step: int) -> None:
        for number in self.numbers:
            os.kill(os.getpid(), number)
        self.numbers = ()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_request_stops_gracefully_and_is_gone_on_from(tmp_path: Path, number: signal.Signals) -> None:
    job = train_job("a", last_step=40, resume_every=1000)
    undisturbed = run_jobs(tmp_path / "undisturbed", job).records[job.digest]
    before = signal.getsignal(number)
    slow = {"a": Behaviour(step_seconds=0.05)}
    with pytest.raises(Interrupted, match=f"stopped by {number.name}") as stopped:
        run_jobs(tmp_path, job, behaviours=slow, observer=Diary(on_progress=Once(number)))
    assert signal.getsignal(number) is before
    assert stopped.value.exit_code == 5
    store = RunStore(tmp_path / "runs", ENVIRONMENT)
    outcome, directory = store.outcome(job), store.find(job)
    assert outcome is not None
    assert directory is not None
    assert outcome.status == "interrupted"
    checkpoint = last_checkpoint(directory)
    assert checkpoint is not None
    assert checkpoint[0] == outcome.last_step
    assert evidence(run_jobs(tmp_path, job).records[job.digest]) == evidence(undisturbed)


def test_a_job_that_ignores_the_request_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    job = train_job("a", last_step=2000)
    stubborn = {"a": Behaviour(step_seconds=0.05, ignore_sigterm=True)}
    with pytest.raises(Interrupted):
        run_jobs(tmp_path, job, behaviours=stubborn, observer=Diary(on_progress=Once(signal.SIGINT)), grace_seconds=0.3)
    outcome = RunStore(tmp_path / "runs", ENVIRONMENT).outcome(job)
    assert outcome is not None
    assert (outcome.status, outcome.exit_code) == ("interrupted", -9)


def test_a_second_request_does_not_wait(tmp_path: Path) -> None:
    job = train_job("a", last_step=2000)
    stubborn = {"a": Behaviour(step_seconds=0.05, ignore_sigterm=True)}
    twice = Diary(on_progress=Once(signal.SIGINT, signal.SIGINT))
    with pytest.raises(Interrupted):
        run_jobs(tmp_path, job, behaviours=stubborn, observer=twice, grace_seconds=100_000)
    outcome = RunStore(tmp_path / "runs", ENVIRONMENT).outcome(job)
    assert outcome is not None
    assert (outcome.status, outcome.exit_code) == ("interrupted", -9)


class Pondering:
    """A phase during whose thinking stop signals come."""

    name = "pondering"

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers
        self.thought_to_the_end = False

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        for number in self.numbers:
            os.kill(os.getpid(), number)
        self.thought_to_the_end = True
        return Jobs((train_job("a"),), because="it thought so")

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        return ()


@pytest.mark.parametrize(("requests", "finishes_thinking"), [(1, True), (2, False)])
def test_requests_while_a_phase_computes(tmp_path: Path, requests: int, finishes_thinking: bool) -> None:
    phase = Pondering(*[signal.SIGINT] * requests)
    diary = Diary()
    with Workspace.open(tmp_path) as workspace, pytest.raises(Interrupted):
        run_pipeline(tiny_plan(), workspace, FakeTrainer(), [phase], promote, diary)
    assert phase.thought_to_the_end is finishes_thinking
    assert diary.started() == []


def test_ctrl_c_while_the_machine_is_looked_at(tmp_path: Path) -> None:
    class Probing(FakeTrainer):
        def environment(self, plan: Plan) -> Environment:
            os.kill(os.getpid(), signal.SIGINT)
            raise UsageError("the probe says KeyboardInterrupt")

    with Workspace.open(tmp_path) as workspace, pytest.raises(Interrupted, match="stopped by SIGINT"):
        run_pipeline(tiny_plan(), workspace, Probing(), [Pondering()], promote)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)  # as under nohup
            assert stop.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)
