"""The torchao backend: its layers over our weights. Without FP8 hardware its own emulation multiplies."""

import pytest
import torch
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import (
    Bf16Recipe,
    CurrentRecipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, PolicyRule
from fp8migrate.worker.backends import convert
from fp8migrate.worker.backends.converted import ConvertedLinear, forward_mode, tensors_quantized
from fp8migrate.worker.backends.emulated import EmulatedLinear
from fp8migrate.worker.backends.torchao import Torchao
from fp8migrate.worker.models.llama import Llama, token_losses

pytest.importorskip("torchao", reason="torchao is not installed")

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
RECIPES: tuple[Recipe, ...] = (TensorwiseRecipe(), RowwiseRecipe(), RowwiseHighPrecisionRecipe())
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
DOWN = "layers.*.mlp.down"


def model(precision: Precision) -> Llama:
    found = Llama(MODEL, 32, seed=1)
    convert(found, precision, 4 * 32)
    return found


def tokens() -> Tensor:
    return torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(3))


def loss_and_gradients(found: Llama) -> tuple[Tensor, dict[str, Tensor]]:
    loss = token_losses(found, tokens()).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), {name: p.grad for name, p in found.named_parameters() if p.grad is not None}


@every_recipe
def test_a_layer_computes_what_our_emulation_of_the_recipe_computes(recipe: Recipe) -> None:
    """From a BF16 weight, up to the order of sums and scales that torchao rounds once more."""
    source = nn.Linear(128, 64, bias=False)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        source.weight.copy_(torch.randn(64, 128, generator=generator).bfloat16())
    x, dy = (torch.randn(96, size, generator=generator).bfloat16() for size in (128, 64))
    found = []
    for layer in (
        Torchao(Precision()).layer(source, dict.fromkeys(GEMMS, recipe), "layer"),
        EmulatedLinear(source, dict.fromkeys(GEMMS, recipe)),
    ):
        x_in = x.clone().requires_grad_()
        y = layer(x_in)
        found.append((y, *torch.autograd.grad(y, (x_in, layer.weight), dy)))
    for theirs, ours in zip(*found, strict=True):
        assert (theirs.float() - ours.float()).norm() <= 1e-4 * ours.float().norm()


def test_parameters_keep_their_names_and_are_the_same_objects() -> None:
    found = Llama(MODEL, 32, seed=1)
    before = dict(found.named_parameters())
    convert(found, Precision(backend="torchao", recipe=TensorwiseRecipe()), 128)
    after = dict(found.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is before[name] for name in before)


@every_recipe
def test_with_fp8_off_it_is_the_plain_model_bit_for_bit(recipe: Recipe) -> None:
    precision = Precision(backend="torchao", recipe=recipe)
    off, plain = model(precision), model(Precision())
    with forward_mode(off, fp8=False), torch.no_grad():
        assert torch.equal(off(tokens()[:, :-1]), plain(tokens()[:, :-1]))
    assert tensors_quantized(off) == 0
    control = model(Precision(backend="torchao"))
    assert loss_and_gradients(control)[0] == loss_and_gradients(plain)[0]


def test_it_tells_what_it_converted_and_counts_passes() -> None:
    found = Llama(MODEL, 32, seed=1)
    conversion = convert(found, Precision(backend="torchao", recipe=RowwiseRecipe(), keep_bf16=("lm_head", DOWN)), 128)
    kept = {layer.name for layer in conversion.layers if not layer.converted}
    assert "lm_head" in kept
    assert "layers.0.mlp.down" in kept
    assert conversion.effective.startswith("torchao rowwise(")
    loss_and_gradients(found)
    assert tensors_quantized(found) == 2 * 6 * 2  # two layers of six, input and weight


def test_a_policy_can_keep_single_gemms() -> None:
    rule = PolicyRule(layers=DOWN, gemms=("weight_gradient",), recipe=Bf16Recipe())
    found = model(Precision(backend="torchao", recipe=TensorwiseRecipe(), policy=(rule,)))
    layer = found.get_submodule("layers.0.mlp.down")
    assert isinstance(layer, ConvertedLinear)
    assert layer.low_precision_gemms == set(GEMMS) - {"weight_gradient"}
    x, dy = torch.randn(128, 128), torch.randn(128, 64)
    y = layer(x)
    (dw,) = torch.autograd.grad(y, layer.weight, dy)
    exact = dy.bfloat16().float().t() @ x.bfloat16().float()
    assert torch.allclose(dw, exact, rtol=2**-7, atol=1e-3)
    assert not torch.allclose(y, x.bfloat16().float() @ layer.weight.bfloat16().float().t(), rtol=2**-7, atol=1e-3)


def test_it_refuses_a_recipe_of_another_library() -> None:
    with pytest.raises(UsageError, match=r"layers\.0\.attention\.query: torchao has no recipe current"):
        model(Precision(backend="torchao", recipe=CurrentRecipe()))
