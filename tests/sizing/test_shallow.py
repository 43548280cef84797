"""A whole model from shallow ones: sums worked out by hand, and layers that differ."""

import pytest

from fp8migrate.facts.recipes import BlockRecipe, CurrentRecipe
from fp8migrate.plan.schema import LlamaModel, PolicyRule
from fp8migrate.sizing.break_even import DepthTime
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.policy import Policy, resolve_policy
from fp8migrate.sizing.shallow import depths_of, layer_kinds, saved_seconds, shallow_policy, whole_seconds

MODEL = LlamaModel(num_layers=8, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
SITES = gemm_sites(MODEL, 128)


def policy(*keep: str, rules: tuple[PolicyRule, ...] = ()) -> Policy:
    return resolve_policy(SITES, CurrentRecipe(), keep, rules, 128)


def times(arm: str, *rows: tuple[int, int, float]) -> list[DepthTime]:
    return [DepthTime(arm=arm, like=like, depth=depth, seconds=seconds) for like, depth, seconds in rows]


@pytest.mark.parametrize(("layers", "depths"), [(1, (1,)), (2, (1, 2)), (5, (1, 5)), (80, (1, 5))])
def test_no_timed_model_is_deeper_than_the_whole(layers: int, depths: tuple[int, ...]) -> None:
    assert depths_of(layers) == depths


def test_layers_of_one_policy_are_one_kind() -> None:
    assert layer_kinds(policy("lm_head")) == {0: 8}


def test_layers_that_differ_are_kinds_of_their_own() -> None:
    assert layer_kinds(policy("layers.0.*", "layers.7.*")) == {0: 2, 1: 6}
    rule = PolicyRule(layers="layers.3.mlp.down", recipe=BlockRecipe())
    assert layer_kinds(policy(rules=(rule,))) == {0: 7, 3: 1}


def test_every_layer_of_a_shallow_model_is_like_the_one() -> None:
    whole = policy("layers.2.mlp.*", "lm_head")
    shallow = gemm_sites(MODEL.model_copy(update={"num_layers": 3}), 128)
    cut = shallow_policy(whole, 2, shallow)
    assert cut.sites.keys() == {site.name for site in shallow}
    for number in range(3):
        assert not cut.sites[f"layers.{number}.mlp.up"].recipes
        assert cut.sites[f"layers.{number}.attention.query"].recipes
    assert not cut.sites["lm_head"].recipes


def test_a_layer_more_takes_as_long_as_the_last() -> None:
    """One layer 7, five 15: a layer takes 2, all else 5; eight layers 21."""
    assert whole_seconds(times("bf16", (0, 1, 7), (0, 5, 15)), "bf16", {0: 8}) == pytest.approx(21)


def test_each_kind_of_layer_counts_as_often_as_it_is_there() -> None:
    """Two layers of 2 and six of 1, and 5 for the rest, told twice: 15 in place of BF16's 21."""
    found = times("bf16", (0, 1, 7), (0, 5, 15)) + times("fp8", (0, 1, 7), (0, 5, 15), (1, 1, 6), (1, 5, 10))
    assert whole_seconds(found, "fp8", {0: 2, 1: 6}) == pytest.approx(15)
    assert saved_seconds(found, "fp8", {0: 2, 1: 6}) == pytest.approx(6)


def test_a_model_of_one_layer_is_itself() -> None:
    found = times("bf16", (0, 1, 7)) + times("fp8", (0, 1, 4))
    assert saved_seconds(found, "fp8", {0: 1}) == pytest.approx(3)


@pytest.mark.parametrize("missing", range(4))
def test_a_missing_time_is_no_zero(missing: int) -> None:
    found = times("bf16", (0, 1, 7), (0, 5, 15)) + times("fp8", (0, 1, 6), (0, 5, 10))
    assert saved_seconds(found, "fp8", {0: 8}) == pytest.approx(8)
    del found[missing]
    assert saved_seconds(found, "fp8", {0: 8}) is None
