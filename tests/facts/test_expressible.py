"""What a library can be asked for: by GEMM of a layer, and side by side in a model."""

import pytest

from fp8migrate.facts.backends import BackendName
from fp8migrate.facts.expressible import layer_refusal, plan_refusal
from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import (
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    FixedRecipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    TensorwiseRecipe,
)

BACKWARD: tuple[Gemm, ...] = ("data_gradient", "weight_gradient")


@pytest.mark.parametrize(
    ("backend", "recipe", "gemms", "said"),
    [
        ("transformer_engine", CurrentRecipe(), GEMMS, None),
        ("transformer_engine", CurrentRecipe(), ("forward",), None),
        ("transformer_engine", CurrentRecipe(), (), None),
        ("transformer_engine", CurrentRecipe(), BACKWARD, "all three GEMMs"),
        ("transformer_engine", BlockRecipe(), ("forward", "data_gradient"), "all three GEMMs"),
        ("transformer_engine", DelayedRecipe(), ("forward",), "never runs the forward GEMM alone"),
        ("transformer_engine", CurrentRecipe(format="e5m2"), GEMMS, "has no current"),
        ("transformer_engine", FixedRecipe(), GEMMS, "has no fixed"),
        ("torchao", TensorwiseRecipe(), BACKWARD, None),
        ("torchao", RowwiseHighPrecisionRecipe(), ("forward", "data_gradient"), None),
        ("emulated", FixedRecipe(), BACKWARD, None),
    ],
)
def test_gemms_of_one_layer(backend: BackendName, recipe: Recipe, gemms: tuple[Gemm, ...], said: str | None) -> None:
    found = layer_refusal(backend, dict.fromkeys(gemms, recipe))
    assert found is None if said is None else said in str(found)


@pytest.mark.parametrize("backend", ["transformer_engine", "torchao"])
def test_two_recipes_in_one_layer_are_for_emulation_alone(backend: BackendName) -> None:
    mixed: dict[Gemm, Recipe] = {"forward": CurrentRecipe(), "data_gradient": BlockRecipe(), "weight_gradient": BlockRecipe()}
    assert "one recipe for all GEMMs" in str(layer_refusal(backend, mixed))
    assert layer_refusal("emulated", mixed) is None


def test_recipes_side_by_side_in_one_model() -> None:
    most_recent = DelayedRecipe(amax_history_len=16, amax_compute="most_recent")
    assert "amax_compute" in str(plan_refusal("transformer_engine", [DelayedRecipe(amax_history_len=16), most_recent], (9, 0)))
    assert plan_refusal("transformer_engine", [DelayedRecipe(amax_history_len=8), most_recent], (9, 0)) is None
    assert plan_refusal("emulated", [DelayedRecipe(amax_history_len=16), most_recent], (9, 0)) is None


def test_nvfp4_on_gpus_without_its_aids() -> None:
    plain = Nvfp4Recipe(disable_rht=True, disable_stochastic_rounding=True)
    assert "disable_rht" in str(plan_refusal("transformer_engine", [Nvfp4Recipe()], (12, 0)))
    assert plan_refusal("transformer_engine", [plain], (12, 0)) is None
    assert plan_refusal("transformer_engine", [Nvfp4Recipe()], (10, 0)) is None
