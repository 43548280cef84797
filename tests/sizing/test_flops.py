"""Sites, parameters, FLOPs: against figures from outside where there are any."""

from math import isclose

import pytest

from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.sizing.flops import (
    count_parameters,
    flops_per_token,
    flops_shares,
    forward_flops_per_token,
    gemm_sites,
    step_flops_per_token,
)

LLAMA_3_8B = LlamaModel(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_hidden_size=14336, vocab_size=128256)
SMALL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
NAMES_OF_A_LAYER = (
    "attention.query",
    "attention.key",
    "attention.value",
    "attention.output",
    "mlp.gate",
    "mlp.up",
    "mlp.down",
    "attention.products",
)


def names(model: LlamaModel) -> list[str]:
    return [site.name for site in gemm_sites(model, 128)]


def test_sites_are_named_in_forward_order_with_lm_head_last() -> None:
    assert names(SMALL) == [f"layers.{layer}.{name}" for layer in (0, 1) for name in NAMES_OF_A_LAYER] + ["lm_head"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("layers.1.attention.query", (64, 64)),
        ("layers.1.attention.key", (32, 64)),
        ("layers.1.attention.value", (32, 64)),
        ("layers.1.attention.output", (64, 64)),
        ("layers.1.mlp.gate", (176, 64)),
        ("layers.1.mlp.up", (176, 64)),
        ("layers.1.mlp.down", (64, 176)),
        ("layers.1.attention.products", (0, 0)),
        ("lm_head", (256, 64)),
    ],
)
def test_shapes(name: str, shape: tuple[int, int]) -> None:
    site = next(site for site in gemm_sites(SMALL, 128) if site.name == name)
    assert (site.out_features, site.in_features) == shape


def test_llama_3_8b_has_the_published_parameter_count() -> None:
    # meta-llama/Meta-Llama-3-8B: 8,030,261,248 parameters.
    assert count_parameters(LLAMA_3_8B).total == 8_030_261_248


def test_llama_3_70b_has_the_published_parameter_count() -> None:
    # meta-llama/Meta-Llama-3-70B: 70,553,706,496 parameters.
    model = LlamaModel(num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, ffn_hidden_size=28672, vocab_size=128256)
    assert count_parameters(model).total == 70_553_706_496


def test_non_embedding_parameters_leave_out_both_vocabulary_matrices() -> None:
    count = count_parameters(SMALL)
    assert count.embedding == count.lm_head == 256 * 64
    assert count.non_embedding == count.total - 2 * 256 * 64


def test_training_costs_six_flops_per_weight_and_token_and_twelve_for_attention() -> None:
    # PaLM, arXiv 2204.02311, appendix B: 6 N + 12 · layers · hidden · sequence.
    weights = count_parameters(SMALL).attention + count_parameters(SMALL).mlp + count_parameters(SMALL).lm_head
    assert flops_per_token(SMALL, 128) == 6 * weights + 12 * 2 * 64 * 128
    assert forward_flops_per_token(SMALL, 128) * 3 == flops_per_token(SMALL, 128)


def test_recompute_costs_the_forward_of_the_decoder_layers_once_more() -> None:
    training = Training(
        num_steps=10, sequence_length=128, micro_batch_size=1, global_batch_size=1, learning_rate=1e-3, warmup_steps=1
    )
    assert step_flops_per_token(SMALL, training) == flops_per_token(SMALL, 128)
    again = step_flops_per_token(SMALL, training.model_copy(update={"recompute": True})) - flops_per_token(SMALL, 128)
    assert again == forward_flops_per_token(SMALL, 128) - 2 * count_parameters(SMALL).lm_head


def test_attention_products_have_no_weight_gradient() -> None:
    products = next(site for site in gemm_sites(SMALL, 128) if site.name == "layers.0.attention.products")
    assert (products.forward_flops, products.dgrad_flops, products.wgrad_flops) == (32768, 65536, 0)
    assert not products.is_linear


def test_shares_sum_to_one() -> None:
    assert isclose(sum(flops_shares(gemm_sites(LLAMA_3_8B, 4096)).values()), 1.0, rel_tol=1e-12)
