"""Transformer Engine's casts, scaling state and linear layers against our emulation of them, on a Hopper GPU."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a Hopper GPU", allow_module_level=True)

from torch import Tensor, nn  # noqa: E402 - after the skips

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    te = pytest.importorskip("transformer_engine.pytorch", reason="Transformer Engine is not installed")
    import transformer_engine_torch as tex
    from transformer_engine.common import recipe as te_recipe
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager, get_fp8_te_dtype

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo  # noqa: E402
from fp8migrate.facts.operands import GEMMS, AmaxHistory, Gemm, Operand, ScaleRule, TensorName  # noqa: E402
from fp8migrate.facts.recipes import BlockRecipe, CurrentRecipe, DelayedRecipe, Recipe  # noqa: E402
from fp8migrate.worker.backends.emulated import EmulatedLinear  # noqa: E402
from fp8migrate.worker.quantize import largest  # noqa: E402
from fp8migrate.worker.quantizers import Quantizer, end_pass  # noqa: E402
from fp8migrate.worker.scaling import FLOAT32_MAX, next_scales  # noqa: E402
from tests.gpu.products import SHAPES, Step, assert_as_exact, exact_products, layer_inputs, step  # noqa: E402
from tests.low_precision import (  # noqa: E402
    FINITE,
    alike,
    assert_same_codes,
    assert_same_floats,
    codes,
    every_amax,
    hard_input,
    quantized,
    unpacked,
)
from tests.low_precision import SHAPES as CAST_SHAPES  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

# Transformer Engine's amax skips NaNs, ours does not: a tensor with one is lost either way, and not compared.
TE_INPUTS = (*FINITE, "infinite")
TE_DTYPES = {E4M3.name: tex.DType.kFloat8E4M3, E5M2.name: tex.DType.kFloat8E5M2}
TE_FORMATS = {E4M3.name: te_recipe.Format.E4M3, "hybrid": te_recipe.Format.HYBRID}
both_formats = pytest.mark.parametrize("info", [E4M3, E5M2], ids=lambda info: info.name)
every_input = pytest.mark.parametrize("name", TE_INPUTS)
every_shape = pytest.mark.parametrize("shape", [*CAST_SHAPES, (200, 272)], ids=str)


@pytest.fixture(autouse=True)
def no_layers_of_other_tests() -> Iterator[None]:
    """Transformer Engine keeps every delayed layer's state in one global place."""
    FP8GlobalStateManager.reset()
    yield
    FP8GlobalStateManager.reset()


def assert_same_tensor(x: Tensor, ours: Tensor, inverse: Tensor, theirs: Tensor, info: FormatInfo) -> None:
    """Of one scale: codes, the transposed copy, the inverse scale."""
    assert_same_floats("inverse scale", inverse.reshape(1), theirs._scale_inv.reshape(1))
    assert_same_codes("values", ours, alike(theirs._data.view(torch.uint8), info), x)
    assert_same_codes("transposed values", ours.t(), alike(theirs._transpose.view(torch.uint8), info), x.t())


@both_formats
@every_input
@every_shape
def test_a_cast_with_a_given_scale(info: FormatInfo, name: str, shape: tuple[int, int]) -> None:
    x = hard_input(name, shape, "cuda")
    for number in (1.0, 37.25, 448 / 3.140625, 2.0**-20, FLOAT32_MAX):
        scale, amax = torch.full((), number, device="cuda"), torch.zeros(1, device="cuda")
        theirs = te.Float8Quantizer(scale, amax, TE_DTYPES[info.name])(x)
        found, ours = quantized(x, Operand(info, history=AmaxHistory(1, "max", 0)), 1, scale)
        assert_same_tensor(x, ours, found.inverse_scale, theirs, info)
        assert_same_floats("amax", largest(x).reshape(1), amax)


