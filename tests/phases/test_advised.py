"""What the advisor of the BF16 run judges unfit stays in BF16, by name, in every later phase; and says so."""

from dataclasses import replace
from typing import Any

import pytest

from fp8migrate.errors import PlanError
from fp8migrate.evidence.pairs import describe_recipe
from fp8migrate.facts.recipes import DelayedRecipe
from fp8migrate.jobs import Job
from fp8migrate.phases.advised import advised_layers
from fp8migrate.phases.baseline import Baseline, baseline_jobs
from fp8migrate.phases.integration import Integration
from fp8migrate.phases.schema import Done, Findings, Jobs
from fp8migrate.phases.small_scale import SmallScale
from fp8migrate.plan.schema import Plan
from fp8migrate.sizing.flops import gemm_sites
from tests.engine.stage import ENVIRONMENT
from tests.evidence.test_advice import Levels, table
from tests.simulation import Scenario, make_records

RECIPE = DelayedRecipe(amax_history_len=16)
DOWN = "layers.1.mlp.down"
UNFIT: Levels = {("delayed", "gradient", DOWN): 3.14}
REASON = "advised: gradient of the data gradient: 3.1 dB"


def plan(**candidate: Any) -> Plan:
    return Plan.model_validate(
        {
            "name": "advised",
            "model": {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 128},
            "training": {
                "num_steps": 1000,
                "sequence_length": 32,
                "micro_batch_size": 2,
                "global_batch_size": 4,
                "learning_rate": 1e-3,
                "warmup_steps": 10,
            },
            "candidate": {"backend": "emulated", "recipe": RECIPE, **candidate},
            "design": {"screen": {}, "branch": {}},
            "phases": {"small_scale": {"shrink": 1}},
        }
    )


def after_baseline(given: Plan, levels: Levels, *, phase_done: bool = True) -> Findings:
    """The baseline ran, and its tables say that the operands of `levels` have so many decibels, all others 30."""
    here = Findings(ENVIRONMENT)
    jobs = baseline_jobs(given, here)
    records = make_records(jobs, Scenario())
    main = jobs[0].digest
    records[main] = replace(records[main], tables={"tensor_stats-00000001": tuple(table(1, levels, (RECIPE,)))})
    found = Findings(ENVIRONMENT, records)
    if not phase_done:
        return found
    done = Baseline().next(given, found)
    assert isinstance(done, Done)
    return Findings(ENVIRONMENT, records, {"baseline": done})


def kept(jobs: tuple[Job, ...], arm: str) -> set[tuple[tuple[str, str], ...]]:
    return {job.task.precision.kept for job in jobs if job.role.arm == arm}


@pytest.mark.parametrize("phase_done", [True, False])
def test_later_phases_keep_what_is_unfit(phase_done: bool) -> None:
    given = plan(keep_advised=True)
    findings = after_baseline(given, UNFIT, phase_done=phase_done)
    for phase in (Integration(), SmallScale()):
        asked = phase.next(given, findings)
        assert isinstance(asked, Jobs)
        assert kept(asked.jobs, "candidate") == {((DOWN, REASON),)}
        # The bad recipe goes where the candidate has FP8, and nowhere else.
        assert kept(asked.jobs, "sensitivity") <= {((DOWN, REASON),)}
        assert kept(asked.jobs, "baseline") <= {()}


def test_it_is_said_in_a_line() -> None:
    given = plan(keep_advised=True)
    asked = Integration().next(given, after_baseline(given, UNFIT))
    assert isinstance(asked, Jobs)
    assert asked.because.endswith("; 1 of its layers kept in BF16 as advised")
    words = describe_recipe(given, asked.jobs[0].task.precision.kept)
    assert words.endswith(f"kept in BF16: lm_head; advised: BF16 for {DOWN}")


def test_where_nothing_is_advised_the_run_is_an_ordinary_one_and_says_so() -> None:
    given = plan(keep_advised=True)
    findings = after_baseline(given, {})
    asked = Integration().next(given, findings)
    assert isinstance(asked, Jobs)
    assert asked.because.endswith("; nothing is advised to stay in BF16")
    ordinary = Integration().next(plan(), findings)
    assert isinstance(ordinary, Jobs)
    assert [job.digest for job in asked.jobs] == [job.digest for job in ordinary.jobs]
    assert describe_recipe(given).endswith("; advised: nothing to keep in BF16")


def test_advice_that_leaves_nothing_in_fp8_ends_the_plan_and_says_why() -> None:
    sampled = {f"layers.{number}.{leaf}" for number in (0, 1) for leaf in ("attention.query", "mlp.down")}
    given = plan(keep_advised=True)
    others = [site.name for site in gemm_sites(given.model, 32) if site.is_linear and site.name not in sampled]
    given = plan(keep_advised=True, keep_bf16=tuple(others))
    everything: Levels = {("delayed", "gradient", layer): 3.14 for layer in sampled}
    with pytest.raises(PlanError, match="the advisor keeps 4 layers in BF16, and none is left in FP8: nothing is left"):
        Integration().next(given, after_baseline(given, everything))
    del everything["delayed", "gradient", DOWN]
    assert isinstance(Integration().next(given, after_baseline(given, everything)), Jobs)


def test_unasked_advice_changes_nothing() -> None:
    given = plan()
    assert advised_layers(given, after_baseline(given, UNFIT)) == ()


def test_before_the_baseline_ran_the_plan_is_costed_without_it() -> None:
    given = plan(keep_advised=True)
    assert kept(SmallScale().planned(given, Findings(ENVIRONMENT)), "candidate") == {()}


def test_size_and_padding_reach_every_arm_with_fp8() -> None:
    """key and value have 32 × 64 weights."""
    given = plan(keep_smaller_than=4096, odd_shapes="pad")
    jobs = SmallScale().planned(given, Findings(ENVIRONMENT))
    for arm in ("candidate", "sensitivity"):
        (names,) = ({name for name, _ in each} for each in kept(jobs, arm))
        assert names == {f"layers.{layer}.attention.{name}" for layer in (0, 1) for name in ("key", "value")}
        assert {job.task.precision.odd_shapes for job in jobs if job.role.arm == arm} == {"pad"}
    assert describe_recipe(given).endswith("; under 4096 weights: BF16; odd shapes padded")
