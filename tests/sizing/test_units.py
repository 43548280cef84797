"""The matrices that multiply, in each layout."""

from fp8migrate.plan.schema import LlamaModel
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.units import Layout, units

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)


def shapes(layout: Layout) -> dict[str, tuple[int, int]]:
    return {unit.name: (unit.out_features, unit.in_features) for unit in units(gemm_sites(MODEL, 128), layout)}


def test_linear_has_a_matrix_for_each_layer() -> None:
    found = shapes("linear")
    assert len(found) == 15
    assert found["layers.1.attention.key"] == (32, 64)
    assert found["lm_head"] == (256, 64)


def test_packed_puts_together_what_reads_the_same_tensor() -> None:
    found = shapes("packed")
    assert len(found) == 9
    assert found["layers.0.attention.qkv"] == (64 + 2 * 32, 64)
    assert found["layers.0.mlp.gate_up"] == (352, 64)
    assert found["layers.1.mlp.down"] == (64, 176)


def test_a_fused_feed_forward_is_in_fp8_as_a_whole() -> None:
    found = {unit.name: unit for unit in units(gemm_sites(MODEL, 128), "fused")}
    assert found["layers.0.mlp.down"].sites == ("layers.0.mlp.down",)
    assert found["layers.0.mlp.down"].together == ("layers.0.mlp.gate", "layers.0.mlp.up", "layers.0.mlp.down")
    assert found["layers.0.attention.qkv"].together == found["layers.0.attention.qkv"].sites
    assert found["layers.1.mlp.gate_up"].pattern == "layers.*.mlp.gate_up"
    assert found["lm_head"].pattern == "lm_head"
