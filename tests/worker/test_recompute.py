"""Activation recompute: the same bits as without, and no trace of the second pass."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fp8migrate.errors import UsageError
from fp8migrate.facts.formats import E2M1
from fp8migrate.facts.operands import Gemm, Operand, Operands
from fp8migrate.facts.recipes import (
    MIGRATION_RECIPES,
    Bf16Recipe,
    CurrentRecipe,
    DelayedRecipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, PolicyRule, Training
from fp8migrate.worker.backends.converted import begin_microbatch, forward_mode, tensors_quantized
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.llama import token_losses
from fp8migrate.worker.quantizers import end_pass, quantizers
from fp8migrate.worker.tasks.train import TrainingState, build, forward_backward
from fp8migrate.worker.tensor_watch import watching
from tests.worker.runs import BF16, CPU, MODEL, TRAINING, emulated

PLAIN = TRAINING.model_copy(update={"global_batch_size": 3 * TRAINING.micro_batch_size})
RECOMPUTED = PLAIN.model_copy(update={"recompute": True})
RECIPES = tuple(DelayedRecipe(amax_history_len=3) if recipe.kind == "delayed" else recipe for recipe in MIGRATION_RECIPES)


class ByChance(Nvfp4Recipe):
    """Every operand of every GEMM is rounded stochastically, those of the forward pass too: no recipe goes so far."""

    def operands(self, gemm: Gemm) -> Operands:
        by_chance = Operand(E2M1, (1, 16), "e4m3", stochastic=True)
        return by_chance, by_chance


@dataclass
class Seen:
    """What some steps left behind: losses, gradients of every step, weights, buffers and the amaxes of the pass under way."""

    losses: list[float]
    gradients: list[dict[str, Tensor]]
    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    quantized: int


def batch(number: int, training: Training = PLAIN) -> np.ndarray:
    shape = (training.global_batch_size, training.sequence_length + 1)
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def steps(state: TrainingState, count: int = 3) -> Seen:
    losses, gradients = [], []
    for number in range(count):
        losses.append(float(forward_backward(state.model, batch(number), PLAIN.micro_batch_size)))
        gradients.append({name: p.grad.clone() for name, p in state.model.named_parameters() if p.grad is not None})
        state.optimizer.step()
        state.optimizer.zero_grad()
    model = state.model
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    kept |= {f"pass amax {i}": q.pass_amax for i, q in enumerate(quantizers(model)) if q.operand.history is not None}
    weights = {name: p.detach() for name, p in model.named_parameters()}
    return Seen(losses, gradients, weights, kept, tensors_quantized(model))


def assert_same_bits(found: Seen, expected: Seen) -> None:
    assert found.losses == expected.losses
    for step, (a, b) in enumerate(zip(found.gradients, expected.gradients, strict=True)):
        assert a.keys() == b.keys()
        assert [(step, name) for name in b if not torch.equal(a[name], b[name])] == []
    for a, b in ((found.weights, expected.weights), (found.state, expected.state)):
        assert a.keys() == b.keys()
        assert [name for name in b if not torch.equal(a[name], b[name])] == []
    assert found.quantized == expected.quantized


def both(precision: Precision, model: LlamaModel = MODEL) -> tuple[TrainingState, TrainingState]:
    plain, recomputed = (build(model, training, precision, CPU) for training in (PLAIN, RECOMPUTED))
    return plain, recomputed


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
def test_a_step_has_the_same_bits_with_and_without(recipe: Recipe) -> None:
    """Over several micro-batches, with copies of weights that last for the step; FP8 in the head too."""
    plain, recomputed = both(emulated(recipe))
    expected, found = steps(plain), steps(recomputed)
    assert found.quantized > 0
    assert found.state.keys() >= {"cos_te"}
    assert_same_bits(found, expected)


def test_bf16_has_the_same_bits_too() -> None:
    plain, recomputed = both(BF16)
    assert_same_bits(steps(recomputed), steps(plain))


def test_chances_of_the_forward_pass_come_again() -> None:
    plain, recomputed = both(emulated(ByChance()))
    expected = steps(plain)
    assert sum(name.endswith("noise_seed") for name in expected.state) >= 2 * 7 * 3
    assert_same_bits(steps(recomputed), expected)


def test_chances_come_again_in_each_backward_pass_over_one_graph() -> None:
    _, recomputed = both(emulated(ByChance()))
    tokens = torch.from_numpy(batch(0).astype(np.int64))
    weights = [p for name, p in recomputed.model.named_parameters() if name.endswith("mlp.down.weight")]
    twice = []
    loss = token_losses(recomputed.model, tokens).mean()
    forward = [each.get_buffer("noise_seed") for each in quantizers(recomputed.model)]
    for keep in (True, False):
        before = [seed.clone() for seed in forward]
        loss.backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        twice.append([p.grad.clone() for p in weights if p.grad is not None])
        for seed, first in zip(forward, before, strict=True):
            seed.copy_(first)
    assert all(torch.equal(2 * a, b) for a, b in zip(*twice, strict=True))


def test_padded_layers_and_layers_of_another_recipe() -> None:
    odd = MODEL.model_copy(update={"ffn_hidden_size": 72})
    rules = (
        PolicyRule(layers="layers.*.attention.*", recipe=Nvfp4Recipe()),
        PolicyRule(layers="*.gate", gemms=("weight_gradient",), recipe=Bf16Recipe()),
    )
    precision = Precision(backend="emulated", recipe=DelayedRecipe(amax_history_len=2), policy=rules, odd_shapes="pad")
    plain, recomputed = both(precision, odd)
    assert_same_bits(steps(recomputed), steps(plain))
    down = recomputed.model.get_submodule("layers.0.mlp.down")
    assert down.inner.weight is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "recipe", [TensorwiseRecipe(), RowwiseRecipe(), RowwiseHighPrecisionRecipe()], ids=lambda recipe: recipe.kind
)
def test_torchaos_layers_have_the_same_bits(recipe: Recipe) -> None:
    """By its own emulation, which is not compiled."""
    pytest.importorskip("torchao", reason="torchao is not installed")
    plain, recomputed = both(Precision(backend="torchao", recipe=recipe, keep_bf16=("lm_head",)))
    found = steps(recomputed)
    assert found.quantized > 0
    assert_same_bits(found, steps(plain))


def calls(state: TrainingState) -> list[str]:
    """Decoder layers in the order in which their forward is run."""
    seen: list[str] = []
    for number, layer in enumerate(state.model.layers):
        layer.register_forward_pre_hook(lambda _, __, name=str(number): seen.append(name))  # type: ignore[misc]
    return seen


def test_layers_run_twice_where_there_are_gradients_and_once_where_there_are_none() -> None:
    plain, recomputed = both(emulated(CurrentRecipe()))
    for state, expected in ((plain, ["0", "1"]), (recomputed, ["0", "1", "1", "0"])):
        seen, tokens = calls(state), torch.from_numpy(batch(0).astype(np.int64))
        token_losses(state.model, tokens).mean().backward()  # type: ignore[no-untyped-call]
        assert seen == expected
        seen.clear()
        with torch.no_grad(), forward_mode(state.model, fp8=True):
            token_losses(state.model, tokens)
        assert seen == ["0", "1"]


def test_activations_are_not_kept() -> None:
    kept = []
    for state in both(emulated(CurrentRecipe())):
        tensors: list[Tensor] = []
        tokens = torch.from_numpy(batch(0).astype(np.int64))

        def pack(x: Tensor, tensors: list[Tensor] = tensors) -> Tensor:
            tensors.append(x)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            token_losses(state.model, tokens)
        kept.append(sum(tensor.numel() for tensor in tensors))
    assert kept[1] < 0.5 * kept[0]


def test_who_watches_the_tensors_sees_each_pass_once() -> None:
    looks: list[list[tuple[str, str]]] = []
    for state in both(BF16):
        seen: list[tuple[str, str]] = []
        layers = {name: module for name, module in state.model.named_modules() if isinstance(module, Linear)}

        def see(layer: str, tensor: Any, values: Tensor, seen: list[tuple[str, str]] = seen) -> None:
            seen.append((layer, tensor))

        with watching(layers, see):
            begin_microbatch(state.model, 0, 1)
            token_losses(state.model, torch.from_numpy(batch(0).astype(np.int64))).mean().backward()  # type: ignore[no-untyped-call]
            end_pass(state.model)
        looks.append(seen)
    assert looks[0] == looks[1]
    assert len(set(looks[0])) == len(looks[0]) == 3 * 15


TE = pytest.mark.usefixtures("transformer_engine_stub")
TE_DELAYED = DelayedRecipe(amax_history_len=3)


def te(recipe: Recipe | None, *rules: PolicyRule) -> Precision:
    return Precision(backend="transformer_engine", recipe=recipe, keep_bf16=("lm_head",), policy=rules)


@TE
@pytest.mark.parametrize(
    "precision",
    [
        te(TE_DELAYED),
        te(CurrentRecipe()),
        te(None),
        te(TE_DELAYED, PolicyRule(layers="*.up", recipe=CurrentRecipe())),
        te(CurrentRecipe(), PolicyRule(layers="*.up", recipe=TE_DELAYED)),
    ],
    ids=["delayed", "current", "off", "delayed with others", "others with delayed"],
)
def test_transformer_engines_layers_have_the_same_bits(precision: Precision) -> None:
    plain, recomputed = both(precision)
    assert_same_bits(steps(recomputed), steps(plain))


@TE
def test_a_pass_without_a_backward_pass_shifts_no_scales() -> None:
    """Its scales would be those of the next recompute."""
    plain, recomputed = both(te(TE_DELAYED))
    tokens = torch.from_numpy(batch(7)[:2].astype(np.int64))
    for state in (plain, recomputed):
        for _ in range(2):
            token_losses(state.model, tokens)
    assert_same_bits(steps(recomputed), steps(plain))


@TE
def test_an_update_that_moves_on_what_saw_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_UNFUSED_FP8_UPDATE", "1")
    plain, recomputed = both(te(TE_DELAYED))
    steps(plain, 1)
    with pytest.raises(UsageError, match=r"(?s)training\.recompute: .*NVTE_UNFUSED_FP8_UPDATE .*Unset"):
        steps(recomputed, 1)
    steps(both(te(CurrentRecipe()))[1], 1)
