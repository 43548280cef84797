"""A shrunk model keeps its shape, is aligned for FP8, meets its size or is refused."""

from contextlib import suppress
from math import isclose

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fp8migrate.errors import PlanError
from fp8migrate.facts.recipes import CurrentRecipe
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.plan.shrink import (
    MAX_ASPECT_CHANGE,
    TOLERANCE,
    layer_parameters,
    learning_rate_sentence,
    shrink,
    shrunk_training,
)
from fp8migrate.sizing.flops import count_parameters, gemm_sites
from fp8migrate.sizing.policy import shape_refusal


def llama(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int) -> LlamaModel:
    return LlamaModel(num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=kv_heads, ffn_hidden_size=ffn)


REALISTIC = {
    "25M": llama(8, 512, 8, 8, 1376),
    "GPT-2 size": llama(12, 768, 12, 12, 2048),
    "Llama 3.2 1B": llama(16, 2048, 32, 8, 8192),
    "TinyLlama 1.1B": llama(22, 2048, 32, 4, 5632),
    "Llama 2 7B": llama(32, 4096, 32, 32, 11008),
    "Llama 3 8B": llama(32, 4096, 32, 8, 14336),
    "Llama 3 70B": llama(80, 8192, 64, 8, 28672),
    "Llama 3 405B": llama(126, 16384, 128, 8, 53248),
}
SMALLEST_SURE = 100_000
TRAINING = Training(
    num_steps=100, sequence_length=128, micro_batch_size=8, global_batch_size=8, learning_rate=3e-4, warmup_steps=10
)


