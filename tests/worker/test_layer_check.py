"""Layers by themselves: which rows there are, what they compare, and that looking leaves no trace."""

import numpy as np
import pytest
import torch

from fp8migrate.facts.recipes import (
    KNOWN_BAD,
    Bf16Recipe,
    CurrentRecipe,
    DelayedRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    RowwiseHighPrecisionRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import PolicyRule
from fp8migrate.worker.quantizers import quantizers
from fp8migrate.worker.tasks.layer_check import compare_layers, seen_by_layers
from tests.worker import runs
from tests.worker.runs import BF16, CURRENT, OFF, new_state

ALL_GEMMS = {"forward", "data_gradient", "weight_gradient"}


def tokens() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(97, 123, (2, 17)).astype(np.int64))


def rows(precision: Precision) -> dict[tuple[object, object], dict[str, object]]:
    seen = seen_by_layers(new_state(BF16).model, tokens())
    return {(row["layer"], row["gemm"]): row for row in compare_layers(new_state(precision).model, seen)}


def least_db(precision: Precision) -> float:
    return min(float(row["sqnr_db"]) for row in rows(precision).values())  # type: ignore[arg-type]


def test_each_converted_layer_has_a_row_for_each_gemm_in_fp8() -> None:
    found = rows(CURRENT)
    assert {layer for layer, _ in found} == {name for name, _ in new_state(BF16).model.named_modules() if is_linear(name)}
    assert all({gemm for layer, gemm in found if layer == name} == ALL_GEMMS for name, _ in found)


def is_linear(name: str) -> bool:
    return name.startswith("layers.") and name.split(".")[-1] in ["query", "key", "value", "output", "gate", "up", "down"]


def test_gemms_left_in_bf16_have_none() -> None:
    assert {gemm for _, gemm in rows(runs.emulated(RowwiseHighPrecisionRecipe()))} == {"forward", "data_gradient"}
    rule = PolicyRule(layers="layers.0.mlp.up", gemms=("forward",), recipe=Bf16Recipe())
    found = rows(CURRENT.model_copy(update={"policy": (rule,)}))
    assert {gemm for layer, gemm in found if layer == "layers.0.mlp.up"} == {"data_gradient", "weight_gradient"}
    assert rows(OFF) == {}


def test_a_poor_recipe_stands_out() -> None:
    """E4M3 operands have about 31.5 dB, two of them 28.5, E2M1 with a scale per 16 about 20; one scale per tensor far less."""
    sound, four_bits, bad = (
        least_db(runs.emulated(recipe)) for recipe in (CurrentRecipe(format="e4m3"), Nvfp4Recipe(), KNOWN_BAD)
    )
    assert sound > 24 > 18 > four_bits > bad


@pytest.mark.parametrize("recipe", [DelayedRecipe(amax_history_len=4), Nvfp4Recipe()], ids=lambda recipe: recipe.kind)
def test_what_is_looked_at_leaves_no_trace_in_histories(recipe: DelayedRecipe | Nvfp4Recipe) -> None:
    model = new_state(runs.emulated(recipe)).model
    seen = seen_by_layers(new_state(BF16).model, tokens())
    before = [each.get_buffer("amax_history").clone() for each in quantizers(model) if each.operand.history]
    list(compare_layers(model, seen))
    after = [each.get_buffer("amax_history") for each in quantizers(model) if each.operand.history]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(float(each.pass_amax) == 0 for each in quantizers(model) if each.operand.history)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_stand_in_goes_exactly_where_the_candidate_is_in_low_precision() -> None:
    """The positive control: convicted elsewhere, or in more GEMMs, it would vouch for nothing."""
    rules = (
        PolicyRule(layers="*", recipe=Bf16Recipe()),
        PolicyRule(layers="layers.*.mlp.*", gemms=("forward", "weight_gradient"), recipe=CurrentRecipe()),
    )
    candidate = runs.emulated(RowwiseHighPrecisionRecipe(), "lm_head").model_copy(update={"policy": rules})
    control = candidate.model_copy(update={"stand_in": KNOWN_BAD})
    places = [{(layer.name, layer.gemms) for layer in new_state(each).conversion.layers} for each in (candidate, control)]
    assert places[0] == places[1]
    found = rows(control)
    assert {gemm for _, gemm in found} == {"forward", "weight_gradient"}
    assert {str(layer).split(".")[2] for layer, _ in found} == {"mlp"}
    assert "in the place of" in new_state(control).conversion.requested


def test_a_stand_in_where_shapes_refuse_the_candidate_goes_nowhere() -> None:
    """MXFP8 takes multiples of 32: with 24 tokens a pass nothing is in low precision, and nothing is made bad instead."""
    sites_of = runs.emulated(Mxfp8Recipe()).model_copy(update={"stand_in": KNOWN_BAD})
    training = runs.TRAINING.model_copy(update={"sequence_length": 24, "micro_batch_size": 1})
    assert new_state(sites_of, training).conversion.fp8_flops_share == 0
