"""Speed-up from times of single layers: small cases worked out by hand.

Two decoder layers, 128 tokens in a pass. One matrix of the feed-forward saves 100 µs in a pass, one of attention's square ones
20 µs; key and value lose 5 µs each; lm_head saves 40 µs.
"""

from math import isclose

import pytest
import yaml

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import Bf16Recipe, CurrentRecipe, DelayedRecipe, Recipe, RowwiseHighPrecisionRecipe
from fp8migrate.plan.schema import Candidate, LlamaModel, PolicyRule
from fp8migrate.sizing.break_even import BreakEven, DepthTime, LinearShape, Part, PartTime, RawGemm
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.policy import resolve_policy
from fp8migrate.sizing.speedup import Prediction, fewest_tokens, fewest_weights, losers, predict
from fp8migrate.sizing.units import Layout

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
SITES = gemm_sites(MODEL, 128)
CURRENT = CurrentRecipe()
SQUARE, KEY, WIDE, DOWN, HEAD = (64, 64), (32, 64), (176, 64), (64, 176), (256, 64)
# (BF16, FP8) microseconds of forward, backward, data gradient, weight gradient.
MICROSECONDS: dict[tuple[int, int], tuple[tuple[float, float], ...]] = {
    SQUARE: ((30, 25), (60, 45), (31, 25), (31, 25)),
    KEY: ((20, 22), (40, 43), (21, 22), (21, 23)),
    WIDE: ((100, 70), (200, 130), (101, 70), (101, 70)),
    DOWN: ((100, 70), (200, 130), (101, 70), (101, 110)),
    HEAD: ((90, 80), (180, 150), (91, 80), (91, 80)),
}
PARTS: tuple[Part, ...] = ("forward", "backward", "data_gradient", "weight_gradient")


def shape(size: tuple[int, int], tokens: int = 128) -> LinearShape:
    return LinearShape(tokens=tokens, out_features=size[0], in_features=size[1])


def row(
    size: tuple[int, int], part: Part, bf16: float, fp8: float, recipe: Recipe, backend: str = "emulated", tokens: int = 128
) -> PartTime:
    return PartTime(
        shape=shape(size, tokens),
        matrices=(),
        count=1,
        backend=backend,
        recipe=recipe.in_words,
        part=part,
        bf16_us=bf16,
        fp8_us=fp8,
        bf16_host_us=5.0,
        fp8_host_us=50.0,
    )


def measured(recipe: Recipe = CURRENT, backend: str = "emulated", layout: Layout = "linear") -> BreakEven:
    times = [
        row(size, part, bf16, fp8, recipe, backend)
        for size, figures in MICROSECONDS.items()
        for part, (bf16, fp8) in zip(PARTS, figures, strict=True)
    ]
    return BreakEven(device="GPU", layout=layout, times=tuple(times))


def predicted(
    *rules: PolicyRule, keep: tuple[str, ...] = (), found: BreakEven | None = None, step_s: float = 0.002
) -> Prediction:
    policy = resolve_policy(SITES, CURRENT, keep, rules, 128)
    return predict(
        found or measured(), policy, SITES, backend="emulated", arm="candidate", tokens_per_pass=128, bf16_step_s=step_s
    )


def saved_us(found: Prediction) -> float:
    """By single layers."""
    return 2000 - 2000 / found.by_single_layers


def test_the_step_saves_what_its_layers_save() -> None:
    """Two layers: query and output 2 × 2 × 20, key and value 2 × 2 × −5, three of the feed-forward 2 × 3 × 100; head 40."""
    found = predicted()
    assert isclose(found.by_single_layers, 2000 / (2000 - 80 + 20 - 600 - 40))
    assert found.foretold is None
    assert found.losing == ("layers.*.attention.key", "layers.*.attention.value")
    assert len(found.gaining) == 6
    assert found.unmeasured == ()


def test_kept_layers_save_nothing() -> None:
    found = predicted(keep=("lm_head", "layers.*.attention.key", "layers.*.attention.value"))
    assert isclose(saved_us(found), 680)
    assert found.losing == ()


@pytest.mark.parametrize(("step_s", "speedup"), [(0.010, 10 / 7.6), (0.005, 5 / 2.6)])
def test_the_step_saves_what_shallow_models_say(step_s: float, speedup: float) -> None:
    """Of one layer and of two: BF16 3 and 5 ms, FP8 1.4 and 2.6. Two layers are the model: 5 - 2.6 ms are saved."""
    times = [("bf16", 1, 3e-3), ("bf16", 2, 5e-3), ("candidate", 1, 1.4e-3), ("candidate", 2, 2.6e-3), ("other", 2, 1e-3)]
    depths = tuple(DepthTime(arm=arm, like=0, depth=depth, seconds=seconds) for arm, depth, seconds in times)
    found = predicted(found=measured().model_copy(update={"depths": depths}), step_s=step_s)
    assert found.foretold is not None
    assert isclose(found.foretold.speedup, speedup)
    assert isclose(found.foretold.error(found.foretold.fp8_step_s * 1.1), 0.1)
    assert isclose(found.by_single_layers, step_s / (step_s - 700e-6))


def test_a_rule_for_single_gemms_counts_those_alone() -> None:
    """down without its weight gradient: 30 forward, 31 data gradient, in each of two layers."""
    rule = PolicyRule(layers="layers.*.mlp.down", gemms=("weight_gradient",), recipe=Bf16Recipe())
    found = predicted(rule, keep=("lm_head", "layers.*.attention.*", "layers.*.mlp.gate", "layers.*.mlp.up"))
    assert isclose(saved_us(found), 2 * 61)