@st.composite
def models(draw: st.DrawFn) -> LlamaModel:
    """Realistic shapes from about 1M to 700B parameters."""
    head_size = draw(st.sampled_from([32, 64, 96, 128]))
    kv_heads = draw(st.integers(1, 16))
    hidden = head_size * kv_heads * draw(st.sampled_from([1, 2, 4, 8]))
    hidden = max(hidden, 256) if hidden < 256 and 256 % head_size == 0 else hidden
    heads = hidden // head_size
    kv_heads = kv_heads if heads % kv_heads == 0 else heads
    layers = draw(st.integers(max(4, hidden // 256), max(8, hidden // 64)))
    ffn = 16 * round(hidden * draw(st.floats(2.0, 4.0)) / 16)
    return llama(layers, hidden, heads, kv_heads, ffn)


def assert_same_shape(small: LlamaModel, model: LlamaModel, factor: float) -> None:
    assert abs(layer_parameters(small) * factor / layer_parameters(model) - 1) <= TOLERANCE
    assert layer_parameters(small) <= layer_parameters(model)
    aspect = small.hidden_size * model.num_layers / (small.num_layers * model.hidden_size)
    assert 1 / MAX_ASPECT_CHANGE <= aspect <= MAX_ASPECT_CHANGE
    sites = [site for site in gemm_sites(small, 128) if site.is_linear]
    assert [refusal for site in sites if (refusal := shape_refusal(site, [CurrentRecipe()], 1024))] == []
    assert small == LlamaModel.model_validate(small.model_dump())


@pytest.mark.parametrize("factor", [2, 4, 10, 30, 100])
@pytest.mark.parametrize("name", REALISTIC)
def test_realistic_models_shrink_to_any_usual_size(name: str, factor: float) -> None:
    assert_same_shape(shrink(REALISTIC[name], factor), REALISTIC[name], factor)


@pytest.mark.parametrize("name", REALISTIC)
def test_a_tenth_keeps_head_size_and_feed_forward_ratio(name: str) -> None:
    model = REALISTIC[name]
    small = shrink(model, 10)
    assert small.head_size == model.head_size
    assert small.num_heads // small.num_kv_heads == model.num_heads // model.num_kv_heads
    assert isclose(small.ffn_hidden_size / small.hidden_size, model.ffn_hidden_size / model.hidden_size, rel_tol=0.02)


@settings(max_examples=40, deadline=None)
@given(models(), st.floats(1.5, 30))
def test_any_realistic_model_shrinks(model: LlamaModel, factor: float) -> None:
    # Below about 100k parameters whole layers of aligned sizes lie far apart, and some sizes are refused.
    assume(layer_parameters(model) / factor >= SMALLEST_SURE)
    small = shrink(model, factor)
    assert_same_shape(small, model, factor)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([2, 6, 16, 30]),
    st.integers(16, 400),
    st.floats(1, 1e6),
)
def test_odd_models_shrink_or_are_refused_but_never_grow(
    layers: int, heads: int, head_size: int, ffn: int, factor: float
) -> None:
    hidden = heads * head_size
    model = llama(layers, max(hidden, 16), heads if hidden >= 16 else 1, 1, ffn)
    small = None
    with suppress(PlanError):
        small = shrink(model, factor)
    if factor == 1:
        assert small == model
    elif small is not None:
        assert_same_shape(small, model, factor)
    else:
        assert layer_parameters(model) / factor < 300_000


def test_factor_one_returns_the_model_as_it_is_even_unaligned() -> None:
    odd = llama(3, 60, 6, 6, 171)
    assert shrink(odd, 1) is odd


def test_a_tenth_of_llama_3_8b() -> None:
    small = shrink(REALISTIC["Llama 3 8B"], 10)
    assert small == llama(13, 2048, 16, 4, 7168)
    assert count_parameters(small).non_embedding == 708_892_672  # of 6,979,588,096


def test_everything_but_the_sizes_is_kept() -> None:
    model = REALISTIC["25M"].model_copy(update={"vocab_size": 512, "rope_theta": 500000.0, "init_std": 0.01})
    small = shrink(model, 10)
    assert (small.vocab_size, small.rope_theta, small.init_std) == (512, 500000.0, 0.01)


def test_what_cannot_be_shrunk_is_refused_with_the_reason() -> None:
    with pytest.raises(PlanError) as caught:
        shrink(llama(2, 64, 4, 2, 176), 100)
    assert str(caught.value) == (
        "phases.small_scale.shrink: the layers hold 92,160 parameters; no model of this shape with sizes in multiples of 16 "
        "holds 1/100 of that, 922, to within 10%\n"
        "Choose another factor; 1 runs the model as it is."
    )


@pytest.mark.parametrize("factor", [0.5, 0, -1, float("inf"), float("nan")])
def test_factors_that_make_no_sense_are_refused(factor: float) -> None:
    with pytest.raises(PlanError, match="expected a number ≥ 1, got"):
        shrink(REALISTIC["25M"], factor)


def test_layer_parameters_are_what_the_sites_hold() -> None:
    for model in REALISTIC.values():
        count = count_parameters(model)
        assert layer_parameters(model) == count.attention + count.mlp


def test_inverse_width_raises_the_rate_by_the_ratio_of_widths() -> None:
    big, small = llama(32, 4096, 32, 8, 14336), llama(13, 2048, 16, 4, 7168)
    changed = shrunk_training(TRAINING, big, small, "inverse_width")
    assert changed == TRAINING.model_copy(update={"learning_rate": 6e-4})
    sentence = learning_rate_sentence(TRAINING, big, small, "inverse_width")
    assert sentence == "Learning rate 0.0003 × 4096 / 2048 (rule inverse_width) = 0.0006."


def test_inverse_width_is_capped_where_small_models_get_worse() -> None:
    big, small = llama(32, 4096, 32, 8, 14336), llama(2, 128, 4, 4, 336)
    assert shrunk_training(TRAINING, big, small, "inverse_width").learning_rate == 4e-3
    sentence = learning_rate_sentence(TRAINING, big, small, "inverse_width")
    assert sentence == "Learning rate 0.0003 × 4096 / 128 (rule inverse_width, capped at 0.004) = 0.004."


def test_a_rate_above_the_cap_is_never_lowered() -> None:
    hot = TRAINING.model_copy(update={"learning_rate": 1e-2})
    assert shrunk_training(hot, REALISTIC["25M"], llama(3, 256, 4, 4, 704), "inverse_width").learning_rate == 1e-2
    sentence = learning_rate_sentence(hot, REALISTIC["25M"], llama(3, 256, 4, 4, 704), "inverse_width")
    assert sentence == "Learning rate 0.01 × 512 / 256 (rule inverse_width, capped at the plan's own) = 0.01."


def test_keep_keeps_the_rate() -> None:
    assert shrunk_training(TRAINING, REALISTIC["25M"], llama(3, 256, 4, 4, 704), "keep") == TRAINING
    sentence = learning_rate_sentence(TRAINING, REALISTIC["25M"], llama(3, 256, 4, 4, 704), "keep")
    assert sentence == "Learning rate 0.0003 as in the plan (rule keep)."
