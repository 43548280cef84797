"""Linear layers: three GEMMs over the operands that they say they use, and low-precision copies that are never stale."""

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, FixedRecipe, Recipe
from fp8migrate.worker import checkpoint
from fp8migrate.worker.backends.converted import forward_mode
from fp8migrate.worker.backends.emulated import EmulatedLinear
from fp8migrate.worker.data.sampling import training_stream
from fp8migrate.worker.gemm import Gemm
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.quantizers import Quantizer, end_pass, quantizers
from fp8migrate.worker.tasks.train import TrainingState, document_losses, move_one_ulp, update, warm_scales, weights_sha256
from tests.worker import runs
from tests.worker.runs import BF16, CURRENT, DELAYED, OFF, TRAINING, new_state

T, K, N = 24, 32, 16
FLOAT32_OVER_BF16, NATIVE = Gemm(native=False, on_cuda=False), Gemm(native=True, on_cuda=False)
every_gemm = pytest.mark.parametrize("gemm", [FLOAT32_OVER_BF16, NATIVE], ids=["float32", "native"])


def operands() -> tuple[Tensor, Tensor, Tensor]:
    """x [T, K], w [N, K], dy [T, N]: of the sizes met in training, with one outlier."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(T, K, generator=generator)
    x[3, 5] = 40.0
    return x, torch.randn(N, K, generator=generator) * 0.02, torch.randn(T, N, generator=generator) * 1e-3


def layer_of(weight: Tensor, gemm: Gemm, recipe: Recipe | None = None) -> Linear:
    plain = Linear(K, N)
    with torch.no_grad():
        plain.weight.copy_(weight)
    layer = plain if recipe is None else EmulatedLinear(plain, dict.fromkeys(GEMMS, recipe))
    layer.gemm = gemm
    return layer


def step(layer: Linear, x: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx and dw."""
    x = x.clone().requires_grad_()
    layer.weight.grad = None
    y = layer(x)
    y.backward(dy)
    assert x.grad is not None
    assert layer.weight.grad is not None
    return y.detach(), x.grad, layer.weight.grad


def bf16(x: Tensor) -> NDArray[np.float64]:
    return x.numpy().astype(ml_dtypes.bfloat16).astype(np.float64)


def on_grid(x: Tensor, dtype: type, largest: float, scale: float | None = None) -> NDArray[np.float64]:
    """x as FP8 holds it under a scale (none: the current one), scaled back; by ml_dtypes, not by the code under test."""
    rounded = x.numpy().astype(ml_dtypes.bfloat16).astype(np.float32)
    factor = np.float32(largest / np.abs(rounded).max()) if scale is None else np.float32(scale)
    return np.clip(rounded * factor, -largest, largest).astype(dtype).astype(np.float64) / float(factor)


