"""Times of single layers on a Hopper GPU: large layers gain by FP8, tiny ones lose, and every figure is one."""

from math import isfinite

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

from fp8migrate.facts.operands import GEMMS  # noqa: E402 - after the skips
from fp8migrate.facts.recipes import BlockRecipe, CurrentRecipe, DelayedRecipe, Recipe, TensorwiseRecipe  # noqa: E402
from fp8migrate.jobs import Precision  # noqa: E402
from fp8migrate.plan.schema import LlamaModel, Training  # noqa: E402
from fp8migrate.sizing.break_even import (  # noqa: E402
    BreakEven,
    BreakEvenRequest,
    LinearShape,
    by_shape_and_part,
    whole_gain_us,
)
from fp8migrate.worker.break_even import measure_break_even  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

# 128 tokens, every layer tiny; the large one is asked for besides.
MODEL = LlamaModel(num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=4, ffn_hidden_size=256)
TRAINING = Training(
    num_steps=10, sequence_length=128, micro_batch_size=1, global_batch_size=1, learning_rate=1e-3, warmup_steps=1
)
TINY = LinearShape(tokens=128, out_features=256, in_features=256)
LARGE = LinearShape(tokens=8192, out_features=14336, in_features=4096)


def measured(backend: str, *recipes: Recipe) -> BreakEven:
    if backend == "transformer_engine":
        pytest.importorskip("transformer_engine", reason="Transformer Engine is not installed")
    else:
        pytest.importorskip("torchao", reason="torchao is not installed")
    precisions = tuple(Precision(backend=backend, recipe=recipe) for recipe in recipes)  # type: ignore[arg-type]
    request = BreakEvenRequest(model=MODEL, training=TRAINING, precisions=precisions, device="cuda", extra_shapes=(LARGE,))
    return measure_break_even(request, torch.device("cuda"))


def gain_us(found: BreakEven, backend: str, recipe: Recipe, shape: LinearShape) -> float:
    gain = whole_gain_us(by_shape_and_part(found.times, backend, recipe.in_words), shape)
    assert gain is not None
    return gain


def test_large_layers_gain_and_tiny_ones_lose_under_transformer_engine() -> None:
    recipes = (CurrentRecipe(), DelayedRecipe(), BlockRecipe())
    found = measured("transformer_engine", *recipes)
    print(found.model_dump_json())
    assert found.failed == ()
    assert len(found.times) == 2 * len(recipes) * 4
    for time in found.times:
        assert all(isfinite(us) and us > 0 for us in (time.bf16_us, time.fp8_us, time.bf16_host_us, time.fp8_host_us))
    assert gain_us(found, "transformer_engine", CurrentRecipe(), LARGE) > 0
    assert gain_us(found, "transformer_engine", DelayedRecipe(), LARGE) > 0
    assert gain_us(found, "transformer_engine", CurrentRecipe(), TINY) < 0
    # A gradient alone has its own casts, so two of them take longer than both at once, up to how far times scatter.
    for recipe in recipes:
        table = by_shape_and_part(found.times, "transformer_engine", recipe.in_words)
        both = table[LARGE, "data_gradient"].fp8_us + table[LARGE, "weight_gradient"].fp8_us
        assert 0.9 * table[LARGE, "backward"].fp8_us < both < 1.6 * table[LARGE, "backward"].fp8_us


def test_products_without_casts_are_faster_than_layers() -> None:
    found = measured("transformer_engine", CurrentRecipe())
    raw = {(each.shape, each.gemm): each for each in found.raw}
    assert raw.keys() == {(shape, gemm) for shape in (TINY, LARGE) for gemm in GEMMS}
    forward = raw[LARGE, "forward"]
    assert forward.fp8_us is not None
    assert forward.fp8_us < forward.bf16_us
    times = by_shape_and_part(found.times, "transformer_engine", CurrentRecipe().in_words)
    assert forward.fp8_us < times[LARGE, "forward"].fp8_us
    assert 0.8 < forward.bf16_us / times[LARGE, "forward"].bf16_us < 1.25


def test_torchao_compiled_gains_at_the_large_layer() -> None:
    found = measured("torchao", TensorwiseRecipe())
    print(found.model_dump_json())
    assert found.failed == ()
    assert gain_us(found, "torchao", TensorwiseRecipe(), LARGE) > 0
