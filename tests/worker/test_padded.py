"""Padded layers: the same numbers, gradients of the layer's own shape, parameters and scaling state under their names."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import (
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Mxfp8Recipe,
    Recipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.sizing.policy import Padding
from fp8migrate.worker.backends import BACKENDS, convert
from fp8migrate.worker.backends.converted import converted_layers, forward_mode, layers_without_fp8, tensors_quantized
from fp8migrate.worker.backends.emulated import EmulatedLinear
from fp8migrate.worker.backends.padded import PaddedLinear, padded
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.llama import Llama, token_losses

ODD = LlamaModel(num_layers=1, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=170)
PADDED = ("layers.0.mlp.gate", "layers.0.mlp.up", "layers.0.mlp.down")
TOKENS, IN, OUT = 30, 40, 50
EVEN = Padding(tokens=16, features=16)
PER_TENSOR: tuple[Recipe, ...] = (CurrentRecipe(), DelayedRecipe(amax_history_len=4), TensorwiseRecipe())
per_tensor = pytest.mark.parametrize("recipe", PER_TENSOR, ids=lambda recipe: recipe.kind)


def whole_numbers(*shape: int, seed: int) -> Tensor:
    """Small ones: after a cast sums of products of them are exact, in any order."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


def source(bias: bool = False) -> nn.Linear:
    layer = nn.Linear(IN, OUT, bias=bias)
    with torch.no_grad():
        layer.weight.copy_(whole_numbers(OUT, IN, seed=1))
        if bias:
            layer.bias.copy_(whole_numbers(OUT, seed=2))
    return layer


