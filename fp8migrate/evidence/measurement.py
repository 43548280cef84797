"""What a speed measurement's lines say: per arm times, rates, memory and energy, and how far each is from what GEMMs allow.

Two counts of a step's FLOPs: 6 · N · tokens with N all parameters, the embedding included and attention not (the count of most
published figures), and the GEMMs that really run, attention's full square included (`sizing.flops`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from pydantic import Field

from fp8migrate.facts.operands import Gemm
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.settings import Settings
from fp8migrate.sizing.flops import flops_per_token, gemm_sites
from fp8migrate.sizing.policy import resolve_policy
from fp8migrate.sizing.speedup import recipes_of_unit
from fp8migrate.sizing.units import LAYOUTS, units

# NVML's counter moves on some ten times a second. Turns of 0.07 s on an H200 gave one arm 190 W, and equal arms 40 % apart.
SHORTEST_ENERGY_TURN_S = 0.5

Line = Mapping[str, Any]
# A matrix of the packed model by its name there, and one of its GEMMs.
Product = tuple[str, Gemm]


class Memory(Settings):
    """What a step's memory goes to, bytes. kept: between steps beside weights and states, FP8 copies and workspaces.

    forward: activations, and FP8 copies that live as long. gradients: what is there more after the backward pass than before
    the step.
    """

    weights: int
    states: int
    kept: int
    forward: int
    gradients: int


class ArmSpeed(Settings):
    """One arm's steps, all its turns together. Times in seconds, memory in bytes."""

    name: str
    steps: int
    median_s: float
    quartiles_s: tuple[float, float] = Field(description="first and third")
    parts_s: dict[str, float] = Field(description="medians of forward, backward, optimizer (norm, clipping, update)")
    round_medians_s: tuple[float, ...]
    tokens_per_second: float
    tflops_6n: float
    tflops_gemm: float
    peak_share: float | None = Field(description="of the measured BF16 product of 8192³, by the GEMMs that run")
    peak_bytes: int | None
    memory: Memory | None
    fp8_copies_bytes: int = Field(
        description="two FP8 copies, one transposed, of every converted weight: computed, not measured"
    )
    fp8_share: float
    joules_per_token: float | None
    first_step_s: float = Field(description="with compilation and the first choice of kernels")
    losses: tuple[float, ...]
    finite: bool
    speedup: float | None = Field(None, description="baseline's median over this one's")
    round_speedups: tuple[float, ...] = Field((), description="round by round")
    limit: float | None = Field(None, description="the speed-up if of the baseline's step only its converted GEMMs changed")
    captured: float | None = Field(None, description="of the time that the GEMMs alone would save, how much was saved")
    precision: Precision | None = Field(None, description="what it ran in; not on record in older measurements")


class Measurement(Settings):
    """One run of `fp8migrate measure`."""

    name: str
    environment: dict[str, Any]
    parameters: int
    weight_bytes: int
    tokens_per_step: int
    optimizer: dict[str, Any]
    arms: tuple[ArmSpeed, ...]
    failed: dict[str, str]
    optimizers: tuple[dict[str, Any], ...]
    attention: tuple[dict[str, Any], ...]
    gemms: tuple[dict[str, Any], ...]
    memory_bytes_per_second: float | None
    complete: bool
    notes: tuple[str, ...]
    # Not on record in older measurements; without them nobody else's verdicts stand beside these times.
    model: LlamaModel | None = None
    sequence_length: int | None = None
    micro_batch_size: int | None = None


def of_kind(lines: Iterable[Line], kind: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in ("kind", "at")} for line in lines if line["kind"] == kind]


