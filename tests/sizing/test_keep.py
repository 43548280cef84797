"""Layers kept for their size or on advice: decided on the plan's model, carried over to a shrunk one by depth."""

from fp8migrate.plan.schema import Candidate, LlamaModel
from fp8migrate.sizing.keep import advised_names, counterparts, kept_layers

OWN = LlamaModel(num_layers=9, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
SMALL = LlamaModel(num_layers=3, hidden_size=32, num_heads=2, num_kv_heads=1, ffn_hidden_size=96)


def test_size_is_the_number_of_weights() -> None:
    """key and value have 32 × 64 = 2048, query and output 4096."""
    kept = dict(kept_layers(Candidate(keep_smaller_than=4096), OWN, OWN))
    assert len(kept) == 2 * 9
    assert kept["layers.8.attention.value"] == "keep_smaller_than 4096: 32 × 64 weights"
    assert kept_layers(Candidate(keep_smaller_than=2048), OWN, OWN) == ()
    assert kept_layers(Candidate(), OWN, OWN) == ()


def test_a_shrunk_model_keeps_what_the_plans_own_keeps() -> None:
    """All of its layers are smaller than 4096 weights; kept are the same two of each."""
    kept = dict(kept_layers(Candidate(keep_smaller_than=4096), OWN, SMALL))
    assert list(kept) == [f"layers.{layer}.attention.{name}" for layer in range(3) for name in ("key", "value")]
    assert kept["layers.0.attention.key"] == "keep_smaller_than 4096: 32 × 64 weights in the plan's model"


def test_advice_keeps_layers_by_name_and_says_why() -> None:
    advised = (("layers.8.mlp.down", "3.1 dB"), ("layers.5.mlp.down", "9 dB"), ("lm_head", "2 dB"))
    kept = kept_layers(Candidate(keep_advised=True), OWN, OWN, advised)
    assert kept == (
        ("layers.5.mlp.down", "advised: 9 dB"),
        ("layers.8.mlp.down", "advised: 3.1 dB"),
        ("lm_head", "advised: 2 dB"),
    )
    assert advised_names(kept) == ("layers.5.mlp.down", "layers.8.mlp.down", "lm_head")


def test_in_a_shrunk_model_a_layer_stands_for_one_at_its_relative_depth() -> None:
    """Layers 0, 1, 2 of three stand for 0, 4, 8 of nine."""
    pairs = dict(counterparts(SMALL, OWN))
    assert [pairs[f"layers.{layer}.mlp.up"] for layer in range(3)] == [f"layers.{layer}.mlp.up" for layer in (0, 4, 8)]
    assert pairs["lm_head"] == "lm_head"
    advised = (("layers.8.mlp.down", "3.1 dB"), ("layers.5.mlp.down", "9 dB"))
    assert kept_layers(Candidate(keep_advised=True), OWN, SMALL, advised) == (
        ("layers.2.mlp.down", "advised: 3.1 dB, of layers.8.mlp.down in the plan's model"),
    )
    one = SMALL.model_copy(update={"num_layers": 1})
    assert dict(counterparts(one, OWN))["layers.0.mlp.up"] == "layers.0.mlp.up"


def test_size_gives_the_reason_where_both_do() -> None:
    advised = (("layers.0.attention.key", "1 dB"),)
    kept = dict(kept_layers(Candidate(keep_smaller_than=4096), OWN, OWN, advised))
    assert kept["layers.0.attention.key"].startswith("keep_smaller_than")
