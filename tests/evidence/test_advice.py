"""From rows of tensor statistics to advice: what is kept, what is tried first, and what is not said."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fp8migrate.checks import judge_baseline
from fp8migrate.evidence.advice import LEAST_SQNR_DB, MOST_KEPT, Advice, advice, unfit_layers
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS
from fp8migrate.facts.recipes import (
    KNOWN_BAD,
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
)
from fp8migrate.jobs import Job, TensorStats
from fp8migrate.plan.schema import Candidate, Plan, PolicyRule
from fp8migrate.records.schema import Record
from fp8migrate.verdict import decide
from tests.simulation import Scenario, make_plan, simulate

RECIPES = (
    DelayedRecipe(),
    CurrentRecipe(),
    BlockRecipe(),
    RowwiseHighPrecisionRecipe(),
    Mxfp8Recipe(),
    Nvfp4Recipe(),
    KNOWN_BAD,
)
LAYERS = ("layers.0.attention.query", "layers.0.mlp.down", "layers.1.attention.query", "layers.1.mlp.down", "lm_head")
Levels = Mapping[tuple[str, str, str], float]


def table(step: int, levels: Levels, recipes: Sequence[Recipe] = RECIPES, underflow: float = 0.0) -> list[dict[str, Any]]:
    """Every operand at 30 dB, but for `levels` by (kind, tensor, layer); those have the underflow given."""
    rows = []
    for recipe in recipes:
        for gemm in GEMMS:
            for tensor, operand in zip(GEMM_OPERANDS[gemm], recipe.operands(gemm) or (), strict=False):
                sqnr = [levels.get((recipe.kind, tensor, layer), 30.0) for layer in LAYERS]
                rows.append(
                    {
                        "step": step,
                        "recipe": recipe.in_words,
                        "gemm": gemm,
                        "tensor": tensor,
                        "operand": operand.in_words,
                        "tokens": 128,
                        "layers": list(LAYERS),
                        "sqnr_db": sqnr,
                        "underflow": [underflow if level < 30 else 0.001 for level in sqnr],
                        "overflow": [0.0] * len(LAYERS),
                        "least_log2_scale": [-9.0] * len(LAYERS),
                        "largest_log2_scale": [-3.0] * len(LAYERS),
                    }
                )
    return rows


def sampled(*tables: list[dict[str, Any]], facts: Mapping[str, Any] | None = None) -> tuple[Job, Record]:
    experiment = simulate(Scenario(), "baseline")
    job = experiment.jobs[0]
    stats = TensorStats(steps=tuple(range(1, len(tables) + 1)), recipes=RECIPES, max_tokens=128)
    job = job.model_copy(update={"task": job.task.model_copy(update={"tensor_stats": stats})})
    record = experiment.records[experiment.jobs[0].digest]
    named = {f"tensor_stats-{number:08d}": tuple(rows) for number, rows in enumerate(tables, start=1)}
    return job, replace(record, tables=named, conversion=None, facts={**record.facts, **(facts or {})})


def advised(*levels: Levels, keep: tuple[str, ...] = ("lm_head",), candidate: Recipe = RECIPES[0], **more: Any) -> Advice:
    job, record = sampled(*(table(10 * number, one, **more) for number, one in enumerate(levels, start=1)))
    found = advice(job, record, keep, candidate)
    assert found is not None
    return found


def planned(recipe: Recipe, **candidate: Any) -> Plan:
    base = make_plan()
    model = base.model.model_copy(update={"num_layers": 2})
    return base.model_copy(update={"model": model, "candidate": Candidate(recipe=recipe, keep_advised=True, **candidate)})


def test_where_every_recipe_holds_the_fastest_is_tried_first() -> None:
    found = advised({})
    assert found.first == DelayedRecipe().in_words
    assert found.sentences[0].startswith("Try delayed first: no layer to keep in BF16; its lowest operand keeps 30.0 dB")
    assert "1.395 × BF16, measured on one H200" in found.summary
    assert found.layers == LAYERS
    assert found.kept_by_plan == ("lm_head",)


def test_blackwell_recipes_are_named_and_never_ranked() -> None:
    good = {(r.kind, t, layer): 9.0 for r in RECIPES[:4] for t in ("input", "gradient") for layer in LAYERS}
    found = advised(good)
    assert found.first is None
    assert found.sentences[0].startswith("No recipe to try")
    assert "On Blackwell also mxfp8 (no layer to keep in BF16) and nvfp4" in found.summary
    assert all(one.step_speed is None for one in found.recipes if one.needs_blackwell)


def test_a_layer_with_one_poor_operand_is_kept_and_told_why() -> None:
    found = advised({("delayed", "gradient", LAYERS[1]): 3.14}, underflow=0.98)
    delayed = found.forecast(DelayedRecipe().in_words)
    (kept,) = delayed.keep
    assert kept.layer == LAYERS[1]
    assert kept.reason == "gradient of the data gradient: 3.1 dB, 98 % underflow"
    assert delayed.kept_share == pytest.approx(0.25)
    assert delayed.poor_share == pytest.approx(2 / 24)
    assert delayed.underflow == 0.98
    # 0.395 · 0.75 is less than current's 0.36.
    assert found.first == CurrentRecipe().in_words


def test_a_few_layers_to_keep_are_worth_a_faster_step() -> None:
    """current keeps one layer in four, 0.36 · 0.75, and still beats block's 0.23."""
    poor = {("delayed", "weight", layer): 5.0 for layer in LAYERS}
    found = advised(poor | {("current", "input", LAYERS[0]): 13.9})
    assert found.first == CurrentRecipe().in_words
    assert "1 layer to keep in BF16 (layers.0.attention.query)" in found.sentences[0]