@both_formats
@pytest.mark.parametrize("powers_of_two", [False, True], ids=["float32", "powers of two"])
@every_input
@every_shape
def test_current_scaling(info: FormatInfo, powers_of_two: bool, name: str, shape: tuple[int, int]) -> None:
    x = hard_input(name, shape, "cuda")
    quantizer = te.Float8CurrentScalingQuantizer(TE_DTYPES[info.name], x.device, force_pow_2_scales=powers_of_two)
    rule: ScaleRule = "power_of_two" if powers_of_two else "float32"
    found, ours = quantized(x, Operand(info, scale=rule), 1)
    assert_same_tensor(x, ours, found.inverse_scale, quantizer(x), info)


def check_blocks(x: Tensor, info: FormatInfo, dimensions: int) -> None:
    """Row-wise and column-wise (transposed) as Transformer Engine keeps both; its scales are padded to multiples of 4."""
    quantizer = te.Float8BlockQuantizer(
        TE_DTYPES[info.name], rowwise=True, columnwise=True, force_pow_2_scales=True, block_scaling_dim=dimensions
    )
    theirs = quantizer(x)
    operand = Operand(info, (1 if dimensions == 1 else 128, 128), "power_of_two")
    for along, values, scales in (
        (1, theirs._rowwise_data, theirs._rowwise_scale_inv),
        (0, theirs._columnwise_data.t(), theirs._columnwise_scale_inv),
    ):
        found, ours = quantized(x, operand, along)
        inverse = found.inverse_scale
        # In the layout of the scales that Transformer Engine keeps: transposed once by being 1D, once by being column-wise.
        if (dimensions == 1) != (along == 0):
            inverse = inverse.t()
        rows, cols = inverse.shape
        what = "row-wise" if along == 1 else "column-wise"
        assert_same_floats(f"{what} scales", inverse, scales[:rows, :cols])
        assert_same_codes(f"{what} values", ours, alike(values.contiguous().view(torch.uint8), info), x)


@both_formats
@pytest.mark.parametrize("dimensions", [1, 2], ids=["1 x 128", "128 x 128"])
@every_input
@every_shape
def test_block_scaling(info: FormatInfo, dimensions: int, name: str, shape: tuple[int, int]) -> None:
    check_blocks(hard_input(name, shape, "cuda"), info, dimensions)


@both_formats
def test_block_scaling_for_every_amax(info: FormatInfo) -> None:
    check_blocks(every_amax(128, "cuda"), info, 1)


@pytest.mark.parametrize("margin", [0, 3, 10])
@pytest.mark.parametrize("forward", [True, False], ids=["e4m3", "e5m2"])
def test_a_delayed_scale_for_every_amax(margin: int, forward: bool) -> None:
    amax_n = every_amax(2, "cuda")[1:].float().abs().amax(dim=1)
    amax_n = torch.cat((amax_n, torch.tensor([torch.inf], device="cuda")))
    theirs, history = torch.full_like(amax_n, 3.0), amax_n[None].clone()
    dtype = get_fp8_te_dtype(te_recipe.DelayedScaling(fp8_format=te_recipe.Format.HYBRID), forward)
    tex.fused_amax_and_scale_update_after_reduction(amax_n, [history], [theirs], "max", dtype, float(margin))
    info = E4M3 if forward else E5M2
    ours = next_scales(amax_n[:, None], torch.full_like(amax_n, 3.0), info.max_finite, AmaxHistory(1, "max", margin))
    assert_same_floats("scales", ours, theirs)


