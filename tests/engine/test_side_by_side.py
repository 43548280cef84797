"""Several plans over one pool: a job that two of them ask for is done once, none waits for another, and an end ends all."""

import io
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rich.console import Console

from fp8migrate.checks.schema import CheckResult
from fp8migrate.engine.observer import NamedObserver
from fp8migrate.engine.pipeline import Lane, PipelineResult, run_pipelines
from fp8migrate.engine.scheduler import Interrupted
from fp8migrate.engine.workspace import Workspace
from fp8migrate.errors import UserError
from fp8migrate.jobs import Job
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Outcome
from fp8migrate.records.writer import load_run_file
from fp8migrate.terminal import TerminalObserver
from tests.engine.fake_trainer import Behaviour
from tests.engine.stage import ENVIRONMENT, Diary, FakeTrainer, evidence, promote, run_jobs, tiny_plan, train_job

TRUNK = train_job("trunk", last_step=12)


@dataclass
class OwnJobs:
    """A phase that asks for other jobs in each plan, in rounds; it passes where all were completed."""

    rounds: Mapping[str, Sequence[Sequence[Job]]]
    name: str = "only"

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        for jobs in self.rounds[plan.name]:
            if findings.missing(jobs):
                return Jobs(tuple(jobs), because=f"{plan.name} wants them")
        asked = [job for jobs in self.rounds[plan.name] for job in jobs]
        good = all(findings.records[job.digest].outcome.status == "completed" for job in asked)
        return Done((CheckResult("all completed", "pass" if good else "fail", summary=""),))

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        return tuple(job for jobs in self.rounds[plan.name] for job in jobs)


@dataclass
class Ended:
    """What came of each lane, in the order in which they ended."""

    results: dict[str, PipelineResult] = field(default_factory=dict)
    fails: bool = False

    def told(self, names: Sequence[str], number: int, result: PipelineResult) -> None:
        self.results[names[number]] = result
        if self.fails:
            raise UserError("the report cannot be written")


def run(
    root: Path,
    phases: Sequence[OwnJobs],
    *,
    behaviours: Mapping[str, Behaviour] | None = None,
    diaries: Mapping[str, Diary] | None = None,
    ended: Ended | None = None,
    parallel: int = 4,
) -> Ended:
    ended = ended or Ended()
    names = list(phases[0].rounds)
    launch = tiny_plan().launch.model_copy(update={"max_parallel": parallel})
    plans = [tiny_plan().model_copy(update={"name": name, "launch": launch}) for name in names]
    lanes = [Lane(plan, (diaries or {}).get(plan.name, Diary())) for plan in plans]
    with Workspace.open(root) as workspace:
        run_pipelines(
            lanes,
            workspace,
            FakeTrainer(behaviours or {}, ENVIRONMENT),
            phases,
            promote,
            lambda number, result: ended.told(names, number, result),
            grace_seconds=20.0,
        )
    return ended


def test_a_job_of_two_plans_is_done_once_and_told_to_the_first(tmp_path: Path) -> None:
    a, b = train_job("a", start=TRUNK, seed=1), train_job("b", start=TRUNK, seed=2)
    diaries = {"one": Diary(), "two": Diary()}
    found = run(tmp_path, [OwnJobs({"one": [[TRUNK], [a]], "two": [[TRUNK], [b]]})], diaries=diaries).results
    assert (diaries["one"].started(), diaries["two"].started()) == (["trunk", "a"], ["b"])
    assert found["one"].phases[0].job_digests == (TRUNK.digest, a.digest)
    assert found["two"].phases[0].job_digests == (TRUNK.digest, b.digest)
    # Each has the records that it asked for, and no others.
    assert set(found["two"].records) == {TRUNK.digest, b.digest}
    alone = run_jobs(tmp_path / "alone", TRUNK, b).records
    assert all(evidence(record) == evidence(alone[digest]) for digest, record in found["two"].records.items())


def test_a_plan_does_not_wait_for_the_slow_jobs_of_another(tmp_path: Path) -> None:
    slow, quick, after = train_job("slow", seed=1), train_job("quick", seed=2), train_job("after", start=None, seed=3)
    rounds = {"one": [[slow]], "two": [[quick], [after]]}
    ended = run(tmp_path, [OwnJobs(rounds)], behaviours={"slow": Behaviour(step_seconds=0.15)})
    assert list(ended.results) == ["two", "one"]


def test_a_phase_of_one_plan_runs_beside_a_later_one_of_another_and_a_failed_plan_stops_alone(tmp_path: Path) -> None:
    bad, good, later = train_job("bad", seed=1), train_job("good", seed=2), train_job("later", seed=3)
    phases = [OwnJobs({"one": [[bad]], "two": [[good]]}, "first"), OwnJobs({"one": [[later]], "two": [[later]]}, "second")]
    diaries = {"one": Diary(), "two": Diary()}
    found = run(tmp_path, phases, behaviours={"bad": Behaviour(nan_at=3)}, diaries=diaries).results
    assert ([phase.state for phase in found["one"].phases], found["one"].not_run) == (["failed"], ("second",))
    assert [phase.state for phase in found["two"].phases] == ["passed", "passed"]
    assert diaries["two"].started() == ["good", "later"]


