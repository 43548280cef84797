"""What the advisor samples, from the plan alone, and what it may cost."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8migrate.facts.recipes import KNOWN_BAD, MIGRATION_RECIPES, CurrentRecipe, DelayedRecipe
from fp8migrate.jobs import Train
from fp8migrate.phases.advisor import COST_SHARE, ROW_COST, advised, sampled_steps, tensor_stats
from fp8migrate.phases.baseline import baseline_jobs
from fp8migrate.phases.schema import Findings
from fp8migrate.plan.schema import Advisor, BaselinePhase, Phases, Plan
from tests.simulation import environment, make_plan


def plan(advisor: Advisor | None = None, steps: int = 600, batch: int = 64, **model: Any) -> Plan:
    base = make_plan()
    training = base.training.model_copy(update={"num_steps": steps, "global_batch_size": batch, "warmup_steps": 0})
    phases = Phases(baseline=BaselinePhase(advisor=advisor or Advisor()))
    return base.model_copy(update={"training": training, "phases": phases, "model": base.model.model_copy(update=model)})


def test_only_the_baselines_own_run_is_looked_at() -> None:
    jobs = baseline_jobs(plan(), Findings(environment=environment(), records={}))
    tasks = [job.task for job in jobs]
    assert all(isinstance(task, Train) for task in tasks)
    assert [task.tensor_stats is not None for task in tasks if isinstance(task, Train)] == [True, False, False]


def test_no_samples_switch_it_off() -> None:
    assert tensor_stats(plan(Advisor(samples=0)), "cpu") is None


def test_a_large_run_gets_what_is_asked_for() -> None:
    found = tensor_stats(plan(steps=100_000, batch=256), "cpu")
    assert found is not None
    assert (found.steps, found.max_tokens) == ((10_000, 40_000, 70_000, 100_000), 512)


def test_a_short_run_gets_one_sample_of_a_block() -> None:
    found = tensor_stats(plan(steps=10, batch=8), "cpu")
    assert found is not None
    assert (found.steps, found.max_tokens) == ((7,), 128)


def test_on_a_gpu_a_small_model_is_sampled_less_often() -> None:
    """8 layers: a step of 48 ms, a sample of 1.36 s: 2 % of 10 000 steps are 7 samples, of 3000 steps 2, of 100 steps none."""
    small = {"num_layers": 8, "hidden_size": 128}
    for steps, samples in ((10_000, 4), (3000, 2), (100, 1)):
        found = tensor_stats(plan(steps=steps, batch=64, **small), "cuda")
        assert found is not None
        assert len(found.steps) == samples
    # Where a step is long, a sample is little of it.
    large = tensor_stats(plan(steps=100, batch=1024, num_layers=32, hidden_size=4096, ffn_hidden_size=14336), "cuda")
    assert large is not None
    assert len(large.steps) == 4


def test_a_run_of_one_step() -> None:
    found = tensor_stats(plan(steps=1), "cpu")
    assert found is not None
    assert found.steps == (1,)


@given(st.integers(1, 10**6), st.integers(1, 64), st.integers(1, 64))
def test_samples_lie_within_the_run_and_rise(last: int, samples: int, batch: int) -> None:
    steps = sampled_steps(last, min(samples, last))
    assert list(steps) == sorted(set(steps))
    assert 1 <= steps[0] <= steps[-1] <= last


@given(st.integers(1, 10**6), st.integers(1, 4096), st.integers(16, 16384))
def test_the_estimated_cost_stays_within_its_share_or_at_the_least_sample(steps: int, batch: int, hidden: int) -> None:
    chosen = plan(steps=steps, batch=batch, hidden_size=hidden)
    found = tensor_stats(chosen, "cpu")
    assert found is not None
    rows = len(found.steps) * found.max_tokens
    affordable = COST_SHARE * steps * chosen.training.tokens_per_step * hidden / ROW_COST
    assert rows <= max(128, affordable)
    assert found.max_tokens % 128 == 0


def test_the_plans_own_recipes_are_among_the_usual_ones_and_none_twice() -> None:
    """In one order, whatever the plan's: plans that differ in the recipe share a baseline run."""

    def recipes(recipe: Any) -> tuple[Any, ...]:
        base = plan()
        return advised(base.model_copy(update={"candidate": base.candidate.model_copy(update={"recipe": recipe})}))

    assert recipes(CurrentRecipe()) == recipes(DelayedRecipe()) == MIGRATION_RECIPES
    assert recipes(KNOWN_BAD) == (*MIGRATION_RECIPES, KNOWN_BAD)
    # A history of 16 or of 1024: the advisor's own does not reach as far as either.
    assert recipes(DelayedRecipe(amax_history_len=16)) == (DelayedRecipe(amax_history_len=16), *MIGRATION_RECIPES[1:])
    assert len(recipes(DelayedRecipe(margin=3))) == len(MIGRATION_RECIPES) + 1


@pytest.mark.parametrize("wrong", [{"samples": -1}, {"samples": 65}, {"max_tokens": 64}, {"max_token": 512}])
def test_settings_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Advisor.model_validate(wrong)
