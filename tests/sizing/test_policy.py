"""Which GEMM gets which recipe: filters, rules, shapes, and the reason for each site that stays in BF16."""

from math import isclose

import pytest

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import (
    Bf16Recipe,
    BlockRecipe,
    CurrentRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
)
from fp8migrate.plan.schema import LlamaModel, PolicyRule
from fp8migrate.sizing.flops import flops_shares, gemm_sites
from fp8migrate.sizing.policy import Padding, Policy, matching, resolve_policy, shape_refusal

SMALL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
ODD = LlamaModel(num_layers=1, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=170)
CURRENT, BF16 = CurrentRecipe(), Bf16Recipe()
ODD_REASONS = {
    "layers.0.mlp.gate": "out_features 170 is not a multiple of 16: pad it",
    "layers.0.mlp.up": "out_features 170 is not a multiple of 16: pad it",
    "layers.0.mlp.down": "in_features 170 is not a multiple of 16: pad it",
}


def names(model: LlamaModel) -> list[str]:
    return [site.name for site in gemm_sites(model, 128)]


def resolved(
    *rules: PolicyRule, recipe: Recipe = CURRENT, keep: tuple[str, ...] = (), model: LlamaModel = SMALL, tokens: int = 1024
) -> Policy:
    return resolve_policy(gemm_sites(model, 128), recipe, keep, rules, tokens)


def linear_kept(policy: Policy) -> dict[str, str]:
    return {name: reason for name, reason in policy.kept.items() if not name.endswith(".products")}


def test_aliases_mean_whole_layers_and_lm_head() -> None:
    policy = resolved(keep=("lm_head", "first_layer", "last_layer"))
    assert policy.kept["lm_head"] == "keep_bf16: lm_head"
    assert policy.kept["layers.0.mlp.up"] == "keep_bf16: first_layer"
    assert policy.kept["layers.1.attention.query"] == "keep_bf16: last_layer"
    assert set(policy.kept) == set(names(SMALL))
    assert policy.unmatched == ()