def assert_one_bf16_rounding(found: Tensor, a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    """found = a · b but for one rounding to BF16 and the order of a float32 sum."""
    exact, size = a @ b, np.abs(a) @ np.abs(b)
    error = np.abs(found.numpy() - exact)
    assert (error <= np.abs(exact) * 2**-8 + size * 2**-20).all()
    assert torch.equal(found, found.bfloat16().float())


@every_gemm
def test_a_bf16_layer_multiplies_bf16_operands(gemm: Gemm) -> None:
    x, w, dy = operands()
    y, dx, dw = step(layer_of(w, gemm), x, dy)
    assert_one_bf16_rounding(y, bf16(x), bf16(w).T)
    assert_one_bf16_rounding(dx, bf16(dy), bf16(w))
    assert_one_bf16_rounding(dw, bf16(dy).T, bf16(x))


@every_gemm
@pytest.mark.parametrize(
    ("recipe", "forward", "backward"),
    [
        (CurrentRecipe(), (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)),
        (CurrentRecipe(format="e4m3"), (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e4m3fn, 448.0)),
        (CurrentRecipe(format="e2m1"), (ml_dtypes.float4_e2m1fn, 6.0), (ml_dtypes.float4_e2m1fn, 6.0)),
        (FixedRecipe(scale=16), (ml_dtypes.float8_e4m3fn, 448.0, 16.0), (ml_dtypes.float8_e5m2, 57344.0, 16.0)),
    ],
    ids=["hybrid", "e4m3", "e2m1", "fixed"],
)
def test_an_emulated_layer_multiplies_fp8_operands_forward_and_backward(
    gemm: Gemm, recipe: Recipe, forward: tuple[type, float], backward: tuple[type, float]
) -> None:
    """The backward GEMMs take the quantised x and w of the forward one, and dy in the gradient's format."""
    x, w, dy = operands()
    y, dx, dw = step(layer_of(w, gemm, recipe), x, dy)
    x_low, w_low, dy_low = on_grid(x, *forward), on_grid(w, *forward), on_grid(dy, *backward)
    assert_one_bf16_rounding(y, x_low, w_low.T)
    assert_one_bf16_rounding(dx, dy_low, w_low)
    assert_one_bf16_rounding(dw, dy_low.T, x_low)


def test_a_delayed_layer_uses_the_scales_of_earlier_passes() -> None:
    x, w, dy = operands()
    layer = layer_of(w, FLOAT32_OVER_BF16, DelayedRecipe(amax_history_len=4))
    y, _, _ = step(layer, x, dy)
    e4m3, e5m2 = (ml_dtypes.float8_e4m3fn, 448.0), (ml_dtypes.float8_e5m2, 57344.0)
    assert_one_bf16_rounding(y, on_grid(x, *e4m3, 1.0), on_grid(w, *e4m3, 1.0).T)
    end_pass(layer)
    with torch.no_grad():
        layer.weight.mul_(2)
    y, dx, dw = step(layer, 3 * x, 4 * dy)
    amaxes = [np.abs(bf16(t)).max() for t in (x, w, dy)]
    x_low, w_low = on_grid(3 * x, *e4m3, 448 / amaxes[0]), on_grid(2 * w, *e4m3, 448 / amaxes[1])
    dy_low = on_grid(4 * dy, *e5m2, 57344 / amaxes[2])
    assert np.abs(x_low).max() == pytest.approx(amaxes[0])  # the outlier grew and is cut off
    assert_one_bf16_rounding(y, x_low, w_low.T)
    assert_one_bf16_rounding(dx, dy_low, w_low)
    assert_one_bf16_rounding(dw, dy_low.T, x_low)


@pytest.mark.parametrize("recipe", [None, CurrentRecipe(), CurrentRecipe(format="e2m1")], ids=["bf16", "hybrid", "e2m1"])
def test_native_and_float32_gemms_agree_up_to_accumulation(recipe: Recipe | None) -> None:
    x, w, dy = operands()
    found = [step(layer_of(w, gemm, recipe), x, dy) for gemm in (FLOAT32_OVER_BF16, NATIVE)]
    for a, b in zip(*found, strict=True):
        differing = (a != b).double().mean()
        assert differing < 0.02
        torch.testing.assert_close(a, b, rtol=2**-7, atol=float(a.abs().max()) * 2**-16)


def test_leading_dimensions_and_a_needless_gradient() -> None:
    x, w, _ = operands()
    layer = layer_of(w, FLOAT32_OVER_BF16)
    assert torch.equal(layer(x.view(2, 3, 4, K)).view(T, N), layer(x))
    layer(x).sum().backward()  # x is no variable: only dw is computed
    assert layer.weight.grad is not None
    with torch.no_grad():
        assert layer(x).requires_grad is False


def some_batch(number: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(number).integers(97, 123, (4, 17), dtype=np.uint8)


def test_without_a_recipe_the_modules_change_no_bit() -> None:
    """The control arm: a gap to the baseline would be the module swap."""
    digests, losses = [], []
    for precision in (BF16, OFF):
        state = new_state(precision)
        losses.append([update(state, TRAINING, some_batch(i), 1e-2) for i in range(3)])
        digests.append(weights_sha256(state.model))
    assert isinstance(state.model.lm_head, EmulatedLinear)
    assert losses[0] == losses[1]
    assert digests[0] == digests[1]


def test_fp8_changes_the_numbers() -> None:
    losses = [update(new_state(precision), TRAINING, some_batch(), 1e-2) for precision in (BF16, CURRENT)]
    assert losses[0] != losses[1]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=0.01)


def foreach(state: TrainingState) -> None:
    state.optimizer = torch.optim.AdamW(state.model.parameters(), lr=1e-2, foreach=True)


def fused_step(state: TrainingState, folder: Path) -> None:
    update(state, TRAINING, some_batch(), 1e-2)


def foreach_step(state: TrainingState, folder: Path) -> None:
    foreach(state)
    update(state, TRAINING, some_batch(), 1e-2)


def restored(state: TrainingState, folder: Path) -> None:
    other = new_state(BF16, TRAINING.model_copy(update={"seed": 9}))
    path = folder / "step.safetensors"
    checkpoint.save(path, checkpoint.training_state(other.model, other.optimizer), 0, "", 0)
    checkpoint.restore(state.model, state.optimizer, checkpoint.load(path), same_run=False)


def moved_one_ulp(state: TrainingState, folder: Path) -> None:
    # Far from a BF16 midpoint no copy shows an ulp: put every weight right below one, and move until it has crossed.
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.fill_(1 + 2.0**-8)  # the midpoint of two BF16 values
    state.model(torch.from_numpy(some_batch().astype(np.int64))[:, :-1])
    move_one_ulp(state.model, 0)


@pytest.mark.parametrize("change", [fused_step, foreach_step, restored, moved_one_ulp])
@pytest.mark.parametrize("precision", [BF16, OFF, CURRENT], ids=["bf16", "off", "current"])
def test_the_copy_of_a_weight_follows_the_weight(
    change: Callable[[TrainingState, Path], None], precision: runs.Precision, tmp_path: Path
) -> None:
    """Same logits as a model that never held a copy of the old weights."""
    state, fresh = new_state(precision), new_state(precision)
    tokens = torch.from_numpy(some_batch().astype(np.int64))[:, :-1]
    before = state.model(tokens).detach()
    change(state, tmp_path)
    after = state.model(tokens).detach()
    fresh.model.load_state_dict(state.model.state_dict())
    assert torch.equal(after, fresh.model(tokens).detach())
    assert not torch.equal(after, before)


def quantizer(layer: nn.Module, name: str) -> Quantizer:
    found = layer.get_submodule(f"quantizers.{name}")
    assert isinstance(found, Quantizer)
    return found


def weights_quantised(state: TrainingState) -> set[int]:
    layers = [module for module in state.model.modules() if isinstance(module, EmulatedLinear) and len(module.quantizers)]
    return {quantizer(layer, "weight").tally.quantized for layer in layers}


@pytest.mark.parametrize("precision", [CURRENT, DELAYED], ids=["current", "delayed"])
def test_under_accumulation_a_weight_is_quantised_once_a_step_and_inputs_once_a_pass(precision: runs.Precision) -> None:
    training = TRAINING.model_copy(update={"micro_batch_size": 1})
    state = new_state(precision, training)
    for number in range(1, 4):
        update(state, training, some_batch(number), 1e-2)
        assert weights_quantised(state) == {number}
    layer = state.model.layers[0].mlp.down
    assert [quantizer(layer, name).tally.quantized for name in ("input", "gradient")] == [12, 12]


def test_micro_batches_add_up_to_the_batch() -> None:
    """BF16 layers see the same rows either way; only the order of sums differs."""
    found = []
    for size in (1, 2, 4):
        training = TRAINING.model_copy(update={"micro_batch_size": size})
        found.append(update(new_state(BF16, training), training, some_batch(), 0.0))
    for loss, norm in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        assert norm == pytest.approx(found[0][1], rel=0.01)


@pytest.mark.parametrize("precision", [CURRENT, DELAYED], ids=["current", "delayed"])
def test_an_evaluation_in_between_leaves_training_as_it_was(precision: runs.Precision) -> None:
    held_out = runs.validation()
    ends = []
    for evaluating in (False, True):
        state = new_state(precision)
        for number in range(6):
            update(state, TRAINING, some_batch(number), 1e-2)
            if evaluating:
                for fp8 in (True, False):
                    with forward_mode(state.model, fp8=fp8):
                        document_losses(state.model, held_out)
        ends.append(checkpoint.training_state(state.model, state.optimizer))
    assert ends[0].keys() == ends[1].keys()
    assert [name for name in ends[0] if not torch.equal(ends[0][name], ends[1][name])] == []


def test_forward_modes_are_those_of_the_layers() -> None:
    """The BF16 forward of a converted model is the baseline's, bit for bit; after the context FP8 is on again."""
    tokens = torch.from_numpy(some_batch().astype(np.int64))[:, :-1]
    fp8_model, bf16_model = new_state(CURRENT).model, new_state(BF16).model
    with torch.no_grad():
        in_fp8 = fp8_model(tokens)
        with forward_mode(fp8_model, fp8=False):
            in_bf16 = fp8_model(tokens)
        assert torch.equal(in_bf16, bf16_model(tokens))
        assert torch.equal(fp8_model(tokens), in_fp8)
    assert not torch.equal(in_fp8, in_bf16)


def test_warm_passes_leave_every_scale_as_the_next_step_needs_it() -> None:
    """Weights too: a weight that stayed quantised at the cold scale of 1 would lose most of its bits in the first step."""
    state = new_state(DELAYED)
    stream = training_stream(runs.corpus(), runs.DataOrder(seed=0), TRAINING.sequence_length, TRAINING.global_batch_size)
    before = weights_sha256(state.model)
    warm_scales(state, TRAINING, stream, 0, 4)
    assert weights_sha256(state.model) == before
    layer = state.model.layers[0].mlp.down
    amax = float(layer.weight.detach().abs().max().bfloat16())
    assert float(quantizer(layer, "weight").get_buffer("scale")) == pytest.approx(448 / amax)
    inverse_scale = layer.prepare_weight("forward").factor
    assert inverse_scale is not None
    assert float(inverse_scale) == pytest.approx(amax / 448)
    assert all(float(each.get_buffer("scale")) > 1 for each in quantizers(state.model))
