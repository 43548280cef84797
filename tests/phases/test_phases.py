"""Which jobs each phase asks for, and when: pairs that differ in precision alone, unseen data, no more than is needed."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fp8migrate.errors import PlanError
from fp8migrate.facts.recipes import (
    KNOWN_BAD,
    Bf16Recipe,
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    FixedRecipe,
    Mxfp8Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
)
from fp8migrate.jobs import Job, Precision, Train
from fp8migrate.phases import PHASES
from fp8migrate.phases.baseline import Baseline
from fp8migrate.phases.integration import Integration
from fp8migrate.phases.schema import Done, Findings, Jobs, Phase
from fp8migrate.phases.small_scale import SmallScale
from fp8migrate.plan.audit import audit
from fp8migrate.plan.schema import Plan, PolicyRule
from fp8migrate.records.schema import Record
from tests.engine.stage import ENVIRONMENT
from tests.simulation import Scenario, make_records

HERE = Findings(ENVIRONMENT)


def plan(recipe: dict[str, Any] | None = None, *, require_fp8: bool = True, **design: Any) -> Plan:
    return Plan.model_validate(
        {
            "name": "phases",
            "model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 128},
            "training": {
                "num_steps": 1000,
                "sequence_length": 32,
                "micro_batch_size": 2,
                "global_batch_size": 4,
                "learning_rate": 1e-3,
                "warmup_steps": 10,
            },
            "candidate": {"backend": "emulated", "recipe": recipe or {"kind": "delayed", "amax_history_len": 16}},
            "design": design or {"screen": {}, "branch": {}},
            "parity": {"require_fp8": require_fp8},
            "phases": {"small_scale": {"shrink": 2}},
        }
    )


def screens_and_branches() -> Plan:
    return plan(screen={"fractions": (0.3, 0.6), "data_orders": 3}, branch={"at": 0.5, "pairs": 4})


PLANS = {
    "screens and branches": screens_and_branches(),
    "screens alone": plan(screen={}),
    "scratch": plan(scratch={"pairs": 5}),
    "current": plan({"kind": "current"}, branch={}),
    "A/A": plan({"kind": "bf16"}, require_fp8=False, branch={}),
}
every_plan = pytest.mark.parametrize("given", PLANS.values(), ids=PLANS.keys())


def planned(given: Plan) -> tuple[Job, ...]:
    return tuple(job for phase in PHASES for job in phase.planned(given, HERE))


def small(given: Plan) -> tuple[Job, ...]:
    return SmallScale().planned(given, HERE)


def task_of(job: Job) -> Train:
    assert isinstance(job.task, Train)
    return job.task


def pairs(jobs: Iterable[Job]) -> list[dict[str, Job]]:
    """Runs by arm, for every pair of the designs that compare."""
    found: dict[Any, dict[str, Job]] = defaultdict(dict)
    for job in jobs:
        if job.role.design in ("screen", "long_screen", "branch", "scratch"):
            found[(job.role.design, job.role.fraction, job.role.pair)][job.role.arm] = job
    return list(found.values())


@every_plan
def test_the_same_plan_gives_the_same_digests(given: Plan) -> None:
    again = Plan.model_validate_json(given.model_dump_json())
    assert [job.digest for job in planned(again)] == [job.digest for job in planned(given)]


def test_digests_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Nor does asking for jobs import torch."""
    given = screens_and_branches()
    (tmp_path / "plan.json").write_text(given.model_dump_json())
    code = (
        "import sys\n"
        "from tests.phases.test_phases import Path, Plan, planned\n"
        "print(*[job.digest for job in planned(Plan.model_validate_json(Path(sys.argv[1]).read_text()))])\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(tmp_path / "plan.json")]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"})
    assert answer.stdout.split() == [job.digest for job in planned(given)]


def test_what_is_said_of_a_job_is_not_part_of_its_digest() -> None:
    job = small(screens_and_branches())[0]
    assert job.model_copy(update={"label": "another"}).digest == job.digest
    assert job.model_copy(update={"threads": 2}).digest != job.digest


@every_plan
def test_labels_are_unique_and_name_the_run(given: Plan) -> None:
    labels = [job.label for job in planned(given)]
    assert len(labels) == len(set(labels))
    assert all(label.endswith(("baseline", "candidate", "control", "floor", "sensitivity")) for label in labels)