class Both:
    """One te.Linear under delayed scaling, and our quantisers of its three tensors."""

    def __init__(self, length: int, compute: str, margin: int, form: str = "hybrid") -> None:
        self.recipe = te_recipe.DelayedScaling(
            margin=margin, fp8_format=TE_FORMATS[form], amax_history_len=length, amax_compute_algo=compute
        )
        ours = DelayedRecipe(format=form, amax_history_len=length, amax_compute=compute, margin=margin)
        (x, w), (dy, _) = ours.operands("forward"), ours.operands("data_gradient")
        self.quantizers = nn.ModuleDict({"input": Quantizer(x), "weight": Quantizer(w), "gradient": Quantizer(dy)}).cuda()
        self.layer = te.Linear(128, 96, bias=False, params_dtype=torch.bfloat16, device="cuda")

    def run_pass(self, x: Tensor, w: Tensor, dy: Tensor) -> None:
        with torch.no_grad():
            self.layer.weight.copy_(w)
        te_step(self.layer, self.recipe, x, dy)
        for name, tensor in (("input", x), ("weight", w), ("gradient", dy)):
            self.quantizers[name].quantize(tensor, 1)
        end_pass(self.quantizers)

    def assert_same_state(self, when: str) -> None:
        forward, backward = self.layer.fp8_meta["scaling_fwd"], self.layer.fp8_meta["scaling_bwd"]
        for name, state, index in (("input", forward, 0), ("weight", forward, 1), ("gradient", backward, 0)):
            scale, history = (self.quantizers[name].get_buffer(buffer) for buffer in ("scale", "amax_history"))
            assert_same_floats(f"{when}, {name}: scale", scale.reshape(1), state.scale[index].reshape(1))
            assert_same_floats(f"{when}, {name}: history", history, state.amax_history[:, index])


def te_step(layer: nn.Module, recipe: te_recipe.Recipe, x: Tensor, dy: Tensor) -> Step:
    """y, dx, dw."""
    x = x.detach().clone().requires_grad_()
    layer.weight.grad = None
    with te.autocast(enabled=True, recipe=recipe):
        y = layer(x)
    y.backward(dy)
    return y.detach(), x.grad, layer.weight.grad  # type: ignore[return-value]


def small_inputs(seed: int, size: float = 1.0) -> Step:
    x, w, dy = layer_inputs(64, 128, 96, seed)
    return x * size, w * size, dy / size


# Growing, shrinking so long that a history of 16 forgets, and growing again.
SIZES = (1, 3, 0.5, 20, *(0.1 / (1 + i) for i in range(18)), 1e-3, 7, 7, 1e4, 1)


@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize("compute", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize("form", ["hybrid", "e4m3"])
def test_histories_and_scales_of_delayed_scaling(length: int, compute: str, margin: int, form: str) -> None:
    both = Both(length, compute, margin, form)
    for number, size in enumerate(SIZES):
        both.run_pass(*small_inputs(number, size))
        both.assert_same_state(f"after pass {number + 1}")


@pytest.mark.parametrize("compute", ["max", "most_recent"])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["input", "weight", "gradient"])
def test_histories_and_scales_where_a_tensor_is_infinite_once(compute: str, which: int) -> None:
    both = Both(4, compute, 0)
    for number in range(8):
        tensors = small_inputs(number)
        if number == 2:
            tensors[which][3, 5] = torch.inf
        both.run_pass(*tensors)
        both.assert_same_state(f"after pass {number + 1}")


@pytest.mark.parametrize("compute", ["max", "most_recent"])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["input", "weight", "gradient"])
def test_histories_and_scales_where_a_tensor_is_zero_for_some_passes(compute: str, which: int) -> None:
    """An amax of 0 leaves Transformer Engine's history and scale as they are: nothing rolls, nothing is forgotten."""
    both = Both(4, compute, 0)
    for number in range(12):
        tensors = small_inputs(number, 1 / (1 + number))
        if 1 < number < 8:
            tensors[which].zero_()
        both.run_pass(*tensors)
        both.assert_same_state(f"after pass {number + 1}")


def test_histories_and_scales_where_a_weight_is_quantised_once_for_several_micro_batches() -> None:
    """As in training: is_first_microbatch in Transformer Engine, the weight's version in our layers."""
    both = Both(4, "max", 0)
    for number in range(12):
        x, w, dy = small_inputs(number, 1 / (1 + number))
        first = number % 3 == 0
        with torch.no_grad():
            if first:
                both.layer.weight.copy_(w)
        with te.autocast(enabled=True, recipe=both.recipe):
            y = both.layer(x.requires_grad_(), is_first_microbatch=first)
        y.backward(dy)
        for name, tensor in (("input", x), ("weight", w), ("gradient", dy)):
            if first or name != "weight":
                both.quantizers[name].quantize(tensor.detach(), 1)
        end_pass(both.quantizers)
        both.assert_same_state(f"after pass {number + 1}")


