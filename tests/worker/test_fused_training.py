"""Training in fused modules against a stub of Transformer Engine: own parameters, what is kept, the proof, the checks."""

import pytest
import torch
from torch import Tensor

from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, Recipe
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, PolicyRule, Training
from fp8migrate.worker.backends import convert
from fp8migrate.worker.backends.converted import (
    begin_microbatch,
    converted_modules,
    forward_mode,
    layers_without_fp8,
    tensors_quantized,
)
from fp8migrate.worker.models.llama import Llama, token_losses
from fp8migrate.worker.tasks.forward_check import observe
from fp8migrate.worker.tasks.layer_check import compare_layers, given_to, seen_by_layers

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
TRAINING = Training(
    num_steps=10, sequence_length=32, micro_batch_size=4, global_batch_size=4, learning_rate=1e-3, warmup_steps=1
)
DELAYED = DelayedRecipe(amax_history_len=4)
MODULES = [f"layers.{layer}.fused_{module}" for layer in (0, 1) for module in ("qkv", "output", "mlp")]
pytestmark = pytest.mark.usefixtures("transformer_engine_stub")


def plain() -> Llama:
    return Llama(MODEL, 32, seed=3)


def fused(recipe: Recipe | None, keep: tuple[str, ...] = ("lm_head",), rules: tuple[PolicyRule, ...] = ()) -> Llama:
    found = plain()
    convert(found, precision(recipe, keep, rules), 4 * 32)
    return found


def precision(recipe: Recipe | None, keep: tuple[str, ...] = ("lm_head",), rules: tuple[PolicyRule, ...] = ()) -> Precision:
    return Precision(backend="transformer_engine", recipe=recipe, keep_bf16=keep, policy=rules, modules="fused")


def tokens() -> Tensor:
    return torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(3))


def step(model: Llama) -> tuple[float, dict[str, Tensor]]:
    """Loss, and gradients by name, none left behind."""
    loss = token_losses(model, tokens()).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), found


def test_parameters_keep_their_names_their_bits_and_their_gradients() -> None:
    expected, found = dict(plain().named_parameters()), fused(CurrentRecipe())
    assert dict(found.named_parameters()).keys() == expected.keys()
    assert all(torch.equal(each, expected[name]) for name, each in found.named_parameters())
    assert list(converted_modules(found)) == MODULES
    assert step(found)[1].keys() == expected.keys()


def test_the_control_is_the_plain_model_within_bf16_rounding() -> None:
    exact_loss, exact = step(plain())
    model = fused(None)
    loss, gradients = step(model)
    assert loss == pytest.approx(exact_loss, rel=1e-3)
    for name, gradient in gradients.items():
        assert (gradient - exact[name]).norm() <= 3e-2 * exact[name].norm(), name
    assert tensors_quantized(model) == 0


@pytest.mark.parametrize("recipe", [DELAYED, CurrentRecipe()], ids=lambda recipe: recipe.kind)
def test_fp8_ran_in_every_module(recipe: Recipe) -> None:
    model = fused(recipe)
    exact = step(plain())[0]
    for _ in range(3):
        loss, gradients = step(model)
    assert loss == pytest.approx(exact, rel=1e-2)
    assert loss != exact
    assert all(each.isfinite().all() for each in gradients.values())
    # Three passes: input and weight of one, one and two matrices, in two layers.
    assert tensors_quantized(model) == 3 * 2 * 2 * 4
    assert layers_without_fp8(model) == ()


def test_a_layer_that_is_kept_keeps_its_module_and_the_conversion_says_so() -> None:
    model = plain()
    found = convert(model, precision(CurrentRecipe(), ("lm_head", "layers.0.mlp.up")), 4 * 32)
    reasons = {layer.name: layer.reason for layer in found.layers if not layer.gemms}
    assert reasons["layers.0.mlp.up"] == "keep_bf16: layers.0.mlp.up"
    assert reasons["layers.0.mlp.down"] == "one fused module with layers.0.mlp.up, which stays in BF16"
    assert "layers.1.mlp.down" not in reasons
    step(model)
    quantized = {name: module.tensors_quantized for name, module in converted_modules(model).items()}
    assert quantized == dict.fromkeys(MODULES, 2) | {"layers.0.fused_mlp": 0, "layers.1.fused_mlp": 4}


def test_a_head_in_fp8_is_a_linear_layer_of_the_library() -> None:
    model = fused(CurrentRecipe(), keep=())
    assert list(converted_modules(model)) == [*MODULES, "lm_head"]
    step(model)
    assert layers_without_fp8(model) == ()


def test_an_evaluation_in_bf16_leaves_no_trace() -> None:
    model = fused(DELAYED)
    step(model)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with forward_mode(model, fp8=False), torch.no_grad():
        bf16 = token_losses(model, tokens()).mean()
    assert float(bf16) == pytest.approx(step(plain())[0], rel=1e-3)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert sum(name.endswith("amax_history") for name in before) == 2 * len(MODULES)


def test_micro_batches_are_told_to_the_modules() -> None:
    model = fused(CurrentRecipe())
    begin_microbatch(model, 1, 2)
    assert {module.first_microbatch for module in converted_modules(model).values()} == {False}


def test_each_module_by_itself_stands_for_the_layers_that_it_holds() -> None:
    """Its input is that of the norm before it, its output's gradient those of its layers."""
    reference, model = plain(), fused(CurrentRecipe())
    seen = seen_by_layers(reference, tokens())
    x, dy = given_to("layers.1.fused_qkv", converted_modules(model)["layers.1.fused_qkv"], seen)
    assert x.shape == (4, 32, 64)
    assert dy.shape == (4, 32, 64 + 32 + 32)
    rows = list(compare_layers(model, seen))
    assert [row["layer"] for row in rows] == [name for name in MODULES for _ in range(3)]
    assert all(15 < float(str(row["sqnr_db"])) < 60 for row in rows)


def test_the_forward_passes_are_compared_module_by_module() -> None:
    model = fused(CurrentRecipe())
    bf16, fp8 = (observe(model, tokens(), fp8=each)[1] for each in (False, True))
    assert bf16.keys() == fp8.keys() == {*MODULES, "lm_head"}
    assert not torch.equal(bf16[MODULES[0]], fp8[MODULES[0]])