@every_plan
def test_the_arms_of_a_pair_differ_in_precision_alone(given: Plan) -> None:
    """The floor's one ulp is its purpose, and so is the candidate's in an A/A test; nothing else may differ."""
    seen = set()
    for arms in pairs(planned(given)):
        baseline = arms.pop("baseline")
        assert "candidate" in arms
        for arm, job in arms.items():
            rows = audit(baseline.model_dump(mode="json", exclude={"label", "role"}), flat(job))
            different = {row.setting for row in rows if row.status != "same" and not row.expected}
            nudged = arm == "floor" or (arm == "candidate" and given.candidate.recipe.kind == "bf16")
            assert different == ({"task.one_ulp"} if nudged else set())
            assert (task_of(job).one_ulp is not None) == nudged
            # What reads the audit is satisfied that something did differ.
            assert any(row.expected for row in rows) or arm == "floor"
            seen.add(arm)
    assert seen == {"candidate", "sensitivity", "control", "floor"}


def flat(job: Job) -> dict[str, Any]:
    return job.model_dump(mode="json", exclude={"label", "role"})


@every_plan
def test_every_pair_has_data_and_start_of_its_own_and_shares_them_between_arms(given: Plan) -> None:
    for design in ("screen", "branch", "scratch"):
        orders = []
        for arms in pairs(job for job in small(given) if job.role.design == design):
            assert len({(task_of(j).data_order, j.start, task_of(j).training.seed) for j in arms.values()}) == 1
            orders.append(task_of(arms["baseline"]).data_order)
        assert len(orders) == len(set(orders))


def test_data_orders_of_screens_and_branches_never_meet() -> None:
    orders = {
        design: {task_of(job).data_order for job in small(screens_and_branches()) if job.role.design == design}
        for design in ("baseline", "screen", "branch")
    }
    assert {design: len(found) for design, found in orders.items()} == {"baseline": 1, "screen": 6, "branch": 4}
    assert not orders["screen"] & orders["branch"]


@every_plan
def test_runs_that_start_from_the_trunk_see_what_it_has_not_seen(given: Plan) -> None:
    for job in small(given):
        assert task_of(job).data_order.split == ("unseen" if job.start else "trunk")
    for job in Integration().planned(given, HERE):
        assert job.task.data_order.split == "unseen"


def test_scratch_pairs_have_seeds_of_their_own() -> None:
    found = pairs(small(PLANS["scratch"]))
    assert [task_of(arms["candidate"]).training.seed for arms in found] == [1234, 1235, 1236, 1237, 1238]
    assert all(task_of(job).first_step == 0 and job.start is None for arms in found for job in arms.values())
    assert all(task_of(job).last_step == 1000 for arms in found for job in arms.values())


def test_the_trunk_runs_as_far_as_the_last_start_and_keeps_each() -> None:
    trunk = small(screens_and_branches())[0]
    assert (trunk.role.design, trunk.role.arm) == ("baseline", "baseline")
    assert task_of(trunk).last_step == 600
    assert task_of(trunk).checkpoint_at == (300, 500, 600)
    assert task_of(trunk).training.num_steps == 1000  # its schedule is the whole one
    branch_only = small(plan(branch={"at": 0.5}))[0]
    assert (task_of(branch_only).last_step, task_of(branch_only).checkpoint_at) == (500, (500,))
    assert not any(job.role.design == "baseline" for job in small(PLANS["scratch"]))


def test_every_start_is_a_checkpoint_that_its_job_keeps() -> None:
    for given in PLANS.values():
        jobs = {job.digest: job for job in planned(given)}
        starts = [job for job in jobs.values() if job.start]
        for job in starts:
            assert job.start is not None
            assert job.start.step in task_of(jobs[job.start.job]).checkpoint_at
            if isinstance(job.task, Train):
                assert job.task.first_step == job.start.step