def split(forward: bool, backward: bool) -> dict[str, te_recipe.MMParams]:
    names = {"fp8_gemm_fprop": forward, "fp8_gemm_dgrad": backward, "fp8_gemm_wgrad": backward}
    return {name: te_recipe.MMParams(use_split_accumulator=value) for name, value in names.items()}


def powers_of_two(recipe: Any) -> Any:
    """The recipe's own use_power_2_scales reaches no quantiser: they read these, which are made before it is set."""
    for name in ("fp8_quant_fwd_inp", "fp8_quant_fwd_weight", "fp8_quant_bwd_grad"):
        setattr(recipe, name, te_recipe.QParams(power_2_scale=True))
    return recipe


LAYERS: dict[str, tuple[Recipe, te_recipe.Recipe, dict[Gemm, bool | None]]] = {
    "current": (
        CurrentRecipe(),
        te_recipe.Float8CurrentScaling(),
        {"forward": True, "data_gradient": False, "weight_gradient": False},
    ),
    "current, fast": (
        CurrentRecipe(),
        te_recipe.Float8CurrentScaling(**split(False, False)),
        dict.fromkeys(GEMMS, True),
    ),
    "current, exact": (
        CurrentRecipe(),
        te_recipe.Float8CurrentScaling(**split(True, True)),
        dict.fromkeys(GEMMS, False),
    ),
    "current, powers of two": (
        CurrentRecipe(use_power_2_scales=True),
        powers_of_two(te_recipe.Float8CurrentScaling()),
        {"forward": True, "data_gradient": False, "weight_gradient": False},
    ),
    "current, e4m3": (
        CurrentRecipe(format="e4m3"),
        te_recipe.Float8CurrentScaling(fp8_format=te_recipe.Format.E4M3),
        {"forward": True, "data_gradient": False, "weight_gradient": False},
    ),
    "block": (BlockRecipe(), te_recipe.Float8BlockScaling(), dict.fromkeys(GEMMS, False)),
}


def linear(w: Tensor) -> nn.Linear:
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(w)
    return layer


def te_linear(w: Tensor) -> nn.Module:
    layer: nn.Module = te.Linear(w.shape[1], w.shape[0], bias=False, params_dtype=torch.bfloat16, device="cuda")
    with torch.no_grad():
        layer.weight.copy_(w)
    return layer


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layers_products_are_those_of_our_operands(name: str, shape: tuple[int, int, int]) -> None:
    recipe, theirs, accumulation = LAYERS[name]
    x, w, dy = layer_inputs(*shape)
    exact = exact_products(x, w, dy, recipe)
    assert_as_exact(f"Transformer Engine {name}", accumulation, te_step(te_linear(w), theirs, x, dy), exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["current", "current, powers of two", "current, e4m3", "block"])
