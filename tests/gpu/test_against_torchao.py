"""torchao's float8 casts and linear layers on the GPU against our emulation of them."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9):
    pytest.skip("needs a GPU with FP8 GEMMs", allow_module_level=True)

from torch import nn  # noqa: E402 - after the skips

from fp8migrate.facts.formats import E4M3, E5M2, FormatInfo  # noqa: E402
from fp8migrate.facts.operands import GEMMS, Gemm  # noqa: E402
from fp8migrate.facts.recipes import CurrentRecipe, Recipe, RowwiseHighPrecisionRecipe, RowwiseRecipe  # noqa: E402
from fp8migrate.worker.backends.emulated import EmulatedLinear  # noqa: E402
from tests.gpu.products import SHAPES, assert_as_exact, exact_products, layer_inputs, step  # noqa: E402
from tests.low_precision import INPUTS, every_amax, hard_input  # noqa: E402
from tests.low_precision import SHAPES as CAST_SHAPES  # noqa: E402
from tests.torchao_casts import check_cast, torchao_quietly  # noqa: E402

torchao_quietly()
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

both_formats = pytest.mark.parametrize("info", [E4M3, E5M2], ids=lambda info: info.name)
both_rules = pytest.mark.parametrize("powers_of_two", [False, True], ids=["float32", "powers of two"])
# torchao's tensorwise scales are those of `current`, but for amaxes below 1e-12.
RECIPES: dict[str, Recipe] = {
    "tensorwise": CurrentRecipe(),
    "rowwise": RowwiseRecipe(),
    "rowwise_with_gw_hp": RowwiseHighPrecisionRecipe(),
}


@both_formats
@both_rules
@pytest.mark.parametrize("along", [None, 0, 1], ids=["tensor", "columns", "rows"])
@pytest.mark.parametrize("name", INPUTS)
def test_casts(info: FormatInfo, powers_of_two: bool, along: int | None, name: str) -> None:
    for shape in (*CAST_SHAPES, (200, 272)):
        check_cast(hard_input(name, shape, "cuda"), info, along, powers_of_two)


@both_formats
@both_rules
def test_casts_of_rows_for_every_amax(info: FormatInfo, powers_of_two: bool) -> None:
    check_cast(every_amax(64, "cuda"), info, 1, powers_of_two)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fast", [None, True, False], ids=["as the recipe says", "fast", "exact"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_layers_products_are_those_of_our_operands(name: str, fast: bool | None, shape: tuple[int, int, int]) -> None:
    settings = torchao_quietly("torchao.float8.config")
    config = settings.Float8LinearConfig.from_recipe_name(name)
    if fast is not None:
        gemm = settings.Float8GemmConfig(use_fast_accum=fast)
        config = dataclasses.replace(config, gemm_config_output=gemm, gemm_config_grad_input=gemm, gemm_config_grad_weight=gemm)
    x, w, dy = layer_inputs(*shape)
    source = linear(w)
    layer = torchao_quietly("torchao.float8.float8_linear").Float8Linear.from_float(source, config)
    accumulation: dict[Gemm, bool | None] = {
        "forward": config.gemm_config_output.use_fast_accum,
        "data_gradient": config.gemm_config_grad_input.use_fast_accum,
        "weight_gradient": config.gemm_config_grad_weight.use_fast_accum,
    }
    recipe = RECIPES[name]
    accumulation |= {gemm: None for gemm in GEMMS if recipe.operands(gemm) is None}
    exact = exact_products(x, w, dy, recipe)
    assert_as_exact(f"torchao {name}", accumulation, step(layer, x, dy), exact)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", RECIPES)
def test_our_layers_products_are_those_of_our_operands(name: str, shape: tuple[int, int, int]) -> None:
    x, w, dy = layer_inputs(*shape)
    layer = EmulatedLinear(linear(w), dict.fromkeys(GEMMS, RECIPES[name]))
    exact = exact_products(x, w, dy, RECIPES[name])
    assert_as_exact(f"emulated {RECIPES[name].kind}", dict.fromkeys(GEMMS), step(layer, x, dy), exact)


def linear(w: torch.Tensor) -> nn.Linear:
    layer = nn.Linear(w.shape[1], w.shape[0], bias=False, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(w)
    return layer