def test_screens_cool_to_zero_and_branches_run_the_schedule_out() -> None:
    for job in small(screens_and_branches()):
        task = task_of(job)
        if job.role.design == "screen":
            assert job.role.fraction is not None
            first = round(1000 * job.role.fraction)
            assert (task.first_step, task.last_step) == (first, first + 150)
            assert task.cooldown is not None
            assert (task.cooldown.start, task.cooldown.num_steps) == (first, 150)
        elif job.role.design == "branch":
            assert (task.first_step, task.last_step, task.cooldown) == (500, 1000, None)
            assert task.validate_at == (625, 750, 1000)


def test_only_delayed_scaling_from_a_checkpoint_is_warmed() -> None:
    warmed = {job.role.arm for job in small(screens_and_branches()) if task_of(job).warm_amax_batches}
    assert warmed == {"candidate"}
    for given in (PLANS["current"], PLANS["scratch"]):
        assert not any(task_of(job).warm_amax_batches for job in small(given))


def test_fp8_arms_are_validated_under_both_forwards() -> None:
    forwards = {job.role.arm: task_of(job).validate_forwards for job in small(screens_and_branches())}
    both, one = ("bf16", "fp8"), ("bf16",)
    assert forwards == {"baseline": one, "floor": one, "control": one, "candidate": both, "sensitivity": both}


def test_pairs_have_as_many_floor_and_control_arms_as_the_plan_says() -> None:
    given = plan(branch={"pairs": 4}, floor_pairs=3, control_pairs=2)
    arms = [set(found) for found in pairs(small(given))]
    assert [("control" in a, "floor" in a) for a in arms] == [(True, True), (True, True), (False, True), (False, False)]


def test_a_candidate_that_is_the_bad_recipe_shares_its_runs() -> None:
    given = plan(KNOWN_BAD.model_dump(), branch={})
    for arms in pairs(small(given)):
        assert arms["candidate"].digest == arms["sensitivity"].digest
        assert arms["candidate"].label != arms["sensitivity"].label


def test_the_candidate_of_an_a_a_test_starts_one_ulp_away() -> None:
    for arms in pairs(small(PLANS["A/A"])):
        candidate = task_of(arms["candidate"])
        assert candidate.one_ulp == arms["candidate"].role.pair
        assert candidate.validate_forwards == ("bf16",)
        assert arms["candidate"].digest != arms["baseline"].digest
        assert task_of(arms["sensitivity"]).precision.recipe == KNOWN_BAD
        if "control" in arms:
            assert task_of(arms["control"]).one_ulp is None


def test_the_baselines_floor_goes_over_its_end_again() -> None:
    run, *floors = Baseline().planned(screens_and_branches(), HERE)
    assert task_of(run).checkpoint_at == (800, 1000)
    assert [(f.start.step, task_of(f).last_step, task_of(f).one_ulp) for f in floors if f.start] == [
        (800, 1000, 0),
        (800, 1000, 1),
    ]
    assert all(task_of(f).data_order == task_of(run).data_order for f in floors)


def test_integration_looks_at_the_baselines_last_weights() -> None:
    given = screens_and_branches()
    jobs = Integration().planned(given, HERE)
    assert [job.task.kind for job in jobs] == ["forward_check", "one_step"]
    run = Baseline().planned(given, HERE)[0]
    assert {(job.start.job, job.start.step) for job in jobs if job.start} == {(run.digest, 1000)}
    assert all(job.task.precision.recipe == DelayedRecipe(amax_history_len=16) for job in jobs)


def test_a_gpu_with_fp8_is_never_emulated_unasked() -> None:
    ada = Findings(ENVIRONMENT.model_copy(update={"device": "cuda", "compute_capability": "8.9", "device_name": "an L40S"}))
    ampere = Findings(ENVIRONMENT.model_copy(update={"device": "cuda", "compute_capability": "8.6"}))
    asked = screens_and_branches()
    automatic = asked.model_copy(update={"candidate": asked.candidate.model_copy(update={"backend": "auto"})})
    with pytest.raises(PlanError, match="delayed runs on Transformer Engine, which is not installed here"):
        SmallScale().planned(automatic, ada)
    installed = Findings(ada.environment.model_copy(update={"transformer_engine": "2.20.2"}))
    backends = {job.role.arm: job.task.precision.backend for job in SmallScale().planned(automatic, installed)}
    real = "transformer_engine"
    assert backends == {"baseline": "bf16", "floor": "bf16", "control": real, "candidate": real, "sensitivity": "emulated"}
    assert SmallScale().planned(automatic, ampere) == SmallScale().planned(asked, ada) == small(asked)


