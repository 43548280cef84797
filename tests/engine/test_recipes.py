"""One plan under several recipes: what a recipe is written as, the plan that comes of it, shared runs, and the table."""

from dataclasses import replace
from pathlib import Path

import pytest

from fp8migrate.engine.recipes import Variant, _share_runs, parse_variant, with_variant
from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import BlockRecipe, DelayedRecipe
from fp8migrate.plan.load import LoadedPlan, load_plan
from fp8migrate.plan.schema import Plan

PLAN = """
name: study
model: {num_layers: 2, hidden_size: 64, num_heads: 4, num_kv_heads: 2, ffn_hidden_size: 128}
training: {num_steps: 200, sequence_length: 32, micro_batch_size: 4, global_batch_size: 4, learning_rate: 1e-3, warmup_steps: 5}
candidate: {recipe: {kind: delayed, amax_history_len: 16}, keep_bf16: [lm_head]}
design: {branch: {at: 0.5, pairs: 4}}
"""


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedPlan:
    path = tmp_path / "study.yaml"
    path.write_text(PLAN)
    return load_plan(path)


@pytest.mark.parametrize(
    ("text", "expected", "name"),
    [
        ("delayed", Variant(DelayedRecipe(amax_history_len=16)), "delayed-amax_history_len-16"),
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


@pytest.mark.parametrize("text", ["dlayed", "{kind: delayed, magin: 3}", "{kind: [", "emulated:", "3"])
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
    expected = loaded.plan.model_copy(update={"name": found.plan.name, "candidate": candidate})
    assert Plan.model_dump(found.plan) == Plan.model_dump(expected)


def test_a_recipe_that_the_designs_are_too_short_for_is_refused(loaded: LoadedPlan) -> None:
    with pytest.raises(UsageError, match="too short"):
        with_variant(loaded, Variant(DelayedRecipe(amax_history_len=1024)))


def test_names_that_are_too_long_are_refused_and_never_cut_to_one(loaded: LoadedPlan) -> None:
    long = replace(loaded, plan=loaded.plan.model_copy(update={"name": "s" * 60}))
    with pytest.raises(UsageError, match="shorter name"):
        with_variant(long, Variant(BlockRecipe()))


def test_runs_lie_in_the_plans_own_folder(tmp_path: Path) -> None:
    home, own = tmp_path / "study", tmp_path / "study-block"
    for _ in range(2):
        _share_runs(home, own)
    (own / "runs" / "a").mkdir()
    assert (home / "runs" / "a").is_dir()