def test_the_threshold_itself_is_good_enough_and_nan_is_not() -> None:
    at, nan = {("current", "input", LAYERS[0]): LEAST_SQNR_DB.value}, {("current", "input", LAYERS[0]): math.nan}
    assert not advised(at).forecast(CurrentRecipe().in_words).keep
    found = advised(nan).forecast(CurrentRecipe().in_words)
    assert [kept.layer for kept in found.keep] == [LAYERS[0]]
    assert math.isnan(found.worst.sqnr_db)


def test_of_several_samples_the_worst_counts_whatever_its_order() -> None:
    low: Levels = {("delayed", "input", LAYERS[2]): 8.0}
    for levels, step in (((low, {}), 10), (({}, low), 20)):
        worst = advised(*levels).forecast(DelayedRecipe().in_words).worst
        assert (worst.sqnr_db, worst.layer, worst.step) == (8.0, LAYERS[2], step)


def test_layers_that_the_plan_keeps_count_for_nothing() -> None:
    low: Levels = {("delayed", "input", "lm_head"): 1.0}
    assert not advised(low).forecast(DelayedRecipe().in_words).keep
    assert [kept.layer for kept in advised(low, keep=()).forecast(DelayedRecipe().in_words).keep] == ["lm_head"]
    assert {operand.layer for operand in advised(low).operands} == set(LAYERS)


def test_the_plans_own_bad_recipe_is_called_bad() -> None:
    bad = {("current", t, layer): 4.0 for t in ("input", "gradient") for layer in LAYERS}
    job, record = sampled(table(1, {}, RECIPES[:6]) + table(1, bad, [KNOWN_BAD], 0.9))
    found = advice(job, record, ("lm_head",), KNOWN_BAD)
    assert found is not None
    own = found.forecast(KNOWN_BAD.in_words)
    assert own.candidate
    assert own.kept_share == 1 > MOST_KEPT.value
    assert own.step_speed is None  # no GPU multiplies E2M1 with one scale per tensor
    assert f"The plan's own candidate, {KNOWN_BAD.in_words}: 4 layers to keep" in found.summary


def test_gemms_left_in_bf16_have_no_forecast() -> None:
    gemms = {o.gemm for o in advised({}).operands if o.recipe == RowwiseHighPrecisionRecipe().in_words}
    assert gemms == {"forward", "data_gradient"}


