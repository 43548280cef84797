"""The loop: jobs are done once, in order, to records; bad arms are evidence, bad luck is gone on from."""

from pathlib import Path

import pytest

from fp8migrate.engine.pipeline import run_pipeline
from fp8migrate.engine.workspace import Workspace
from fp8migrate.errors import InfrastructureError, UsageError
from fp8migrate.jobs import Job
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Environment
from fp8migrate.records.writer import load_run_file
from tests.engine.fake_trainer import Behaviour
from tests.engine.stage import ENVIRONMENT, AskOnce, Diary, FakeTrainer, evidence, promote, run_jobs, tiny_plan, train_job


def folder(root: Path, job: Job) -> Path:
    [directory] = (root / "runs").glob(f"{job.label}-*")
    return directory


def test_a_job_becomes_a_record_with_everything_the_worker_wrote(tmp_path: Path) -> None:
    job = train_job("a")
    result = run_jobs(tmp_path, job)
    record = result.records[job.digest]
    assert record.outcome.status == "completed"
    assert record.outcome.exit_code == 0
    assert record.outcome.attempts == 1
    assert record.series["loss"].steps.tolist() == list(range(1, 21))
    assert record.series["loss"].complete
    assert record.evaluation("bf16", 20) is not None
    assert record.tables["weights"][0]["name"] == "w"
    assert result.phases[0].state == "passed"
    assert result.phases[0].job_digests == (job.digest,)


def test_a_second_run_reuses_everything_and_ends_in_the_same_evidence(tmp_path: Path) -> None:
    job = train_job("a")
    first = run_jobs(tmp_path, job).records[job.digest]
    diary = Diary()
    second = run_jobs(tmp_path, job, observer=diary).records[job.digest]
    assert diary.started() == []
    assert "reused a: completed" in diary.lines
    assert evidence(first) == evidence(second)


def test_a_result_is_found_under_another_label(tmp_path: Path) -> None:
    run_jobs(tmp_path, train_job("baseline-trunk"))
    diary = Diary()
    run_jobs(tmp_path, train_job("small_scale-scratch-p0-baseline"), observer=diary)
    assert diary.started() == []


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("torch", "torch none -> another"),
        ("source_sha256", "training code 00000000 -> another"),
        ("data_sha256", "the data 11111111 -> another"),
        ("device_name", "a test -> another"),
    ],
)
def test_a_changed_environment_redoes_the_work_and_says_what_changed(tmp_path: Path, field: str, says: str) -> None:
    job = train_job("a", last_step=5)
    run_jobs(tmp_path, job)
    diary = Diary()
    changed = ENVIRONMENT.model_copy(update={field: "another"})
    record = run_jobs(tmp_path, job, observer=diary, where=changed).records[job.digest]
    assert diary.started() == ["a"]
    assert record.environment == changed
    [line] = [line for line in diary.lines if "not reused" in line]
    assert says in line


def test_a_changed_job_is_another_job(tmp_path: Path) -> None:
    run_jobs(tmp_path, train_job("a", seed=0, last_step=5))
    diary = Diary()
    run_jobs(tmp_path, train_job("a", seed=1, last_step=5), observer=diary)
    assert diary.started() == ["a"]


def test_jobs_wait_for_the_job_whose_checkpoint_they_start_from(tmp_path: Path) -> None:
    trunk = train_job("trunk")
    branch = train_job("branch", start=trunk)
    twig = train_job("twig", start=branch, start_step=15, seed=1)
    diary = Diary()
    result = run_jobs(tmp_path, twig, branch, trunk, observer=diary)
    assert diary.started() == ["trunk", "branch", "twig"]
    # The branch goes on from the trunk's weight on the trunk's data, so it must end in the trunk's own evaluation.
    ends = [result.records[job.digest].evaluations[-1].loss for job in (trunk, branch, twig)]
    assert ends[0] == ends[1] != ends[2]
    assert result.records[twig.digest].series["loss"].steps.tolist() == [16, 17, 18, 19, 20]


def test_several_roles_of_one_job_are_run_once(tmp_path: Path) -> None:
    diary = Diary()
    run_jobs(tmp_path, train_job("a", last_step=5), train_job("b", last_step=5), observer=diary)
    assert diary.started() == ["a"]


