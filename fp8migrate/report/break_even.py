"""Which layers gain by FP8 and which lose, as Markdown: the answer first, then every shape."""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8migrate.report.markdown import table, text
from fp8migrate.report.words import percent, plural, signed_number
from fp8migrate.sizing.break_even import BreakEven, LinearShape, PartTime, by_shape_and_part, whole_gain_us
from fp8migrate.sizing.speedup import KeepLosers, Prediction

_SHAPE_HEADS = (
    "layers",
    "tokens × in → out",
    "in a pass>",
    "forward, µs: BF16>",
    "FP8>",
    "backward, µs: BF16>",
    "FP8>",
    "× BF16>",
    "saved in a pass, µs>",
    "",
)
_STEP_HEADS = (
    "what",
    "step in BF16, ms>",
    "in FP8, foretold>",
    "× BF16, foretold>",
    "measured>",
    "foretold is off by>",
    "by single layers>",
    "limit>",
)


@dataclass(frozen=True, eq=False)
class Told:
    """What is told of one recipe. measured_fp8_step_s: of the same step, where it was run."""

    name: str
    backend: str
    recipe: str
    keep: KeepLosers
    prediction: Prediction | None = None
    measured_fp8_step_s: float | None = None

    @property
    def in_words(self) -> str:
        """`foretold 1.44 × BF16, measured 1.45 (off by −0.7 %); keep layers.*.attention.qkv in BF16`."""
        keep = f"keep {', '.join(self.keep.patterns)} in BF16" if self.keep.patterns else "no layer loses by FP8"
        found, measured = self.prediction, self.measured_fp8_step_s
        if found is None:
            return f"nothing foretold without a measured baseline; {keep}"
        foretold = found.foretold
        if foretold is None:
            return f"nothing foretold without times of shallow models (the notes of break_even-*.md say why); {keep}"
        words = f"foretold {foretold.speedup:.3f} × BF16"
        if measured is not None:
            off = percent(foretold.error(measured))
            words += f", measured {found.bf16_step_s / measured:.3f} (off by {off})"
        return f"{words}; {keep}"


def render(found: BreakEven, told: Sequence[Told]) -> str:
    lines = ["# Break-even: FP8 against BF16, layer by layer", ""]
    for each in told:
        lines += [verdict(found, each), ""]
    lines += [f"{text(found.device)}. Casts, maxima and transposes are in the FP8 times.", ""]
    predicted = [each for each in told if each.prediction is not None]
    if predicted:
        lines += ["## The whole step", "", *table(_STEP_HEADS, [_step(each) for each in predicted]), ""]
    for each in told:
        lines += [f"## {text(each.name)}: every shape", "", *table(_SHAPE_HEADS, _rows(found, each)), ""]
        lines += _plan(each)
    return "\n".join(lines + _notes(found, told)).rstrip() + "\n"


def verdict(found: BreakEven, told: Told) -> str:
    """`current: 4 of 5 shapes gain; keep layers.*.attention.key in BF16.`"""
    gains = _gains(found, told)
    if not gains:
        return f"**{text(told.name)}: nothing was measured.**"
    gaining = sum(gain > 0 for gain in gains.values())
    what = f"{text(told.name)}: {gaining} of {plural(len(gains), 'shape')} {'gains' if len(gains) == 1 else 'gain'}"
    kept = told.keep.patterns
    if not kept:
        return f"**{what}; no layer to keep in BF16 for its speed.**"
    names = f"{', '.join(kept[:-1])} and {kept[-1]}" if len(kept) > 1 else kept[0]
    return f"**{what}; keep {text(names)} in BF16.**"


def _gains(found: BreakEven, told: Told) -> dict[LinearShape, float]:
    """Of the model's shapes, what each saves in one pass of one matrix, microseconds."""
    times = by_shape_and_part(found.times, told.backend, told.recipe)
    shapes = dict.fromkeys(shape for (shape, _), time in times.items() if time.count)
    return {shape: gain for shape in shapes if (gain := whole_gain_us(times, shape)) is not None}


def _rows(found: BreakEven, told: Told) -> list[Sequence[str]]:
    times = by_shape_and_part(found.times, told.backend, told.recipe)
    shapes = dict.fromkeys(shape for shape, _ in times)
    return [
        _row(times[shape, "forward"], times[shape, "backward"])
        for shape in shapes
        if (shape, "forward") in times and (shape, "backward") in times
    ]


def _row(forward: PartTime, backward: PartTime) -> Sequence[str]:
    bf16, fp8 = forward.bf16_us + backward.bf16_us, forward.fp8_us + backward.fp8_us
    return (
        text(", ".join(forward.matrices) or "no layer of the model"),
        forward.shape.in_words,
        str(forward.count),
        f"{forward.bf16_us:.1f}",
        f"{forward.fp8_us:.1f}",
        f"{backward.bf16_us:.1f}",
        f"{backward.fp8_us:.1f}",
        f"{bf16 / fp8:.2f}",
        signed_number(max(forward.count, 1) * (bf16 - fp8)),
        "gains" if bf16 > fp8 else "loses",
    )


def _step(told: Told) -> Sequence[str]:
    found, measured = told.prediction, told.measured_fp8_step_s
    assert found is not None
    foretold = found.foretold
    return (
        text(told.name),
        f"{found.bf16_step_s * 1000:.1f}",
        "—" if foretold is None else f"{foretold.fp8_step_s * 1000:.1f}",
        "—" if foretold is None else f"{foretold.speedup:.3f}",
        "—" if measured is None else f"{found.bf16_step_s / measured:.3f}",
        "—" if measured is None or foretold is None else f"{signed_number(100 * foretold.error(measured))} %",
        f"{found.by_single_layers:.3f}",
        "—" if found.limit is None else f"{found.limit:.3f}",
    )


def _plan(told: Told) -> list[str]:
    if not (told.keep.patterns or told.keep.policy):
        return []
    return ["For the plan:", "", "```yaml", told.keep.yaml.rstrip(), "```", ""]


def _notes(found: BreakEven, told: Sequence[Told]) -> list[str]:
    notes = [
        "Times: medians of the device alone, its cache filled with something else before each part, BF16 and FP8 by turns.",
        "Foretold: the BF16 step less what models of one and of five layers, timed at lasting work, say that all layers save.",
        "By single layers: less what each linear layer saves by itself; what a fused module casts on the way is not in it.",
        "Limit: the layers' products at the raw FP8 rate, nothing for casts, all else as in BF16.",
    ]
    waiting = dict.fromkeys(time.shape.in_words for time in found.times if time.waits_for_host)
    if waiting and found.device != "CPU":
        notes.append(
            f"The host takes longer to start the FP8 work than the device to do it at {_some(list(waiting))}: there it gains "
            "only where the host runs ahead or a CUDA graph starts it."
        )
    if any(each.backend == "emulated" for each in told):
        notes.append("Emulated FP8 says nothing about the speed of real FP8.")
    for each in told:
        if each.prediction is not None and each.prediction.unmeasured:
            notes.append(f"{each.name}: no time for {_some(each.prediction.unmeasured)}, counted as no gain.")
    notes += [f"Not measured: {why}" for why in found.failed]
    return ["## Notes", "", *(f"- {text(note)}" for note in notes)]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
