"""The advisor: from what each recipe would lose of the BF16 run's tensors to the layers to keep, and the recipe to try first.

A forecast from samples, made without FP8 hardware: it decides nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan, log10
from statistics import median

from pydantic import BaseModel, ValidationError

from fp8migrate.facts.operands import Gemm, TensorName
from fp8migrate.facts.recipes import Recipe
from fp8migrate.facts.step_speed import NEEDS_BLACKWELL, SOURCE, STEP_SPEED
from fp8migrate.jobs import Job, Train
from fp8migrate.plan.schema import OddShapes, Plan
from fp8migrate.records.schema import Record
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.planned import planned_policy
from fp8migrate.sizing.policy import matching, shape_refusal

TABLE = "tensor_stats-"


@dataclass(frozen=True)
class Threshold:
    value: float
    why: str


# Below it a layer should stay in BF16.
LEAST_SQNR_DB = Threshold(
    14.0,
    "Noise is 4 % of the tensor's energy. Sound recipes stay above it, four bits included: to nearest, a normal distribution "
    "has 31.5 dB in E4M3, 25.5 in E5M2 and 20.4 in NVFP4, stochastically rounded NVFP4 17.2; the lowest tensors of the "
    "quickstart had 15.6 (NVFP4) and 16.2 dB (delayed, an outlier clipped). E2M1 with one scale per tensor, the recipe known "
    "to be bad, falls to 1 to 10 dB at gradients and at mlp.down, gradients cast without a scale to 0 to 9 dB.",
)
# A recipe that must keep more than this share of the linear layers' FLOPs in BF16 is not one to try.
MOST_KEPT = Threshold(0.5, "With half of the FLOPs in BF16 at most half of what FP8 saves is left.")


@dataclass(frozen=True)
class OperandForecast:
    """One tensor of one layer as one GEMM would take it: the worst of all samples, each figure by itself.

    underflow: share of the nonzero values that become zero. overflow: share of all values that are clipped. step: of the
    lowest SQNR. The scales: log2 of what a cast value is multiplied by.
    """

    recipe: str
    layer: str
    gemm: Gemm
    tensor: TensorName
    operand: str
    sqnr_db: float
    underflow: float
    overflow: float
    least_log2_scale: float
    largest_log2_scale: float
    step: int

    @property
    def poor(self) -> bool:
        return isnan(self.sqnr_db) or self.sqnr_db < LEAST_SQNR_DB.value

    @property
    def in_words(self) -> str:
        """`gradient of the data gradient: 3.1 dB, 98 % underflow`"""
        causes = [f"{100 * part:.0f} % {name}" for name, part in (("underflow", self.underflow), ("overflow", self.overflow))]
        said = [cause for cause in causes if not cause.startswith("0 %")]
        return f"{self.tensor} of the {self.gemm.replace('_', ' ')}: {', '.join([f'{self.sqnr_db:.1f} dB', *said])}"


@dataclass(frozen=True)
class KeptLayer:
    """A layer that should stay in BF16 under a recipe, and its worst operand in words."""

    layer: str
    reason: str


@dataclass(frozen=True)
class RecipeForecast:
    """One recipe, over the layers that the plan does not keep in BF16 anyway.

    poor_share: of its operands below LEAST_SQNR_DB. kept_share: of the linear layers' GEMM FLOPs that `keep` holds.
    candidate: it is the plan's own. step_speed: against BF16 as measured elsewhere; None where it was not.
    """

    recipe: str
    kind: str
    candidate: bool
    needs_blackwell: bool
    step_speed: float | None
    worst: OperandForecast
    median_sqnr_db: float
    underflow: float
    overflow: float
    poor_share: float
    keep: tuple[KeptLayer, ...]
    kept_share: float

    @property
    def advisable(self) -> bool:
        return self.kept_share <= MOST_KEPT.value


@dataclass(frozen=True)
class Advice:
    """steps: that were sampled. tokens: rows of each activation. layers: linear, in depth order; kept_by_plan: of those.

    operands: the whole forecast. first: the recipe to try first, None where there is none. sentences: the
    advice in words, the first of them in one. seconds, cost_share: what the sampling took, and of the training steps' time.
    """

    steps: tuple[int, ...]
    tokens: int
    layers: tuple[str, ...]
    kept_by_plan: tuple[str, ...]
    recipes: tuple[RecipeForecast, ...]
    operands: tuple[OperandForecast, ...]
    first: str | None
    sentences: tuple[str, ...]
    threshold: Threshold = LEAST_SQNR_DB
    seconds: float | None = None
    cost_share: float | None = None

    @property
    def summary(self) -> str:
        return " ".join(self.sentences)

    def forecast(self, recipe: str) -> RecipeForecast:
        return next(one for one in self.recipes if one.recipe == recipe)


class _Row(BaseModel):
    """A row of the worker's table: one operand over layers."""

    step: int
    recipe: str
    gemm: Gemm
    tensor: TensorName
    operand: str
    tokens: int
    layers: list[str]
    sqnr_db: list[float]
    underflow: list[float]
    overflow: list[float]
    least_log2_scale: list[float]
    largest_log2_scale: list[float]