def test_a_recipe_that_leaves_a_gemm_in_bf16_is_whole_as_it_is() -> None:
    recipe = RowwiseHighPrecisionRecipe()
    policy = resolve_policy(SITES, recipe, ("layers.*",), (), 128)
    times = measured(recipe)
    found = predict(times, policy, SITES, backend="emulated", arm="candidate", tokens_per_pass=128, bf16_step_s=0.002)
    assert isclose(saved_us(found), 40)


def test_what_was_not_measured_is_named_and_counts_as_nothing() -> None:
    without = measured().model_copy(update={"times": tuple(t for t in measured().times if t.shape != shape(HEAD))})
    found = predicted(found=without)
    assert found.unmeasured == ("lm_head",)
    assert isclose(saved_us(found), 660)
    assert found.limit is None


def test_the_limit_is_the_products_alone() -> None:
    """lm_head in FP8 alone: raw 90 → 50 forward (fast sums), 90 → 60 for each gradient (exact sums): 100 µs of 2000."""
    raw = tuple(RawGemm(shape=shape(HEAD), gemm=g, bf16_us=90, fp8_fast_us=50, fp8_exact_us=60) for g in GEMMS)
    found = predicted(keep=("layers.*",), found=measured().model_copy(update={"raw": raw}))
    assert found.limit is not None
    assert isclose(found.limit, 2000 / 1900)


def test_times_of_another_model_are_refused() -> None:
    with pytest.raises(ValueError, match="not of one model"):
        predicted(step_s=700e-6)
    depths = tuple(
        DepthTime(arm=arm, like=0, depth=depth, seconds=seconds * depth)
        for arm, seconds in (("bf16", 2.0), ("candidate", 1.0))
        for depth in (1, 2)
    )
    with pytest.raises(ValueError, match="not of one model"):
        predicted(found=measured().model_copy(update={"depths": depths}))


def test_losers_stay_in_bf16_and_the_plan_takes_the_text() -> None:
    found = losers(measured(), SITES, backend="emulated", recipe=CURRENT, tokens_per_pass=128, keep_bf16=("lm_head",))
    assert found.patterns == ("layers.*.attention.key", "layers.*.attention.value")
    assert found.keep_bf16 == ("lm_head", *found.patterns)
    (rule,) = found.policy
    assert rule.in_words == "layers.*.mlp.down: bf16 for weight_gradient"
    said = yaml.safe_load(found.yaml)["candidate"]
    candidate = Candidate(keep_bf16=tuple(said["keep_bf16"]), policy=found.policy)
    assert candidate.keep_bf16 == found.keep_bf16
    assert said["policy"] == [
        {"layers": "layers.*.mlp.down", "gemms": ["weight_gradient"], "recipe": {"kind": "bf16"}},
    ]


@pytest.mark.parametrize(("recipe", "kept"), [(CURRENT, 1), (DelayedRecipe(), 0)])
def test_transformer_engine_keeps_both_gradients_or_none(recipe: Recipe, kept: int) -> None:
    """down alone gains: 30 µs forward, and loses 1 µs backward."""
    times = [t for t in measured(recipe, "transformer_engine").times if t.shape != shape(DOWN)]
    times += [row(DOWN, part, 100, fp8, recipe, "transformer_engine") for part, fp8 in zip(PARTS[:2], (70, 101), strict=True)]
    found = measured(recipe).model_copy(update={"times": tuple(times)})
    rules = losers(found, SITES, backend="transformer_engine", recipe=recipe, tokens_per_pass=128).policy
    assert [rule.gemms for rule in rules] == [("data_gradient", "weight_gradient")] * kept


def test_a_fused_module_is_kept_as_a_whole_or_not_at_all() -> None:
    """gate and up as one (352 × 64) save 10 µs, down loses 15: the feed-forward loses."""
    figures = {(128, 64): (100, 90), SQUARE: (100, 90), (352, 64): (100, 90), DOWN: (100, 115), HEAD: (100, 90)}
    times = [
        row(size, part, bf16, fp8 if part == "forward" else bf16, CURRENT)
        for size, (bf16, fp8) in figures.items()
        for part in ("forward", "backward")
    ]
    found = BreakEven(device="GPU", layout="fused", times=tuple(times))
    kept = losers(found, SITES, backend="emulated", recipe=CURRENT, tokens_per_pass=128)
    assert kept.patterns == ("layers.*.mlp.gate", "layers.*.mlp.up", "layers.*.mlp.down")
    assert isclose(saved_us(predicted(found=found)), 2 * (10 + 10 + 10 - 15) + 10)
    # One layer of the feed-forward kept keeps the module.
    assert isclose(saved_us(predicted(found=found, keep=("layers.*.mlp.down",))), 50)


def test_the_size_from_which_on_it_gains() -> None:
    sizes = {16: 9.0, 64: 11.0, 128: 9.5, 256: 8.0, 512: 4.0}  # FP8 microseconds of each part, BF16 10
    times = [
        row(SQUARE, part, 10, fp8, CURRENT, tokens=tokens) for tokens, fp8 in sizes.items() for part in ("forward", "backward")
    ]
    assert fewest_tokens(times, *SQUARE, "emulated", CURRENT.in_words) == 128
    assert fewest_tokens(times, *KEY, "emulated", CURRENT.in_words) is None
    assert fewest_weights(measured().times, 128, "emulated", CURRENT.in_words) == 64 * 64
    assert fewest_weights(measured().times, 64, "emulated", CURRENT.in_words) is None