def summarize(name: str, model: LlamaModel, training: Training, lines: Sequence[Line]) -> Measurement:
    """Raises ValueError where a measurement said nothing at all."""
    first = of_kind(lines, "environment")
    if not first:
        raise ValueError("the measurement wrote nothing")
    about = first[0]
    gemms = of_kind(lines, "gemm")
    prepared = {each["arm"]: each for each in of_kind(lines, "arm")}
    turns: dict[str, list[dict[str, Any]]] = {}
    for turn in of_kind(lines, "turn"):
        turns.setdefault(turn["arm"], []).append(turn)
    counts = (6 * about["parameters"], flops_per_token(model, training.sequence_length))
    peak = next((each["bf16"] for each in gemms if each["name"] == "square"), None)
    states = next((each["bytes"] for each in of_kind(lines, "states")), None)
    arms = [_arm(name, prepared[name], turns[name], about, counts, peak, states) for name in prepared if name in turns]
    arms = _against_baseline(arms, prepared, gemms, lambda arm: converted_products(arm, model, training))
    failures = {each["arm"]: each["error"] for kind in ("arm_failed", "turn_failed") for each in of_kind(lines, kind)}
    failures |= {f"timing {each['lever']} alone": each["error"] for each in of_kind(lines, "lever_failed")}
    chosen = of_kind(lines, "optimizer")
    memory = of_kind(lines, "memory")
    return Measurement(
        name=name,
        environment=about["environment"] | {"cudnn": about["cudnn"]},
        parameters=about["parameters"],
        weight_bytes=about["weight_bytes"],
        tokens_per_step=about["tokens_per_step"],
        optimizer=chosen[0] if chosen else {},
        arms=tuple(arms),
        failed=failures,
        optimizers=tuple(of_kind(lines, "optimizer_lever")),
        attention=tuple(of_kind(lines, "attention")),
        gemms=tuple(gemms),
        memory_bytes_per_second=memory[0]["bytes_per_second"] if memory else None,
        complete=any(line["kind"] == "end" for line in lines),
        notes=tuple(_notes(about, lines)),
        model=model,
        sequence_length=training.sequence_length,
        micro_batch_size=training.micro_batch_size,
    )


def _arm(
    name: str,
    arm: Line,
    turns: Sequence[Line],
    about: Line,
    counts: tuple[int, int],
    square_s: float | None,
    state_bytes: int | None,
) -> ArmSpeed:
    steps = [step for turn in turns for step in turn["steps"]]
    totals = [sum(step.values()) for step in steps]
    middle = median(totals)
    tokens = about["tokens_per_step"]
    peaks = [turn["peak_bytes"] for turn in turns if turn["peak_bytes"] is not None]
    losses = [loss for turn in turns for loss in turn["losses"]]
    gemm_rate = counts[1] * tokens / middle
    ends = quantiles(totals, n=4) if len(totals) > 1 else [middle] * 3
    return ArmSpeed(
        name=name,
        steps=len(totals),
        median_s=middle,
        quartiles_s=(ends[0], ends[2]),
        parts_s={part: median(step[part] for step in steps) for part in steps[0]},
        round_medians_s=tuple(median(sum(step.values()) for step in turn["steps"]) for turn in turns),
        tokens_per_second=tokens / middle,
        tflops_6n=counts[0] * tokens / middle / 1e12,
        tflops_gemm=gemm_rate / 1e12,
        peak_share=None if square_s is None else gemm_rate / (2 * 8192**3 / square_s),
        peak_bytes=max(peaks, default=None),
        memory=_memory(turns[-1]["held_bytes"], about["weight_bytes"], state_bytes),
        fp8_copies_bytes=2 * arm["fp8_weights"],
        fp8_share=arm["fp8_share"],
        joules_per_token=_joules_per_token(turns, tokens),
        first_step_s=arm["first_step_s"],
        losses=tuple(loss for loss in losses if loss is not None),
        finite=None not in losses,
        precision=_precision(arm),
    )


def _memory(held: Mapping[str, int | None], weights: int, states: int | None) -> Memory | None:
    """None where there is no GPU, or the measurement was cut short."""
    before, forward, backward = (held.get(when) for when in ("before", "after_forward", "after_backward"))
    if before is None or forward is None or backward is None or states is None:
        return None
    kept = before - weights - states
    return Memory(weights=weights, states=states, kept=kept, forward=forward - before, gradients=backward - before)


