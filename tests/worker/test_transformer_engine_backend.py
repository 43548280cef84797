"""The Transformer Engine backend against a stub that keeps its rules: what is shared, saved, switched off and moved on when."""

import sys

import pytest
import torch
from torch import Tensor

from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import (
    Bf16Recipe,
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    FixedRecipe,
    Recipe,
    RowwiseRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, PolicyRule
from fp8migrate.worker.backends import convert
from fp8migrate.worker.backends.converted import forward_mode, layers_without_fp8, tensors_quantized
from fp8migrate.worker.models.llama import Llama, token_losses

MODEL = LlamaModel(num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_hidden_size=48)
DELAYED = DelayedRecipe(amax_history_len=4)
pytestmark = pytest.mark.usefixtures("transformer_engine_stub")


def model(recipe: Recipe | None, *rules: PolicyRule) -> Llama:
    found = Llama(MODEL, 16, seed=1)
    precision = Precision(backend="transformer_engine", recipe=recipe, keep_bf16=("lm_head",), policy=rules)
    convert(found, precision, 2 * 16)
    return found


def tokens() -> Tensor:
    return torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(1))


def train(found: Llama) -> float:
    loss = token_losses(found, tokens()).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def entries(found: Llama, layer: str) -> int:
    """Passes in the history of a layer's input."""
    return int((found.get_buffer(f"{layer}.scaling_fwd_amax_history")[:, 0] != 0).sum())


def test_parameters_are_the_models_own_and_scales_are_saved_by_name() -> None:
    found = Llama(MODEL, 16, seed=1)
    before = dict(found.named_parameters())
    convert(found, Precision(backend="transformer_engine", recipe=DELAYED, keep_bf16=("lm_head",)), 32)
    after = dict(found.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is before[name] for name in before)
    saved = found.state_dict()
    assert saved["layers.0.mlp.up.scaling_fwd_amax_history"].shape == (4, 3)
    assert not [name for name in saved if "_extra_state" in name]


def test_histories_move_on_once_a_pass_and_an_evaluation_leaves_no_trace() -> None:
    found = model(DELAYED)
    for passes in (1, 2):
        train(found)
        assert entries(found, "layers.0.attention.query") == passes
    before = {name: buffer.clone() for name, buffer in found.named_buffers()}
    with torch.no_grad(), forward_mode(found, fp8=True):
        token_losses(found, tokens().flip(0) * 0 + 9)
    assert all(torch.equal(buffer, before[name]) for name, buffer in found.named_buffers())


def test_a_layer_of_another_recipe_stands_inside_the_pass() -> None:
    found = model(DELAYED, PolicyRule(layers="layers.*.mlp.*", recipe=CurrentRecipe()))
    for _ in range(3):
        train(found)
    assert entries(found, "layers.1.attention.output") == 3
    assert not list(found.get_submodule("layers.1.mlp.down").buffers())


def test_fp8_off_is_told_by_the_library_and_not_counted() -> None:
    found = model(CurrentRecipe())
    with torch.no_grad(), forward_mode(found, fp8=False):
        off = token_losses(found, tokens()).mean()
    assert tensors_quantized(found) == 0
    control = model(None)
    assert train(control) == pytest.approx(float(off), rel=1e-6)
    assert tensors_quantized(control) == 0
    assert layers_without_fp8(control) == ()
    assert train(found) != pytest.approx(float(off), rel=1e-6)
    assert tensors_quantized(found) == 2 * 14
    assert layers_without_fp8(found) == ()


def test_a_layer_whose_library_ran_without_fp8_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own word counts, not what was asked of it."""
    found = model(CurrentRecipe())
    inner = found.get_submodule("layers.0.mlp.gate").__dict__["_inner"]

    def never(num_gemms: int = 1) -> None:
        inner.fp8 = False

    monkeypatch.setattr(inner, "init_fp8_metadata", never)
    train(found)
    assert layers_without_fp8(found) == ("layers.0.mlp.gate",)


@pytest.mark.parametrize(
    ("recipe", "rules", "said"),
    [
        (RowwiseRecipe(), (), "has no recipe rowwise"),
        (FixedRecipe(), (), "has no recipe fixed"),
        (CurrentRecipe(format="e2m1"), (), "has no recipe current"),
        (BlockRecipe(), (PolicyRule(layers="*.up", gemms=("forward",), recipe=Bf16Recipe()),), "three GEMMs of a layer"),
        (
            DELAYED,
            (PolicyRule(layers="*.up", gemms=("data_gradient", "weight_gradient"), recipe=Bf16Recipe()),),
            "never runs the forward GEMM alone",
        ),
    ],
)
def test_what_the_library_cannot_is_refused(recipe: Recipe, rules: tuple[PolicyRule, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        model(recipe, *rules)


def test_without_a_gpu_or_the_library_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(UsageError, match="not installed here"):
        model(CurrentRecipe())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="no CUDA GPU"):
        model(CurrentRecipe())