def advice(
    job: Job, record: Record, keep_bf16: Sequence[str], candidate: Recipe, odd_shapes: OddShapes = "keep"
) -> Advice | None:
    """What the tables of a BF16 run say; None where nothing was sampled."""
    task = job.task
    if not isinstance(task, Train) or task.tensor_stats is None:
        return None
    recipes = {recipe.in_words: recipe for recipe in task.tensor_stats.recipes}
    tables = [table for name, table in sorted(record.tables.items()) if name.startswith(TABLE)]
    rows = [row for table in tables for row in _rows(table) if row.recipe in recipes]
    if not rows:
        return None
    layers = tuple(dict.fromkeys(layer for row in rows for layer in row.layers))
    operands = worst_of(rows)
    kept = frozenset(layer for wanted in keep_bf16 for layer in matching(layers, wanted))
    shares = _flops_shares(record, layers, kept)
    counted: dict[str, list[OperandForecast]] = defaultdict(list)
    for one in operands:
        if one.layer not in kept:
            counted[one.recipe].append(one)
    found = tuple(
        forecast(
            *(recipe, counted[words], shares),
            {} if odd_shapes == "pad" else refused_shapes(task, recipe),
            candidate=recipe == candidate,
        )
        for words, recipe in recipes.items()
        if counted[words]
    )
    first = first_to_try(found)
    seconds = record.facts.get("advisor_seconds")
    return Advice(
        steps=tuple(sorted({row.step for row in rows})),
        tokens=max(row.tokens for row in rows),
        layers=layers,
        kept_by_plan=tuple(layer for layer in layers if layer in kept),
        recipes=found,
        operands=operands,
        first=None if first is None else first.recipe,
        sentences=sentences(found, first),
        seconds=seconds if isinstance(seconds, float) else None,
        cost_share=_cost_share(record, seconds),
    )


def _rows(table: Iterable[Mapping[str, object]]) -> list[_Row]:
    """Rows that are whole; what is not is read past, as everywhere in a run directory."""
    found = []
    for raw in table:
        try:
            row = _Row.model_validate(raw)
        except ValidationError:
            continue
        columns = (row.sqnr_db, row.underflow, row.overflow, row.least_log2_scale, row.largest_log2_scale)
        if all(len(column) == len(row.layers) for column in columns):
            found.append(row)
    return found


def worst_of(rows: Iterable[_Row]) -> tuple[OperandForecast, ...]:
    """Over the samples of each operand: least SQNR (NaN is worse than any), largest shares, widest range of scales."""
    found: dict[tuple[str, str, str, str], OperandForecast] = {}
    for row in rows:
        columns = zip(row.sqnr_db, row.underflow, row.overflow, row.least_log2_scale, row.largest_log2_scale, strict=True)
        for layer, (sqnr, underflow, overflow, least, largest) in zip(row.layers, columns, strict=True):
            new = OperandForecast(
                row.recipe, layer, row.gemm, row.tensor, row.operand, sqnr, underflow, overflow, least, largest, row.step
            )
            key = (row.recipe, layer, row.gemm, row.tensor)
            found[key] = _worse(found[key], new) if key in found else new
    return tuple(found.values())