def results(layer: Linear, dy_seed: int = 3) -> tuple[Tensor, ...]:
    """y and the gradients of the input and of every parameter."""
    x = whole_numbers(2, TOKENS // 2, IN, seed=4).requires_grad_()
    y = layer(x)
    wanted = [x, *layer.parameters()]
    return (y.detach(), *torch.autograd.grad(y, wanted, whole_numbers(2, TOKENS // 2, OUT, seed=dy_seed)))


@per_tensor
@pytest.mark.parametrize("bias", [False, True])
def test_padded_is_unpadded_bit_for_bit_with_a_scale_per_tensor(recipe: Recipe, bias: bool) -> None:
    recipes = dict.fromkeys(GEMMS, recipe)
    plain = EmulatedLinear(source(bias), recipes, "layer")
    layer = padded(EmulatedLinear, EVEN)(source(bias), recipes, "layer")
    for seed in range(3):  # delayed scales move on
        for found, expected in zip(results(layer, seed), results(plain, seed), strict=True):
            assert found.shape == expected.shape
            assert torch.equal(found, expected)


@pytest.mark.parametrize("recipe", [BlockRecipe(), Mxfp8Recipe(), RowwiseRecipe()], ids=lambda recipe: recipe.kind)
def test_scales_of_blocks_and_rows_are_those_of_what_is_there(recipe: Recipe) -> None:
    """The emulation takes odd shapes as they are: its last blocks are what is left of the tensor."""
    recipes = dict.fromkeys(GEMMS, recipe)
    expected = results(EmulatedLinear(source(), recipes))
    found = results(padded(EmulatedLinear, Padding(32, 32))(source(), recipes, ""))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("recipe", [TensorwiseRecipe(), RowwiseRecipe()], ids=lambda recipe: recipe.kind)
def test_torchaos_layer_padded_is_our_emulation(recipe: Recipe) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    recipes = dict.fromkeys(GEMMS, recipe)
    layer = padded(BACKENDS["torchao"](Precision()).layer, EVEN)(source(), recipes, "layer")
    for found, expected in zip(results(layer), results(EmulatedLinear(source(), recipes)), strict=True):
        assert found.shape == expected.shape
        assert (found.float() - expected.float()).norm() <= 4e-3 * expected.float().norm()  # torchao's layer gives BF16


def model(precision: Precision) -> Llama:
    found = Llama(ODD, 32, seed=1)
    convert(found, precision, 4 * 32)
    return found


def batch() -> Tensor:
    return torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(3))


def test_a_model_pads_what_fp8_does_not_take_and_says_so() -> None:
    found = Llama(ODD, 32, seed=1)
    before = dict(found.named_parameters())
    conversion = convert(found, Precision(backend="emulated", recipe=CurrentRecipe(), odd_shapes="pad"), 4 * 32)
    reasons = {layer.name: layer.reason for layer in conversion.layers if layer.name in PADDED}
    words = CurrentRecipe().in_words
    assert reasons["layers.0.mlp.up"] == f"{words}; padded: out_features 170 → 176"
    assert reasons["layers.0.mlp.down"] == f"{words}; padded: in_features 170 → 176"
    assert all(layer.converted for layer in conversion.layers if layer.shape != (0, 0))
    assert [name for name, layer in found.named_modules() if isinstance(layer, PaddedLinear)] == list(PADDED)
    assert len(converted_layers(found)) == 8
    assert {name: id(p) for name, p in found.named_parameters()} == {name: id(p) for name, p in before.items()}
    token_losses(found, batch()).mean().backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.shape == p.shape for p in found.parameters())
    assert tensors_quantized(found) == 8 * 3 + 3  # a padded weight is quantised for the data gradient again
    assert layers_without_fp8(found) == ()


def test_without_padding_those_layers_stay_in_bf16() -> None:
    found = model(Precision(backend="emulated", recipe=CurrentRecipe()))
    assert all(not isinstance(found.get_submodule(name), EmulatedLinear | PaddedLinear) for name in PADDED)


def test_scaling_state_has_the_names_that_it_has_without_padding() -> None:
    recipe = DelayedRecipe(amax_history_len=4)
    found = model(Precision(backend="emulated", recipe=recipe, odd_shapes="pad"))
    even = Llama(ODD.model_copy(update={"ffn_hidden_size": 176}), 32, seed=1)
    convert(even, Precision(backend="emulated", recipe=recipe), 4 * 32)
    assert found.state_dict().keys() == even.state_dict().keys()
    assert dict(found.named_buffers()).keys() == dict(even.named_buffers()).keys()


def test_with_fp8_off_it_is_the_plain_model_bit_for_bit() -> None:
    off, plain = model(Precision(backend="emulated", recipe=CurrentRecipe(), odd_shapes="pad")), model(Precision())
    with forward_mode(off, fp8=False), torch.no_grad():
        assert torch.equal(off(batch()[:, :-1]), plain(batch()[:, :-1]))
    assert tensors_quantized(off) == 0


def test_an_evaluation_leaves_no_trace_and_a_copy_is_one_of_its_own() -> None:
    found = model(Precision(backend="emulated", recipe=DelayedRecipe(amax_history_len=4), odd_shapes="pad"))
    token_losses(found, batch()).mean().backward()  # type: ignore[no-untyped-call]
    before = {name: buffer.clone() for name, buffer in found.named_buffers()}
    with forward_mode(found, fp8=True), torch.no_grad():
        found(batch()[:, :-1])
    assert all(torch.equal(before[name], buffer) for name, buffer in found.named_buffers())
    found.zero_grad()
    copied = copy.deepcopy(found)
    with torch.no_grad():
        expected = found(batch()[:, :-1])
        for parameter in found.parameters():
            parameter.mul_(2)
        assert torch.equal(copied(batch()[:, :-1]), expected)


def test_a_changed_weight_is_used_and_no_tokens_are_no_tokens() -> None:
    layer = padded(EmulatedLinear, EVEN)(source(), dict.fromkeys(GEMMS, CurrentRecipe()), "")
    x = whole_numbers(TOKENS, IN, seed=4)
    first = layer(x)
    with torch.no_grad():
        layer.weight.mul_(2)
    assert torch.equal(layer(x), 2 * first)
    assert layer(x[:0]).shape == (0, OUT)