def test_nothing_sampled_nothing_said() -> None:
    experiment = simulate(Scenario(), "baseline")
    assert baseline_evidence(experiment.plan, experiment.jobs, experiment.records).advice is None
    job, record = sampled(table(1, {}))
    assert advice(job, replace(record, tables={}), (), RECIPES[0]) is None
    assert advice(experiment.jobs[0], record, (), RECIPES[0]) is None


@pytest.mark.parametrize(
    "damage", [{"sqnr_db": [1.0]}, {"layers": None}, {"gemm": "sideways"}, {"sqnr_db": ["x"] * 5}, {"recipe": "another"}]
)
def test_damaged_rows_are_read_past(damage: dict[str, Any]) -> None:
    rows = table(1, {})
    job, record = sampled([rows[0] | damage, *rows[1:]])
    found = advice(job, record, (), RECIPES[0])
    assert found is not None
    assert len(found.operands) == 5 * (len(rows) - 1)


def test_the_cost_is_told_as_a_share_of_the_steps() -> None:
    job, record = sampled(table(1, {}), facts={"advisor_seconds": 1.5})
    found = advice(job, record, (), RECIPES[0])
    assert found is not None
    assert found.seconds == 1.5
    assert found.cost_share == pytest.approx(1.5 / record.series["step_seconds"].values.sum())
    assert advised({}).cost_share is None


def test_advice_decides_nothing() -> None:
    experiment = simulate(Scenario(), "baseline")
    evidence = baseline_evidence(experiment.plan, experiment.jobs, experiment.records)
    without = judge_baseline(evidence)
    bad = advised({(r.kind, "input", layer): 0.0 for r in RECIPES for layer in LAYERS})
    told = judge_baseline(replace(evidence, advice=bad))
    assert decide(told) == decide(without)
    (result,) = [r for r in told if r.check == "baseline_advisor"]
    assert result.advisory
    assert result.summary == bad.summary
    (skipped,) = [r for r in without if r.check == "baseline_advisor"]
    assert (skipped.status, skipped.advisory) == ("skipped", True)


def test_unfit_layers_are_judged_under_the_recipe_that_the_plan_gives_them() -> None:
    """mlp.down is unfit for current in both layers, and for block in none: a rule gives layer 0 block scaling."""
    levels = {
        ("current", "gradient", LAYERS[1]): 3.14,
        ("current", "gradient", LAYERS[3]): 5.0,
        ("block", "input", LAYERS[0]): 2.0,
    }
    found = advised(levels, candidate=CurrentRecipe())
    plan = planned(CurrentRecipe())
    assert [one.layer for one in unfit_layers(found, plan)] == [LAYERS[1], LAYERS[3]]
    assert unfit_layers(found, plan)[0].reason == "gradient of the data gradient: 3.1 dB"
    rule = PolicyRule(layers="layers.0.*", recipe=BlockRecipe())
    assert [one.layer for one in unfit_layers(found, planned(CurrentRecipe(), policy=(rule,)))] == [LAYERS[0], LAYERS[3]]
    assert [one.layer for one in unfit_layers(found, planned(CurrentRecipe(), keep_bf16=("last_layer",)))] == [LAYERS[1]]
    assert unfit_layers(advised({}), planned(DelayedRecipe())) == ()


def test_shapes_that_are_padded_are_not_to_be_kept() -> None:
    job, record = sampled(table(1, {}))
    training = job.task.training.model_copy(update={"micro_batch_size": 1, "sequence_length": 12})
    job = job.model_copy(update={"task": job.task.model_copy(update={"training": training})})
    for odd_shapes, kept in (("keep", 4), ("pad", 0)):
        found = advice(job, record, ("lm_head",), DelayedRecipe(), odd_shapes)  # type: ignore[arg-type]
        assert found is not None
        assert len(found.forecast(DelayedRecipe().in_words).keep) == kept