def _seconds(turn: Line) -> float:
    return sum(sum(step.values()) for step in turn["steps"])


def _joules_per_token(turns: Sequence[Line], tokens: int) -> float | None:
    """None where a turn's energy was not counted, or lasted too short to be."""
    if any(turn["joules"] is None or _seconds(turn) < SHORTEST_ENERGY_TURN_S for turn in turns):
        return None
    return float(sum(turn["joules"] for turn in turns) / (tokens * sum(len(turn["steps"]) for turn in turns)))


def _against_baseline(
    arms: Sequence[ArmSpeed], prepared: Mapping[str, Line], gemms: Sequence[Line], converted: Callable[[Line], Counter[Product]]
) -> list[ArmSpeed]:
    baseline = next((arm for arm in arms if prepared[arm.name]["settings"]["precision"]["backend"] == "bf16"), None)
    if baseline is None:
        return list(arms)
    return [_compared(arm, baseline, saved_by_gemms(gemms, converted(prepared[arm.name]))) for arm in arms]


def converted_products(arm: Line, model: LlamaModel, training: Training) -> Counter[Product]:
    """How often each product with a weight, by matrix and GEMM, is in FP8 in one pass of an arm."""
    precision = _precision(arm)
    if precision.recipe is None:
        return Counter()
    sites = gemm_sites(model, training.sequence_length)
    policy = resolve_policy(
        *(sites, precision.recipe, precision.keep_bf16, precision.policy),
        training.micro_batch_size * training.sequence_length,
        kept=precision.kept,
        odd_shapes=precision.odd_shapes,
    )
    found: Counter[Product] = Counter()
    for unit in units(sites, LAYOUTS[precision.backend]):
        found.update((unit.name.rpartition(".")[2], gemm) for gemm in recipes_of_unit(unit, policy))
    return found


def _precision(arm: Line) -> Precision:
    return Precision.model_validate(arm["settings"]["precision"], strict=False)


def _compared(arm: ArmSpeed, baseline: ArmSpeed, could_save_s: float | None) -> ArmSpeed:
    found: dict[str, Any] = {
        "speedup": baseline.median_s / arm.median_s,
        "round_speedups": tuple(b / a for b, a in zip(baseline.round_medians_s, arm.round_medians_s, strict=False)),
    }
    if arm.fp8_share > 0 and could_save_s is not None:
        found["limit"] = baseline.median_s / (baseline.median_s - could_save_s)
        found["captured"] = (baseline.median_s - arm.median_s) / could_save_s
    return arm.model_copy(update=found)


def saved_by_gemms(gemms: Sequence[Line], converted: Counter[Product]) -> float | None:
    """Seconds by which the products that are in FP8 are faster there: forward with fast, backward with exact sums.

    None where none was timed, or one has no FP8 time.
    """
    saved = 0.0
    rates = {(each["name"], each["gemm"]): each for each in gemms}
    for product, count in converted.items():
        each = rates.get(product)
        fp8 = None if each is None else each["fp8_fast" if product[1] == "forward" else "fp8_exact"]
        if each is None or fp8 is None:
            return None
        saved += count * (each["bf16"] - fp8)
    return saved if converted else None


def _notes(about: Line, lines: Sequence[Line]) -> Iterable[str]:
    yield "weights, gradients and AdamW's states are BF16; tokens are random; losses say only that the step is finite"
    yield "the first step of every turn, and all of an arm's warm-up, are left out of its times"
    if about["energy_missing"]:
        yield f"no energy: {about['energy_missing']}"
    short = dict.fromkeys(turn["arm"] for turn in of_kind(lines, "turn") if _seconds(turn) < SHORTEST_ENERGY_TURN_S)
    if short and not about["energy_missing"]:
        least = f"{SHORTEST_ENERGY_TURN_S:g} s"
        yield f"no energy of {', '.join(short)}: turns below {least} are too short for NVML's counter; give more --steps"
    if any(line["kind"] == "out_of_time" for line in lines):
        yield "stopped early: the time given was over"
