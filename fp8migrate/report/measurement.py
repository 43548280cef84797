"""measurement.md: what was measured, the answer first."""

from collections.abc import Iterable, Sequence
from typing import Any

from fp8migrate.evidence.measurement import ArmSpeed, Measurement
from fp8migrate.report.markdown import table, text

_GIB = 2**30


def render(found: Measurement) -> str:
    lines = [f"# Speed: {text(found.name)}", "", text(verdict(found)), "", text(_machine(found)), ""]
    lines += table(
        (
            "arm",
            "ms a step>",
            "quartiles>",
            "tokens/s>",
            "TFLOP/s (6N)>",
            "× BF16>",
            "of the GEMMs' limit>",
            "peak GiB>",
            "mJ a token>",
        ),
        [_row(arm) for arm in found.arms],
    )
    lines += [""] + [f"- {text(name)} failed: {text(why[:300])}" for name, why in found.failed.items()]
    lines += ["", "## Parts of the step, ms", ""]
    parts = list(found.arms[0].parts_s) if found.arms else []
    lines += table(
        ("arm", *(f"{part}>" for part in parts), "first step, s>"),
        [
            (
                text(arm.name),
                *(_ms(arm.parts_s[part]) for part in parts),
                f"{arm.first_step_s:.1f}",
            )
            for arm in found.arms
        ],
    )
    lines += _memory(found) + _optimizers(found) + _attention(found) + _gemms(found)
    lines += ["", "## Notes", ""] + [f"- {text(note)}" for note in (*found.notes, *_counts(found))]
    return "\n".join(lines) + "\n"


def verdict(found: Measurement) -> str:
    """One sentence: the fastest FP8 arm against BF16."""
    low = [arm for arm in found.arms if arm.fp8_share > 0 and arm.speedup is not None and arm.finite]
    if not low:
        return "No FP8 arm was measured beside a BF16 one."
    best = max(low, key=lambda arm: arm.speedup or 0.0)
    rounds = ""
    if best.round_speedups:
        rounds = f" (round by round {min(best.round_speedups):.3f} to {max(best.round_speedups):.3f})"
    limit = "" if best.limit is None else f"; the GEMMs alone would allow {best.limit:.2f}"
    return f"{best.name} runs a whole step {best.speedup:.3f} × as fast as BF16{rounds}{limit}."


def _machine(found: Measurement) -> str:
    said = found.environment
    names = {"torch": "torch", "cudnn": "cuDNN", "transformer_engine": "Transformer Engine", "torchao": "torchao"}
    names["driver"] = "driver"
    words = [str(said.get("device_name")), *(f"{name} {said[key]}" for key, name in names.items() if said.get(key))]
    size = found.parameters
    parameters = f"{size / 1e9:.2f}B" if size >= 1e8 else f"{size / 1e6:.2f}M"
    return f"{', '.join(words)}. {parameters} parameters, {found.tokens_per_step} tokens a step."


def _row(arm: ArmSpeed) -> Sequence[str]:
    return (
        text(arm.name) + ("" if arm.finite else " (not finite)"),
        _ms(arm.median_s),
        f"{_ms(arm.quartiles_s[0])} to {_ms(arm.quartiles_s[1])}",
        f"{arm.tokens_per_second:.0f}",
        f"{arm.tflops_6n:.0f}",
        "" if arm.speedup is None else f"{arm.speedup:.3f}",
        "" if arm.limit is None else f"{arm.limit:.2f} ({arm.captured or 0:.0%} of the saving)",
        "" if arm.peak_bytes is None else f"{arm.peak_bytes / _GIB:.1f}",
        "" if arm.joules_per_token is None else f"{arm.joules_per_token * 1000:.1f}",
    )


def _memory(found: Measurement) -> list[str]:
    rows = [
        (
            text(arm.name),
            *(_gib(part) for part in (used.weights, used.states, used.kept, used.forward, used.gradients)),
            "" if arm.peak_bytes is None else _gib(arm.peak_bytes),
            _gib(arm.fp8_copies_bytes),
        )
        for arm in found.arms
        if (used := arm.memory)
    ]
    if not rows:
        return []
    parts = ("weights>", "AdamW's states>", "kept between steps>", "of a forward pass>", "gradients>")
    said = (
        "Kept between steps: FP8 copies and workspaces. Of a forward pass: activations, and FP8 copies that live as long. "
        "FP8 copies: two of each converted weight, one transposed; computed, not measured."
    )
    return ["", "## Memory, GiB", "", *table(("arm", *parts, "peak>", "FP8 copies>"), rows), "", said]


def _gib(size: int) -> str:
    return f"{size / _GIB:.1f}"


def _optimizers(found: Measurement) -> list[str]:
    if not found.optimizers:
        return []
    bandwidth = found.memory_bytes_per_second
    rows = []
    for each in found.optimizers:
        update = each.get("update_s", each.get("norm_s"))
        share = "" if not (update and bandwidth) else f"{each['bytes'] / bandwidth / update:.0%}"
        name = each["way"] + (
            f", {each['block']} values, {each['warps']} warps" if each["way"] in ("triton", "stochastic") else ""
        )
        rows.append((text(name), _ms(update), _ms(each.get("step_s")), share, text(each.get("error", ""))))
    way, block, warps = (found.optimizer.get(key) for key in ("way", "block", "warps"))
    said = f"Every arm's step has `{way}`, {block} values, {warps} warps."
    heads = ("way", "update, ms>", "norm, clipping and update, ms>", "of the memory's speed>", "")
    return ["", "## AdamW", "", said, "", *table(heads, rows)]


def _attention(found: Measurement) -> list[str]:
    if not found.attention:
        return []
    rows = [(text(each["way"]), _ms(each.get("seconds")), text(each.get("error", ""))) for each in found.attention]
    return ["", "## Attention, one layer, forward and backward", "", *table(("way", "ms>", ""), rows)]


def _gemms(found: Measurement) -> list[str]:
    if not found.gemms:
        return []
    rows = [
        (
            text(f"{each['name']} {each['gemm']}"),
            f"{each['m']} × {each['k']} × {each['n']}",
            *(_tflops(each, each.get(way)) for way in ("bf16", "fp8_fast", "fp8_exact")),
        )
        for each in found.gemms
    ]
    heads = ("product", "M × K × N", "BF16>", "FP8, fast sums>", "FP8, exact sums>")
    return ["", "## GEMMs alone, TFLOP/s", "", *table(heads, rows)]


def _counts(found: Measurement) -> Iterable[str]:
    yield "TFLOP/s (6N): 6 × all parameters × tokens; attention's products are not counted"
    yield "the GEMMs' limit: BF16's step with its converted products at the FP8 rates above, nothing else changed"
    for arm in found.arms:
        if arm.peak_share is not None:
            share = f"{arm.peak_share:.0%} of the measured BF16 product of 8192³"
            yield f"{arm.name}: {arm.tflops_gemm:.0f} TFLOP/s of GEMMs, {share}"


def _tflops(each: dict[str, Any], seconds: float | None) -> str:
    return "" if seconds is None else f"{2 * each['m'] * each['n'] * each['k'] / seconds / 1e12:.0f}"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.1f}"