@pytest.mark.parametrize(
    ("candidate", "capability", "said"),
    [
        ({"recipe": Mxfp8Recipe()}, "9.0", "mxfp8 on transformer_engine needs compute capability 10.0"),
        ({"recipe": BlockRecipe()}, "8.9", "block on transformer_engine needs compute capability 9.0"),
        ({"recipe": FixedRecipe()}, "9.0", "no library runs fixed"),
        ({"recipe": RowwiseRecipe()}, "9.0", "rowwise runs on torchao, which is not installed here"),
        ({"backend": "torchao", "recipe": CurrentRecipe()}, "9.0", "torchao has no recipe current"),
        ({"backend": "transformer_engine", "recipe": CurrentRecipe()}, None, "there is none here"),
    ],
)
def test_what_cannot_run_here_is_refused_with_the_reason(candidate: dict[str, Any], capability: str | None, said: str) -> None:
    given = screens_and_branches()
    asked = given.candidate.model_copy(update={"backend": "auto", **candidate})
    device = "cpu" if capability is None else "cuda"
    here = ENVIRONMENT.model_copy(update={"device": device, "compute_capability": capability, "cuda": "13.0"})
    with pytest.raises(PlanError, match=said):
        SmallScale().planned(given.model_copy(update={"candidate": asked}), Findings(here))


def test_a_policy_that_the_library_cannot_run_is_refused_before_anything_runs() -> None:
    """In a job it would be a crash of the candidate, and so a FAIL of FP8."""
    given = screens_and_branches()
    rule = PolicyRule(layers="layers.*.mlp.down", gemms=("weight_gradient",), recipe=Bf16Recipe())
    asked = given.candidate.model_copy(update={"backend": "auto", "recipe": CurrentRecipe(), "policy": (rule,)})
    hopper = {"device": "cuda", "compute_capability": "9.0", "cuda": "13.0", "transformer_engine": "2.20.2"}
    with pytest.raises(PlanError, match=r"layers.0.mlp.down: Transformer Engine runs all three GEMMs"):
        small_on(given.model_copy(update={"candidate": asked}), hopper)


HOPPER = {"device": "cuda", "compute_capability": "9.0", "cuda": "13.0", "transformer_engine": "2.20.2", "torchao": "0.18.0"}


@pytest.mark.parametrize(
    ("candidate", "training", "said"),
    [
        ({"recipe": RowwiseRecipe()}, {}, "modules fused: they are Transformer Engine's, and rowwise runs on torchao"),
        ({"backend": "emulated"}, {}, "they are Transformer Engine's, and delayed runs on emulated"),
        ({"policy": (PolicyRule(layers="layers.*.mlp.up", recipe=CurrentRecipe()),)}, {}, "mlp.down are one fused module"),
        ({}, {"recompute": True}, "never tried together: say candidate.modules: linear"),
    ],
)
def test_fused_modules_are_refused_where_they_cannot_be(candidate: dict[str, Any], training: dict[str, Any], said: str) -> None:
    given = screens_and_branches()
    asked = given.candidate.model_copy(update={"backend": "auto", "modules": "fused", **candidate})
    changed = {"candidate": asked, "training": given.training.model_copy(update=training)}
    with pytest.raises(PlanError, match=said):
        small_on(given.model_copy(update=changed), HOPPER)


def test_fused_modules_are_of_the_candidate_and_its_control_alone() -> None:
    """The bad recipe goes into linear layers, of which a kept one's neighbours in its module are none."""
    given = screens_and_branches()

    def arms(**changes: Any) -> dict[str, Precision]:
        asked = given.candidate.model_copy(update={"backend": "auto", "recipe": CurrentRecipe(), **changes})
        return {job.role.arm: job.task.precision for job in small_on(given.model_copy(update={"candidate": asked}), HOPPER)}

    fused, linear = arms(modules="fused"), arms()
    assert {arm for arm, precision in fused.items() if precision.modules == "fused"} == {"candidate", "control"}
    assert fused["sensitivity"] == linear["sensitivity"]
    held = arms(modules="fused", keep_bf16=("lm_head", "layers.0.mlp.up"))["sensitivity"]
    assert (held.backend, held.modules, held.stand_in) == ("emulated", "fused", KNOWN_BAD)


