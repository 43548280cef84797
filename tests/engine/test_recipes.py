"""One plan under several recipes: what a recipe is written as, the plan that comes of it, shared runs, and the table."""

from dataclasses import replace
from pathlib import Path

import pytest

from fp8migrate.engine.recipes import Variant, parse_variant, with_variant
from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import BlockRecipe, DelayedRecipe
from fp8migrate.phases.advisor import advised
from fp8migrate.plan.load import LoadedPlan, load_plan
from fp8migrate.plan.schema import Advisor, BaselinePhase, Plan

PLAN = """
name: study
model: {num_layers: 2, hidden_size: 64, num_heads: 4, num_kv_heads: 2, ffn_hidden_size: 128}
training: {num_steps: 200, sequence_length: 32, micro_batch_size: 4, global_batch_size: 4, learning_rate: 1e-3, warmup_steps: 5}
candidate: {recipe: {kind: delayed, amax_history_len: 16}, keep_bf16: [lm_head]}
design: {branch: {at: 0.5, pairs: 4}}
"""


BLOCK_KEEPING = "block-keep-head_layers._.mlp"


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedPlan:
    path = tmp_path / "study.yaml"
    path.write_text(PLAN)
    return load_plan(path)


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("delayed", Variant(DelayedRecipe(amax_history_len=16)), "delayed-history-16"),
        (
            "{kind: delayed, backward_split_accumulator: false, keep_bf16: []}",
            Variant(DelayedRecipe(backward_split_accumulator=False), keep_bf16=()),
            "delayed-split-false-keep-none",
        ),
        (
            "{kind: block, keep_bf16: [head, layers.*.mlp]}",
            Variant(BlockRecipe(), None, ("head", "layers.*.mlp")),
            BLOCK_KEEPING,
        ),
        ("{kind: block, modules: fused}", Variant(BlockRecipe(), modules="fused"), "block-fused"),
        ("block", Variant(BlockRecipe()), "block"),
        ("emulated:block", Variant(BlockRecipe(), "emulated"), "emulated-block"),
        ("{kind: delayed, margin: 3}", Variant(DelayedRecipe(margin=3)), "delayed-margin-3"),
        ("torchao:{kind: block}", Variant(BlockRecipe(), "torchao"), "torchao-block"),
    ],
)
def test_a_recipe_as_it_is_written(loaded: LoadedPlan, text: str, expected: Variant, name: str) -> None:
    found = parse_variant(text, loaded.plan)
    assert found == expected
    assert found.name == name
    assert parse_variant(found.written, loaded.plan) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("emulated:dlayed", "dlayed is no kind of recipe; expected one of delayed, current, .*; did you mean delayed"),
        ("''", "no kind of recipe; expected one of delayed"),
        ("{kind: current, policy: []}", "unknown key policy; besides the recipe's own settings keep_bf16 and modules"),
        ("{kind: current, margn: 2}", "unknown key margn;"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said_in_the_plans_words(loaded: LoadedPlan, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_variant(text, loaded.plan)


@pytest.mark.parametrize(
    "text",
    [
        "dlayed",
        "{kind: delayed, magin: 3}",
        "{kind: block, keep_bf16: 3}",
        "{kind: block, modules: fussed}",
        "{kind: [",
        "emulated:",
        "3",
    ],
)
def test_what_is_no_recipe_is_refused(loaded: LoadedPlan, text: str) -> None:
    with pytest.raises(UsageError, match="--recipe"):
        parse_variant(text, loaded.plan)


def test_the_plan_that_comes_of_it_can_be_read_again_and_differs_in_the_candidate_alone(
    loaded: LoadedPlan, tmp_path: Path
) -> None:
    found = with_variant(loaded, Variant(BlockRecipe(), "emulated"))
    again = tmp_path / "again.yaml"
    again.write_text(found.text)
    assert load_plan(again).plan == found.plan
    assert found.plan.name == "study-emulated-block"
    candidate = loaded.plan.candidate.model_copy(update={"recipe": BlockRecipe(), "backend": "emulated"})
    phases = loaded.plan.phases.model_copy(update={"baseline": BaselinePhase(advisor=Advisor(recipes=(BlockRecipe(),)))})
    expected = loaded.plan.model_copy(update={"name": found.plan.name, "candidate": candidate, "phases": phases})
    assert Plan.model_dump(found.plan) == Plan.model_dump(expected)


def test_layers_to_keep_take_the_place_of_the_plans(loaded: LoadedPlan) -> None:
    found = with_variant(loaded, Variant(BlockRecipe(), keep_bf16=()))
    assert found.plan.candidate.keep_bf16 == ()
    assert found.options == "--recipe '{keep_bf16: [], kind: block}'"
    fused = with_variant(loaded, Variant(BlockRecipe(), modules="fused"))
    assert fused.plan.candidate.modules == "fused"
    assert fused.options == "--recipe '{kind: block, modules: fused}'"


def test_recipes_of_one_study_share_one_bf16_run(loaded: LoadedPlan) -> None:
    """Its tensors are looked at under the recipes of all, in one order: the run of each variant is the same job."""
    texts = ("delayed", "tensorwise", "{kind: delayed, margin: 14, amax_history_len: 16}", "block", "emulated:block")
    variants = [parse_variant(text, loaded.plan) for text in texts]
    plans = [with_variant(loaded, each, variants) for each in variants]
    looked_at = {advised(each.plan) for each in plans}
    assert len(looked_at) == 1
    assert {each.recipe for each in variants} <= set(looked_at.pop())
    assert len({each.options for each in plans}) == 1


def test_a_recipe_that_the_designs_are_too_short_for_is_refused(loaded: LoadedPlan) -> None:
    with pytest.raises(UsageError, match="too short"):
        with_variant(loaded, Variant(DelayedRecipe(amax_history_len=1024)))


def test_names_that_are_too_long_are_refused_and_never_cut_to_one(loaded: LoadedPlan) -> None:
    long = replace(loaded, plan=loaded.plan.model_copy(update={"name": "s" * 60}))
    with pytest.raises(UsageError, match="shorter name"):
        with_variant(long, Variant(BlockRecipe()))