def test_never_more_jobs_at_once_than_the_plan_allows(tmp_path: Path) -> None:
    diary = Diary()
    jobs = [train_job(f"j{seed}", seed=seed, last_step=3) for seed in range(3)]
    run_jobs(tmp_path, *jobs, observer=diary, plan=tiny_plan(max_parallel=1))
    relevant = [line for line in diary.lines if line.startswith(("start", "end"))]
    assert [line.split()[0] for line in relevant] == ["start", "end"] * 3


@pytest.mark.parametrize(
    ("behaviour", "cause", "says"),
    [
        (Behaviour(nan_at=7), "non_finite", "NaN at step 7"),
        (Behaviour(traceback_at=7), "error", "ArithmeticError: no luck at step 7"),
        (Behaviour(out_of_memory_at=7), "out_of_memory", "MemoryError"),
        (Behaviour(segfault_at=7), "error", "SIGSEGV"),
        (Behaviour(silent_exit_at=7), "error", "recorded no outcome"),
    ],
)
def test_an_arm_that_fails_by_itself_is_evidence_and_never_run_again(
    tmp_path: Path, behaviour: Behaviour, cause: str, says: str
) -> None:
    bad, good = train_job("bad"), train_job("good", seed=1)
    behaviours = {"bad": behaviour}
    result = run_jobs(tmp_path, bad, good, behaviours=behaviours)
    outcome = result.records[bad.digest].outcome
    assert (outcome.status, outcome.cause) == ("failed", cause)
    assert says in outcome.detail.splitlines()[0]
    assert outcome.last_step == (7 if cause == "non_finite" else 6)
    assert result.records[good.digest].outcome.status == "completed"
    diary = Diary()
    again = run_jobs(tmp_path, bad, good, observer=diary)
    assert diary.started() == []
    assert again.records[bad.digest].outcome == outcome


def test_what_starts_from_a_failed_job_is_recorded_as_such_down_the_line(tmp_path: Path) -> None:
    trunk = train_job("trunk")
    branch = train_job("branch", start=trunk)
    twig = train_job("twig", start=branch, start_step=15)
    diary = Diary()
    result = run_jobs(tmp_path, trunk, branch, twig, behaviours={"trunk": Behaviour(nan_at=12)}, observer=diary)
    assert diary.started() == ["trunk"]
    for job in (branch, twig):
        assert result.records[job.digest].outcome.cause == "start_missing"
    assert "trunk" in result.records[branch.digest].outcome.detail


def test_a_hang_is_stopped_and_is_evidence(tmp_path: Path) -> None:
    job, beside = train_job("hangs"), train_job("beside", seed=1)
    plan = tiny_plan(stall_timeout_seconds=4)
    behaviours = {"hangs": Behaviour(hang_at=8)}
    result = run_jobs(tmp_path, job, beside, behaviours=behaviours, plan=plan, grace_seconds=0.3)
    outcome = result.records[job.digest].outcome
    assert (outcome.cause, outcome.last_step) == ("stalled", 7)
    assert outcome.exit_code == -9  # it did not heed SIGTERM
    assert "stall_timeout_seconds" in outcome.detail
    assert result.records[beside.digest].outcome.status == "completed"
    diary = Diary()
    run_jobs(tmp_path, job, beside, plan=plan, observer=diary)
    assert diary.started() == []


def test_a_full_disk_stops_the_pipeline_and_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    job = train_job("fills", last_step=120)
    undisturbed = run_jobs(tmp_path / "undisturbed", job).records[job.digest]
    metrics_bytes = (folder(tmp_path / "undisturbed", job) / "metrics.jsonl").stat().st_size
    # Enough for run.json, not for all the metrics.
    limit = metrics_bytes // 2 + 1
    run_json_bytes = (folder(tmp_path / "undisturbed", job) / "run.json").stat().st_size
    assert limit > run_json_bytes
    with pytest.raises(InfrastructureError, match="fills was ended from outside") as stopped:
        run_jobs(tmp_path / "full", job, behaviours={"fills": Behaviour(file_size_limit=limit)})
    assert stopped.value.exit_code == 5
    assert "same command again" in str(stopped.value)
    assert load_run_file(folder(tmp_path / "full", job)).outcome.cause == "disk"
    assert (folder(tmp_path / "full", job) / "metrics.jsonl").read_bytes().endswith(b"\n")
    resumed = run_jobs(tmp_path / "full", job).records[job.digest]
    assert evidence(resumed) == evidence(undisturbed)
    assert resumed.outcome.attempts == 2