def small_on(given: Plan, machine: dict[str, str]) -> tuple[Job, ...]:
    return SmallScale().planned(given, Findings(ENVIRONMENT.model_copy(update=machine)))


def test_plans_of_several_recipes_share_the_runs_of_the_bad_one() -> None:
    given = screens_and_branches()

    def bad(recipe: Recipe) -> set[str]:
        other = given.model_copy(update={"candidate": given.candidate.model_copy(update={"recipe": recipe})})
        return {job.digest for job in small(other) if job.role.arm == "sensitivity"}

    assert bad(CurrentRecipe()) == bad(RowwiseRecipe()) == bad(DelayedRecipe(amax_history_len=16))
    # Weight gradients stay in BF16 there: the bad recipe must stay out of them too.
    assert bad(RowwiseHighPrecisionRecipe()).isdisjoint(bad(CurrentRecipe()))


# What `next` asks, as runs come in


def play(phase: Phase, given: Plan, scenario: Scenario) -> tuple[list[Jobs], Done]:
    """What the phase asks for, one after the other, when its jobs leave what the scenario says; and what it then finds."""
    records: dict[str, Record] = {}
    asked: list[Jobs] = []
    while True:
        answer = phase.next(given, Findings(ENVIRONMENT, records))
        if isinstance(answer, Done):
            return asked, answer
        new = [job for job in answer.jobs if job.digest not in records]
        assert new, "asked for what is there"
        asked.append(answer)
        records |= make_records(new, scenario)


def asked_designs(asked: list[Jobs]) -> list[set[str]]:
    return [{job.role.design for job in jobs.jobs} for jobs in asked]


def test_screens_run_before_the_pairs_that_can_acquit() -> None:
    asked, done = play(SmallScale(), screens_and_branches(), Scenario(tau=0.0002))
    assert asked_designs(asked) == [{"baseline", "screen"}, {"baseline", "branch"}]
    assert [comparison.design for comparison in done.comparisons] == ["screen", "branch"]
    assert [result.name for result in done.results if result.status == "fail" and not result.advisory] == []


def test_a_convicting_screen_stops_the_phase_before_pairs() -> None:
    asked, done = play(SmallScale(), screens_and_branches(), Scenario(tau=0.0002, gap=0.05))
    assert asked_designs(asked) == [{"baseline", "screen"}]
    assert [comparison.design for comparison in done.comparisons] == ["screen"]
    assert any(result.status == "fail" and not result.advisory for result in done.results)


def test_a_screen_alone_is_lengthened_at_one_fraction() -> None:
    asked, done = play(SmallScale(), PLANS["screens alone"], Scenario(tau=0.0001))
    assert asked_designs(asked) == [{"baseline", "screen"}, {"baseline", "long_screen"}]
    longer = [job for job in asked[1].jobs if job.role.design == "long_screen"]
    assert {(task_of(job).first_step, task_of(job).last_step) for job in longer} == {(600, 1200)}
    shorter = {(j.role.pair, j.role.arm): j for j in asked[0].jobs if j.role.design == "screen" and j.role.fraction == 0.6}
    for job in longer:
        twin = shorter[job.role.pair, job.role.arm]
        assert (job.start, task_of(job).data_order) == (twin.start, task_of(twin).data_order)
    assert [comparison.design for comparison in done.comparisons] == ["screen", "long_screen"]


@every_plan
def test_a_phase_asks_for_all_that_was_planned_and_no_more(given: Plan) -> None:
    asked, _ = play(SmallScale(), given, Scenario(tau=0.0001))
    assert {job.digest for jobs in asked for job in jobs.jobs} == {job.digest for job in small(given)}


@every_plan
def test_what_a_phase_asks_first_was_planned_and_is_asked_again(given: Plan) -> None:
    for phase in PHASES:
        budgeted = {job.digest for job in phase.planned(given, HERE)}
        asked = phase.next(given, HERE)
        assert isinstance(asked, Jobs)
        assert {job.digest for job in asked.jobs} <= budgeted
        assert phase.next(given, HERE) == asked