def _worse(a: OperandForecast, b: OperandForecast) -> OperandForecast:
    low = min(a, b, key=_badness)
    return OperandForecast(
        *(low.recipe, low.layer, low.gemm, low.tensor, low.operand, low.sqnr_db),
        underflow=max(a.underflow, b.underflow),
        overflow=max(a.overflow, b.overflow),
        least_log2_scale=min(a.least_log2_scale, b.least_log2_scale),
        largest_log2_scale=max(a.largest_log2_scale, b.largest_log2_scale),
        step=low.step,
    )


def _badness(one: OperandForecast) -> float:
    """For sorting: the lower the worse."""
    return float("-inf") if isnan(one.sqnr_db) else one.sqnr_db


def refused_shapes(task: Train, recipe: Recipe) -> dict[str, str]:
    """Layers whose shapes the GEMMs of a recipe do not take, and why: they stay in BF16 whatever their SQNR."""
    tokens = task.training.micro_batch_size * task.training.sequence_length
    sites = [site for site in gemm_sites(task.model, task.training.sequence_length) if site.is_linear]
    return {site.name: refusal for site in sites if (refusal := shape_refusal(site, [recipe], tokens))}


def forecast(
    recipe: Recipe,
    operands: Sequence[OperandForecast],
    shares: Mapping[str, float],
    refused: Mapping[str, str],
    *,
    candidate: bool,
) -> RecipeForecast:
    """One recipe's operands in sum. shares: of FLOPs, by layer. refused: layers whose shape it does not take."""
    poor: dict[str, OperandForecast] = {}
    for one in sorted(operands, key=_badness):
        if one.poor:
            poor.setdefault(one.layer, one)
    reasons = {layer: one.in_words for layer, one in poor.items()} | dict(refused)
    ordered = [layer for layer in shares if layer in reasons]
    eight_bits = all("e2m1" not in one.operand for one in operands)
    return RecipeForecast(
        recipe=recipe.in_words,
        kind=recipe.kind,
        candidate=candidate,
        needs_blackwell=recipe.kind in NEEDS_BLACKWELL,
        # No GPU multiplies E2M1 with one scale per tensor.
        step_speed=STEP_SPEED.get(recipe.kind) if eight_bits else None,
        worst=min(operands, key=_badness),
        median_sqnr_db=median(_badness(one) for one in operands),
        underflow=max(one.underflow for one in operands),
        overflow=max(one.overflow for one in operands),
        poor_share=sum(one.poor for one in operands) / len(operands),
        keep=tuple(KeptLayer(layer, reasons[layer]) for layer in ordered),
        kept_share=sum(shares[layer] for layer in ordered),
    )


def first_to_try(recipes: Iterable[RecipeForecast]) -> RecipeForecast | None:
    """The fastest step, with what the layers to keep take from it; then the higher worst SQNR. Hopper's recipes only."""
    known = [one for one in recipes if one.step_speed is not None and one.advisable]
    return max(known, key=lambda one: (_gain(one), _badness(one.worst)), default=None)


def _gain(one: RecipeForecast) -> float:
    assert one.step_speed is not None
    return (one.step_speed - 1) * (1 - one.kept_share)