def test_phases_run_in_order_until_one_is_not_promoted(tmp_path: Path) -> None:
    good, bad, never = train_job("good", last_step=5), train_job("bad", seed=1), train_job("never", seed=2, last_step=5)
    phases = [AskOnce("first", ((good,),)), AskOnce("second", ((bad,),)), AskOnce("third", ((never,),))]
    trainer = FakeTrainer({"bad": Behaviour(nan_at=2)})
    with Workspace.open(tmp_path) as workspace:
        result = run_pipeline(tiny_plan(), workspace, trainer, phases, promote)
        assert [(phase.name, phase.state) for phase in result.phases] == [("first", "passed"), ("second", "failed")]
        assert result.not_run == ("third",)
        assert result.forced == ()
        forced = run_pipeline(tiny_plan(), workspace, trainer, phases, promote, force=True)
    assert [phase.state for phase in forced.phases] == ["passed", "failed", "passed"]
    assert forced.forced == ("second",)
    assert forced.not_run == ()


def test_a_phase_may_ask_for_more_after_seeing_what_came(tmp_path: Path) -> None:
    first, second = train_job("first", last_step=5), train_job("second", seed=1, last_step=5)
    diary = Diary()
    with Workspace.open(tmp_path) as workspace:
        phases = [AskOnce("both", ((first,), (first, second)))]
        result = run_pipeline(tiny_plan(), workspace, FakeTrainer(), phases, promote, diary)
    assert diary.started() == ["first", "second"]
    assert result.phases[0].job_digests == (first.digest, second.digest)
    assert "planned second: 5 steps" in diary.lines


class Insatiable:
    name = "insatiable"

    def next(self, plan: Plan, findings: Findings) -> Jobs | Done:
        return Jobs((train_job("again", last_step=2),), because="why not")

    def planned(self, plan: Plan, findings: Findings) -> tuple[Job, ...]:
        return ()


def test_a_phase_that_never_makes_progress_is_our_bug_not_an_endless_loop(tmp_path: Path) -> None:
    with Workspace.open(tmp_path) as workspace, pytest.raises(RuntimeError, match="insatiable asks again"):
        run_pipeline(tiny_plan(), workspace, FakeTrainer(), [Insatiable()], promote)


def test_a_start_that_nobody_asked_for_is_our_bug(tmp_path: Path) -> None:
    branch = train_job("branch", start=train_job("trunk"))
    with pytest.raises(RuntimeError, match="branch"):
        run_jobs(tmp_path, branch)


def test_a_deleted_start_checkpoint_is_named(tmp_path: Path) -> None:
    trunk = train_job("trunk")
    run_jobs(tmp_path, trunk)
    (folder(tmp_path, trunk) / "checkpoints" / "step-00000010.safetensors").unlink()
    with pytest.raises(UsageError, match=r"step-00000010\.safetensors.*gone"):
        run_jobs(tmp_path, trunk, train_job("branch", start=trunk))


def test_assessing_only_needs_no_machine_and_names_what_is_missing(tmp_path: Path) -> None:
    class NoMachine(FakeTrainer):
        def environment(self, plan: Plan) -> Environment:
            raise AssertionError("a report must not look at the machine")

    there, missing = train_job("there", last_step=5), train_job("missing", seed=1)
    with Workspace.open(tmp_path) as workspace, pytest.raises(UsageError, match="nothing has been run"):
        run_pipeline(tiny_plan(), workspace, NoMachine(), [AskOnce("p", ((there,),))], promote, execute=False)
    run_jobs(tmp_path, there)
    reading = Workspace.open_to_read(tmp_path)
    result = run_pipeline(tiny_plan(), reading, NoMachine(), [AskOnce("p", ((there,),))], promote, execute=False)
    assert result.phases[0].state == "passed"
    assert result.environment == ENVIRONMENT
    with pytest.raises(UsageError, match="missing: never started") as error:
        run_pipeline(tiny_plan(), reading, NoMachine(), [AskOnce("p", ((there, missing),))], promote, execute=False)
    assert error.value.exit_code == 2


def test_assessing_for_a_given_environment_does_not_take_another_machines_runs(tmp_path: Path) -> None:
    job = train_job("a", last_step=5)
    run_jobs(tmp_path, job)
    other = ENVIRONMENT.model_copy(update={"torch": "another"})
    with pytest.raises(UsageError, match="never started"):
        run_pipeline(
            tiny_plan(),
            Workspace.open_to_read(tmp_path),
            FakeTrainer(),
            [AskOnce("p", ((job,),))],
            promote,
            execute=False,
            environment=other,
        )