def test_our_layers_products_are_those_of_our_operands(name: str, shape: tuple[int, int, int]) -> None:
    recipe = LAYERS[name][0]
    x, w, dy = layer_inputs(*shape)
    layer = EmulatedLinear(linear(w), dict.fromkeys(GEMMS, recipe))
    exact = exact_products(x, w, dy, recipe)
    assert_as_exact(f"emulated {name}", dict.fromkeys(GEMMS), step(layer, x, dy), exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_delayed_layers_products_after_a_first_pass(shape: tuple[int, int, int]) -> None:
    """Transformer Engine's layer and ours, with the scales that the first pass left; the second pass saturates a little."""
    recipe, theirs = DelayedRecipe(amax_history_len=16), te_recipe.DelayedScaling(amax_history_len=16)
    x, w, dy = layer_inputs(*shape)
    real, emulated = te_linear(w), EmulatedLinear(linear(w), dict.fromkeys(GEMMS, recipe))
    te_step(real, theirs, x, dy)
    step(emulated, x, dy)
    end_pass(emulated)
    scales: dict[TensorName, Tensor] = {
        name: emulated.quantizers[name].get_buffer("scale").clone() for name in ("input", "weight", "gradient")
    }
    x, w, dy = layer_inputs(*shape, seed=1)
    with torch.no_grad():
        real.weight.copy_(w)
        emulated.weight.copy_(w)
    exact = exact_products(x, w, dy, recipe, scales)
    fast: dict[Gemm, bool | None] = {"forward": True, "data_gradient": False, "weight_gradient": False}
    assert_as_exact("Transformer Engine delayed", fast, te_step(real, theirs, x, dy), exact)
    assert_as_exact("emulated delayed", dict.fromkeys(GEMMS), step(emulated, x, dy), exact)


def nvfp4_reference(x: Tensor, tile: tuple[int, int], rotated: bool) -> object:
    """Transformer Engine's own reference in Python: its kernels need a newer GPU."""
    module = pytest.importorskip("transformer_engine.pytorch.custom_recipes.reference_nvfp4", reason="no NVFP4 reference")
    formats = pytest.importorskip("transformer_engine.pytorch.custom_recipes.reference_utils").Fp4Formats
    return module.NVFP4QuantizerRef(formats.E2M1, quant_tile_shape=tile, with_rht=rotated).quantize(x)


@pytest.mark.parametrize("tile", [(1, 16), (16, 16)], ids=["1 x 16", "16 x 16"])
@pytest.mark.parametrize("name", FINITE)
def test_nvfp4(tile: tuple[int, int], name: str) -> None:
    for shape in CAST_SHAPES:
        x = hard_input(name, shape, "cuda")
        theirs = nvfp4_reference(x, tile, rotated=False)
        for along, pairs, scale in ((1, theirs.data, theirs.scale), (0, theirs.data_t, theirs.scale_t)):
            found, ours = quantized(x, Operand(E2M1, tile, "e4m3"), along)
            if along == 0:
                ours, inverse = ours.t(), found.inverse_scale.t()
            else:
                inverse = found.inverse_scale
            # Transformer Engine keeps a square's scale once for each of its rows.
            inverse = inverse.repeat_interleave(tile[0], 0)
            what = "row-wise" if along == 1 else "column-wise"
            assert_same_codes(f"{what} scales", codes(inverse, E4M3), alike(scale.view(torch.uint8), E4M3))
            assert_same_codes(f"{what} values", ours, alike(unpacked(pairs), E2M1), x if along == 1 else x.t())


@pytest.mark.parametrize("name", ["integers", "normal", "heavy outliers", "uneven"])
def test_nvfp4_rotated_by_the_random_hadamard_transform(name: str) -> None:
    """Sums of small integers are exact, so every code is the same; others, in another order, may fall beyond a tie."""
    for shape in CAST_SHAPES:
        generator = torch.Generator("cuda").manual_seed(0)
        whole = torch.randint(-8, 9, shape, generator=generator, device="cuda").to(torch.bfloat16)
        x = whole if name == "integers" else hard_input(name, shape, "cuda")
        theirs = nvfp4_reference(x, (1, 16), rotated=True)
        found, ours = quantized(x, Operand(E2M1, (1, 16), "e4m3", hadamard=16), 0)
        scales, their_scales = codes(found.inverse_scale.t(), E4M3), alike(theirs.scale_t.view(torch.uint8), E4M3)
        ours, values = ours.t(), alike(unpacked(theirs.data_t), E2M1)
        if name == "integers":
            assert_same_codes("scales", scales, their_scales)
            assert_same_codes("values", ours, values)
        off = int((ours != values).sum()), int((scales != their_scales).sum())
        print(f"{name} {shape}: {off[0]} of {values.numel()} values, {off[1]} of {scales.numel()} scales differ")
        assert off[0] <= 1e-3 * values.numel(), f"{off[0]} of {values.numel()} values differ"
        assert off[1] <= 1e-3 * scales.numel(), f"{off[1]} of {scales.numel()} scales differ"