def sentences(recipes: Sequence[RecipeForecast], first: RecipeForecast | None) -> tuple[str, ...]:
    """The advice: what to try, why, what of the plan's own recipe, what else there is on Blackwell."""
    if first is None:
        most, least = f"{100 * MOST_KEPT.value:.0f} %", f"{LEAST_SQNR_DB.value:g} dB"
        said = [f"No recipe to try: each with a known speed has more than {most} of the FLOPs in layers below {least}."]
    else:
        said = [
            f"Try {first.kind} first: {_keeping(first)}; {_lowest(first)}.",
            f"Of the recipes with few layers to keep, its step is the fastest: {first.step_speed:g} × BF16, {SOURCE}.",
        ]
    own = next((one for one in recipes if one.candidate and one is not first), None)
    if own is not None:
        said.append(f"The plan's own candidate, {own.recipe}: {_keeping(own)}; {_lowest(own)}.")
    blackwell = [f"{one.kind} ({_keeping(one)})" for one in recipes if one.needs_blackwell and one.advisable]
    if blackwell:
        said.append(f"On Blackwell also {' and '.join(blackwell)}: not ranked, for their speed was not measured.")
    return tuple(said)


def _lowest(one: RecipeForecast) -> str:
    worst = one.worst
    where = f"{worst.layer}, {worst.tensor} of the {worst.gemm.replace('_', ' ')}"
    return f"its lowest operand keeps {worst.sqnr_db:.1f} dB ({where})"


def _keeping(one: RecipeForecast) -> str:
    if not one.keep:
        return "no layer to keep in BF16"
    names = [kept.layer for kept in one.keep]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{len(names)} {'layer' if len(names) == 1 else 'layers'} to keep in BF16 ({', '.join(names[:3])}{more})"


def gemm_forecasts(advised: Advice, plan: Plan) -> dict[tuple[str, Gemm], float]:
    """By layer and GEMM the SQNR (dB) of the product under the recipe that the plan gives it.

    The noise of its two operands adds up, where they and their errors are not correlated.
    """
    noise: dict[tuple[str, Gemm], float] = defaultdict(float)
    for one in _as_planned(advised, plan):
        noise[one.layer, one.gemm] += 10 ** (-one.sqnr_db / 10)
    return {key: inf if total == 0 else -10 * log10(total) for key, total in noise.items()}


def unfit_layers(advised: Advice, plan: Plan) -> tuple[KeptLayer, ...]:
    """Layers with a poor operand under the recipe that the plan gives its GEMM, and the poorest: what keep_advised keeps."""
    worst: dict[str, OperandForecast] = {}
    for one in sorted(_as_planned(advised, plan), key=_badness):
        if one.poor:
            worst.setdefault(one.layer, one)
    return tuple(KeptLayer(layer, worst[layer].in_words) for layer in advised.layers if layer in worst)


def _as_planned(advised: Advice, plan: Plan) -> list[OperandForecast]:
    """Of all forecasts those of the operands that the plan has in low precision, each under the recipe that it has there."""
    candidate = plan.candidate
    policy = planned_policy(plan, plan.model)
    own = next((one.recipe for one in advised.recipes if one.candidate), "")
    # The advisor may have sampled the candidate under another name: with the history that it looks back on itself.
    names = {candidate.recipe.in_words: own}
    wanted = {
        (name, gemm): names.get(recipe.in_words, recipe.in_words)
        for name, site in policy.sites.items()
        for gemm, recipe in site.recipes.items()
    }
    return [one for one in advised.operands if wanted.get((one.layer, one.gemm)) == one.recipe]


def _flops_shares(record: Record, layers: Sequence[str], kept: frozenset[str]) -> dict[str, float]:
    """Each layer's share of the FLOPs of the linear layers that the plan does not keep, in depth order; equal where unknown."""
    known = {layer.name: layer.flops_share for layer in record.conversion.layers} if record.conversion else {}
    flops = {layer: known.get(layer, 0.0) for layer in layers if layer not in kept}
    if not sum(flops.values()):
        flops = dict.fromkeys(flops, 1.0)
    return {layer: share / sum(flops.values()) for layer, share in flops.items()}


def _cost_share(record: Record, seconds: object) -> float | None:
    """The sampling's share of the time of the training steps."""
    series = record.series.get("step_seconds")
    if not isinstance(seconds, float) or series is None or not series.values.sum():
        return None
    return seconds / float(series.values.sum())