def test_never_more_jobs_at_once_than_allowed_over_all_plans(tmp_path: Path) -> None:
    running: set[str] = set()
    most: list[int] = []

    class Counting(Diary):
        def job_started(self, job: Job) -> None:
            running.add(job.label)
            most.append(len(running))

        def job_finished(self, job: Job, outcome: Outcome, reused: bool) -> None:
            running.discard(job.label)

    jobs = [train_job(f"j{number}", seed=number) for number in range(6)]
    rounds = {"one": [jobs[:3]], "two": [jobs[3:]]}
    run(tmp_path, [OwnJobs(rounds)], diaries={"one": Counting(), "two": Counting()}, parallel=2)
    assert max(most) == 2
    assert len(most) == 6


def test_a_job_whose_start_failed_in_another_plan_is_settled(tmp_path: Path) -> None:
    b = train_job("b", start=TRUNK, seed=2)
    rounds = {"one": [[TRUNK]], "two": [[TRUNK], [b]]}
    found = run(tmp_path, [OwnJobs(rounds)], behaviours={"trunk": Behaviour(nan_at=3)}).results
    assert found["two"].records[b.digest].outcome.cause == "start_missing"
    assert [each.phases[0].state for each in found.values()] == ["failed", "failed"]


def test_a_stop_request_ends_the_jobs_of_all_plans_and_all_are_gone_on_from(tmp_path: Path) -> None:
    a, b = train_job("a", seed=1, last_step=40), train_job("b", seed=2, last_step=40)
    phases = [OwnJobs({"one": [[a]], "two": [[b]]})]

    def stop(job: Job, step: int) -> None:
        if step >= 5:
            os.kill(os.getpid(), signal.SIGTERM)

    slow = {label: Behaviour(step_seconds=0.05) for label in "ab"}
    with pytest.raises(Interrupted, match="SIGTERM"):
        run(tmp_path, phases, behaviours=slow, diaries={"one": Diary(on_progress=stop)})
    states = {load_run_file(path).outcome.status for path in (tmp_path / "runs").iterdir()}
    assert states == {"interrupted"}
    found = run(tmp_path, phases).results
    assert [each.records[job.digest].outcome.attempts for each, job in ((found["one"], a), (found["two"], b))] == [2, 2]


def test_a_report_that_cannot_be_written_ends_the_others_gracefully(tmp_path: Path) -> None:
    quick, slow = train_job("quick", seed=1), train_job("slow", seed=2, last_step=200)
    phases, ended = [OwnJobs({"one": [[quick]], "two": [[slow]]})], Ended(fails=True)
    with pytest.raises(UserError, match="cannot be written"):
        run(tmp_path, phases, behaviours={"slow": Behaviour(step_seconds=0.05)}, ended=ended)
    assert list(ended.results) == ["one"]
    [directory] = (tmp_path / "runs").glob("slow-*")
    assert load_run_file(directory).outcome.status == "interrupted"


def test_what_several_plans_do_is_told_with_their_names_and_counted_together() -> None:
    console = Console(record=True, width=200, force_terminal=False)
    terminal = TerminalObserver(console)
    one, two = NamedObserver("one", terminal), NamedObserver("two", terminal)
    a, b = train_job("a", seed=1, last_step=10), train_job("b", seed=2, last_step=30)
    one.phase_started("baseline")
    one.jobs_planned([a], 10, "to learn")
    two.jobs_planned([b], 30, "to compare")
    one.job_finished(a, Outcome(status="completed"), reused=False)
    assert terminal._line().startswith("1 of 2 jobs, 25%")
    two.job_finished(b, Outcome(status="failed", cause="non_finite", detail="loss is nan at step 3"), reused=False)
    assert terminal._line().startswith("2 of 2 jobs, 100%")
    # The next jobs are counted anew: all before have ended.
    one.jobs_planned([train_job("c", seed=3)], 20, "more")
    assert terminal._line().startswith("0 of 1 jobs, 0%")
    said = console.export_text()
    for line in (
        "▶ one: baseline",
        "1 job: one: to learn",
        "1 job: two: to compare",
        "two: b: failed (non_finite) loss is nan",
    ):
        assert line in said


def test_on_a_terminal_progress_stays_while_another_plan_still_has_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    out = io.StringIO()
    terminal = TerminalObserver(Console(file=out, width=100, force_terminal=True))
    one, two = NamedObserver("one", terminal), NamedObserver("two", terminal)
    a, b = train_job("a", seed=1, last_step=10), train_job("b", seed=2, last_step=30)
    try:
        one.jobs_planned([a], 10, "to learn")
        two.jobs_planned([b], 30, "to compare")
        one.job_finished(a, Outcome(status="completed"), reused=False)
        one.phase_finished("baseline", "passed")
        out.truncate(0)
        two.job_progress(b, 15)
        assert terminal._bar is not None
        terminal._bar.refresh()
        assert "1 of 2 jobs, 62%" in out.getvalue()
    finally:
        terminal.close()
