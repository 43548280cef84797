"""The table of layers that gain and lose: the answer first, units, and what to write into the plan."""

from fp8migrate.facts.recipes import CurrentRecipe
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.report.break_even import Told, render, verdict
from fp8migrate.sizing.break_even import BreakEven, DepthTime, LinearShape, Part, PartTime
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.policy import resolve_policy
from fp8migrate.sizing.speedup import losers, predict

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
SITES = gemm_sites(MODEL, 128)
CURRENT = CurrentRecipe()
GAINS = {(64, 64): 10.0, (32, 64): -2.0, (176, 64): 40.0, (64, 176): 40.0, (256, 64): 20.0}
PARTS: tuple[Part, ...] = ("forward", "backward")


def measured() -> BreakEven:
    times = tuple(
        PartTime(
            shape=LinearShape(tokens=128, out_features=out, in_features=in_),
            matrices=(f"layers.*.of_{out}",),
            count=2,
            backend="transformer_engine",
            recipe=CURRENT.in_words,
            part=part,
            bf16_us=100,
            fp8_us=100 - gain,
            bf16_host_us=5,
            fp8_host_us=110 if out == 32 else 50,
        )
        for (out, in_), gain in GAINS.items()
        for part in PARTS
    )
    # Of two layers: FP8 saves 0.6 of 1.6 ms.
    shallow = (("bf16", 1, 0.9), ("bf16", 2, 1.6), ("current", 1, 0.55), ("current", 2, 1.0))
    depths = tuple(DepthTime(arm=arm, like=0, depth=depth, seconds=ms / 1000) for arm, depth, ms in shallow)
    return BreakEven(device="NVIDIA H200", layout="linear", times=times, depths=depths, failed=("a | b: no such kernel",))


def told(found: BreakEven, *, measured_s: float | None = None) -> Told:
    keep = losers(found, SITES, backend="transformer_engine", recipe=CURRENT, tokens_per_pass=128, keep_bf16=("lm_head",))
    policy = resolve_policy(SITES, CURRENT, keep.keep_bf16, (), 128)
    prediction = predict(
        found, policy, SITES, backend="transformer_engine", arm="current", tokens_per_pass=128, bf16_step_s=0.002
    )
    return Told("current", "transformer_engine", CURRENT.in_words, keep, prediction, measured_s)


def test_the_verdict_names_what_to_keep() -> None:
    found = measured()
    assert verdict(found, told(found)) == (
        "**current: 4 of 5 shapes gain; keep layers.\\*.attention.key and layers.\\*.attention.value in BF16.**"
    )


def test_the_table_has_shapes_units_and_the_plan() -> None:
    found = measured()
    lines = render(found, [told(found, measured_s=0.0015)]).splitlines()
    assert lines[2].startswith("**current: 4 of 5 shapes gain")
    assert "| layers.\\*.of\\_32 | 128 × 64 → 32 | 2 | 100.0 | 102.0 | 100.0 | 102.0 | 0.98 | −8.00 | loses |" in lines
    assert "| layers.\\*.of\\_176 | 128 × 64 → 176 | 2 | 100.0 | 60.0 | 100.0 | 60.0 | 1.67 | +160.00 | gains |" in lines
    # Foretold are 600 µs of 2000, measured 500. Single layers: query, output 2 × 2 × 20, the feed-forward 2 × 3 × 80.
    assert "| current | 2.0 | 1.4 | 1.429 | 1.333 | +7.14 % | 1.389 | — |" in lines
    assert '  keep_bf16: [lm_head, "layers.*.attention.key", "layers.*.attention.value"]' in lines
    assert any(line.startswith("- The host takes longer to start") and "128 × 64 → 32:" in line for line in lines)
    assert "- Not measured: a \\| b: no such kernel" in lines


def test_without_times_of_shallow_models_nothing_is_foretold() -> None:
    found = measured().model_copy(update={"depths": ()})
    one = told(found, measured_s=0.0015)
    assert "| current | 2.0 | — | — | 1.333 | — | 1.389 | — |" in render(found, [one]).splitlines()
    assert one.in_words.startswith("nothing foretold without times of shallow models")


def test_the_line_has_what_was_foretold_and_measured() -> None:
    line = told(measured(), measured_s=0.0015).in_words
    assert line.startswith("foretold 1.429 × BF16, measured 1.333 (off by +7.14 %); keep layers.*.attention.key, ")


def test_nothing_measured_is_said() -> None:
    found = BreakEven(device="CPU", layout="linear", times=())
    keep = losers(found, SITES, backend="torchao", recipe=CURRENT, tokens_per_pass=128)
    text = render(found, [Told("current", "torchao", CURRENT.in_words, keep)])
    assert "**current: nothing was measured.**" in text