def test_last_layer_is_the_highest_number_not_the_last_in_the_alphabet() -> None:
    deep = LlamaModel(num_layers=11, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
    kept = linear_kept(resolved(keep=("last_layer", "first_layer"), model=deep))
    assert {name.split(".")[1] for name in kept} == {"0", "10"}


def test_patterns_match_site_names() -> None:
    assert sorted(linear_kept(resolved(keep=("layers.*.mlp.down",)))) == ["layers.0.mlp.down", "layers.1.mlp.down"]


def test_a_filter_or_rule_that_matches_nothing_is_reported_once() -> None:
    # The field's case: the plan says `output`, the module is called lm_head, and the head is quantised silently.
    rule = PolicyRule(layers="layers.*.mlp.dwon", recipe=BF16)
    assert resolved(rule, keep=("output", "LM_HEAD", "output")).unmatched == ("output", "LM_HEAD", "layers.*.mlp.dwon")
    assert matching(["lm_head"], "first_layer") == []


def test_where_filters_overlap_the_first_gives_the_reason() -> None:
    assert resolved(keep=("layers.0.mlp.up", "first_layer")).kept["layers.0.mlp.up"] == "keep_bf16: layers.0.mlp.up"


def test_everything_that_stays_in_bf16_has_a_reason() -> None:
    policy = resolved(keep=("lm_head", "*.products", "layers.0.mlp.up"), model=ODD)
    assert policy.kept == ODD_REASONS | {
        "layers.0.mlp.up": "keep_bf16: layers.0.mlp.up",
        "layers.0.attention.products": "a product of activations: attention runs in BF16",
        "lm_head": "keep_bf16: lm_head",
    }
    assert policy.unmatched == ("*.products",)
    sites = gemm_sites(ODD, 128)
    attention = sum(share for name, share in flops_shares(sites).items() if name not in policy.kept)
    assert isclose(policy.low_precision_share(sites), attention)


def test_an_odd_number_of_tokens_refuses_every_linear_layer() -> None:
    kept = linear_kept(resolved(tokens=9))
    assert len(kept) == 15
    assert set(kept.values()) == {"micro_batch_size × sequence_length = 9 is not a multiple of 8: change either"}


@pytest.mark.parametrize(
    ("recipe", "tokens", "reason"),
    [
        (CURRENT, 1032, None),
        (BlockRecipe(), 1032, None),
        (RowwiseRecipe(), 1032, "micro_batch_size × sequence_length = 1032 is not a multiple of 16: change either"),
        (RowwiseHighPrecisionRecipe(), 1031, None),  # no FP8 GEMM sums over tokens
        (Mxfp8Recipe(), 1040, "micro_batch_size × sequence_length = 1040 is not a multiple of 32: change either"),
        (Mxfp8Recipe(), 1024, "out_features 176 is not a multiple of 32: pad it"),
        (Nvfp4Recipe(), 1032, "micro_batch_size × sequence_length = 1032 is not a multiple of 16: change either"),
        (BF16, 9, None),
    ],
    ids=lambda value: value.kind if isinstance(value, CurrentRecipe.__base__) else None,  # type: ignore[arg-type]
)
def test_each_recipe_takes_its_own_shapes(recipe: Recipe, tokens: int, reason: str | None) -> None:
    site = next(site for site in gemm_sites(SMALL, 128) if site.name == "layers.0.mlp.up")
    assert shape_refusal(site, [recipe], tokens) == reason


def test_rules_change_gemms_of_layers_and_the_later_holds() -> None:
    policy = resolved(
        PolicyRule(layers="layers.*.mlp.down", gemms=("weight_gradient",), recipe=BF16),
        PolicyRule(layers="last_layer", gemms=("forward",), recipe=BlockRecipe()),
        PolicyRule(layers="layers.1.mlp.up", recipe=BF16),
    )
    assert policy.sites["layers.0.mlp.up"].recipes == dict.fromkeys(GEMMS, CURRENT)
    assert policy.sites["layers.0.mlp.down"].recipes == {"forward": CURRENT, "data_gradient": CURRENT}
    assert policy.sites["layers.1.mlp.down"].recipes == {"forward": BlockRecipe(), "data_gradient": CURRENT}
    assert policy.kept["layers.1.mlp.up"] == "policy: last_layer; policy: layers.1.mlp.up"
    assert "forward" in policy.sites["layers.1.mlp.down"].reason
    assert (
        policy.sites["layers.0.mlp.up"].reason
        == "current(format=hybrid, use_power_2_scales=False, backward_split_accumulator=True)"
    )


def test_keep_bf16_is_above_every_rule() -> None:
    assert "lm_head" in resolved(PolicyRule(layers="lm_head", recipe=BlockRecipe()), keep=("lm_head",)).kept


def test_gemms_that_a_recipe_leaves_in_bf16_do_not_count() -> None:
    """rowwise_with_gw_hp: two of the three GEMMs of a linear layer, and none of attention's products."""
    sites = gemm_sites(SMALL, 128)
    linear = sum(flops_shares(sites)[site.name] for site in sites if site.is_linear)
    policy = resolved(recipe=RowwiseHighPrecisionRecipe())
    assert isclose(policy.low_precision_share(sites), linear * 2 / 3)
    assert policy.sites["lm_head"].recipes.keys() == {"forward", "data_gradient"}
    assert resolved(recipe=BF16).low_precision_share(sites) == 0


def test_kinds_mean_all_layers_of_theirs() -> None:
    linear = [name for name in names(SMALL) if not name.endswith(".products")]
    assert matching(linear, "head") == ["lm_head"]
    assert len(matching(linear, "attention")) == 8
    assert matching(linear, "mlp") == [name for name in linear if ".mlp." in name]
    assert resolved(keep=("attention", "mlp", "head")).kept["layers.1.mlp.up"] == "keep_bf16: mlp"
    policy = resolved(PolicyRule(layers="attention", recipe=BF16))
    assert policy.kept["layers.0.attention.key"] == "policy: attention"
    assert policy.unmatched == ()


def test_norms_and_embeddings_have_no_gemm_and_are_no_mistake() -> None:
    policy = resolved(keep=("norms", "embeddings", "norms", "norm"))
    assert policy.unmatched == ("norm",)
    assert len(policy.notes) == 2
    assert policy.notes[0].startswith("norms have no GEMM")
    assert linear_kept(policy) == {}
    # A rule that gives them a recipe would do nothing.
    assert resolved(PolicyRule(layers="norms", recipe=BlockRecipe())).unmatched == ("norms",)


def test_layers_kept_by_name_come_after_filters_and_before_rules() -> None:
    policy = resolve_policy(
        gemm_sites(SMALL, 128),
        CURRENT,
        ("lm_head",),
        (PolicyRule(layers="layers.0.mlp.up", recipe=BlockRecipe()),),
        1024,
        kept=(("lm_head", "small"), ("layers.0.mlp.up", "advised: 3 dB")),
    )
    assert linear_kept(policy) == {"lm_head": "keep_bf16: lm_head", "layers.0.mlp.up": "advised: 3 dB"}


def test_odd_shapes_are_padded_where_the_plan_says_so() -> None:
    policy = resolve_policy(gemm_sites(ODD, 128), CURRENT, (), (), 1029, odd_shapes="pad")
    words = CURRENT.in_words
    assert linear_kept(policy) == {}
    assert policy.sites["layers.0.mlp.gate"].reason == f"{words}; padded: out_features 170 → 176, tokens 1029 → 1032"
    assert policy.sites["layers.0.mlp.down"].reason == f"{words}; padded: in_features 170 → 176, tokens 1029 → 1032"
    assert policy.sites["lm_head"].reason == f"{words}; padded: tokens 1029 → 1032"
    assert policy.sites["lm_head"].padding == Padding(tokens=8, features=16)
    even = resolve_policy(gemm_sites(ODD, 128), CURRENT, (), (), 1024, odd_shapes="pad")
    assert even.sites["lm_head"].padding is None
    assert even.sites["lm_head"].reason == words


def test_of_several_recipes_padding_takes_the_largest_multiples() -> None:
    rule = PolicyRule(layers="*", gemms=("forward",), recipe=Mxfp8Recipe())
    policy = resolve_policy(gemm_sites(ODD, 128), CURRENT, (), (rule,), 1024, odd_shapes="pad")
    assert policy.sites["layers.0.mlp.up"].padding == Padding(tokens=32, features=32)
    assert policy.sites["layers.0.mlp.up"].reason.endswith("padded: out_features 170 → 192")
