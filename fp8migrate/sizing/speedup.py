"""From times of parts to the whole step: the speed-up to expect, its limit, the layers that lose, the size that pays.

The step in FP8 takes what it takes in BF16, less what shallow models say that it saves (see `shallow`). Times of single layers
tell which of them gain.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import Bf16Recipe, DelayedRecipe, Recipe
from fp8migrate.plan.schema import PolicyRule
from fp8migrate.sizing.break_even import BreakEven, LinearShape, Part, PartTime, RawGemm, by_shape_and_part, whole_gain_us
from fp8migrate.sizing.flops import GemmSite
from fp8migrate.sizing.policy import Policy
from fp8migrate.sizing.shallow import layer_kinds, saved_seconds
from fp8migrate.sizing.units import Unit, pattern_of, units

_BACKWARD: tuple[Gemm, ...] = ("data_gradient", "weight_gradient")


@dataclass(frozen=True)
class Converted:
    """Matrices of one pattern that the policy has in FP8. Microseconds of one pass, all of them together."""

    pattern: str
    shape: LinearShape
    count: int
    bf16_us: float
    fp8_us: float

    @property
    def gain_us(self) -> float:
        return self.bf16_us - self.fp8_us


@dataclass(frozen=True)
class Foretold:
    """The step in BF16 and what it will take in FP8. Seconds."""

    bf16_step_s: float
    fp8_step_s: float

    @property
    def speedup(self) -> float:
        return self.bf16_step_s / self.fp8_step_s

    def error(self, measured_fp8_step_s: float) -> float:
        """Foretold speed-up against the measured one, as a fraction: +0.03 promised 3 % too much."""
        return measured_fp8_step_s / self.fp8_step_s - 1


@dataclass(frozen=True)
class Prediction:
    """What FP8 makes of a step. foretold: None where shallow models were not timed.

    by_single_layers: the speed-up if the step saved what its linear layers do, each timed by itself. limit: the speed-up if
    converted layers took their products' time in FP8 and nothing for casts, all else as in BF16; None where a product's rate is
    missing. unmeasured: converted matrices without a time, which count as no gain in by_single_layers.
    """

    bf16_step_s: float
    foretold: Foretold | None
    by_single_layers: float
    limit: float | None
    converted: tuple[Converted, ...]
    unmeasured: tuple[str, ...] = ()

    @property
    def gaining(self) -> tuple[str, ...]:
        return tuple(each.pattern for each in self.converted if each.gain_us > 0)

    @property
    def losing(self) -> tuple[str, ...]:
        return tuple(each.pattern for each in self.converted if each.gain_us <= 0)


@dataclass(frozen=True)
class KeepLosers:
    """What a plan's candidate says so that what loses stays in BF16. patterns: of keep_bf16, those that lose."""

    keep_bf16: tuple[str, ...]
    policy: tuple[PolicyRule, ...]
    patterns: tuple[str, ...]

    @property
    def yaml(self) -> str:
        """For the plan, as it is."""
        lines = ["candidate:", f"  keep_bf16: [{', '.join(map(_quoted, self.keep_bf16))}]"]
        if self.policy:
            lines.append("  policy:")
        for rule in self.policy:
            lines.append(f"    - {{layers: {_quoted(rule.layers)}, gemms: [{', '.join(rule.gemms)}], recipe: {{kind: bf16}}}}")
        return "\n".join(lines) + "\n"


def predict(
    found: BreakEven,
    policy: Policy,
    sites: Sequence[GemmSite],
    *,
    backend: str,
    arm: str,
    tokens_per_pass: int,
    bf16_step_s: float,
) -> Prediction:
    """The step, of one micro-batch, of the model whose linear layers have this policy. arm: its name in `found.depths`.

    Raises ValueError where the savings exceed the step: then times and step are not of one model.
    """
    converted: dict[str, Converted] = {}
    unmeasured, saved_raw_us = [], _Sum()
    raw = {(each.shape, each.gemm): each for each in found.raw}
    table = {(time.recipe, time.shape, time.part): time for time in found.times if time.backend == backend}
    for unit in units(sites, found.layout):
        recipes = recipes_of_unit(unit, policy)
        if not recipes:
            continue
        shape = _shape(unit, tokens_per_pass)
        for gemm in recipes:
            saved_raw_us.add(_raw_saving(raw.get((shape, gemm))))
        times = [table.get((recipe.in_words, shape, part)) for part, recipe in _parts(recipes)]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            unmeasured.append(unit.name)
            continue
        converted[unit.pattern] = _added(converted.get(unit.pattern), unit, shape, known)
    by_layers_s = sum(each.gain_us for each in converted.values()) / 1e6
    saved_s = saved_seconds(found.depths, arm, layer_kinds(policy))
    for saved in (by_layers_s, saved_s or 0.0):
        if saved >= bf16_step_s:
            raise ValueError(f"layers save {saved:g} s of a step of {bf16_step_s:g} s: they are not of one model")
    limit = saved_raw_us.total
    left_s = None if limit is None else bf16_step_s - limit / 1e6
    return Prediction(
        bf16_step_s=bf16_step_s,
        foretold=None if saved_s is None else Foretold(bf16_step_s, bf16_step_s - saved_s),
        by_single_layers=bf16_step_s / (bf16_step_s - by_layers_s),
        limit=None if left_s is None or left_s <= 0 else bf16_step_s / left_s,
        converted=tuple(converted.values()),
        unmeasured=tuple(unmeasured),
    )


def losers(
    found: BreakEven,
    sites: Sequence[GemmSite],
    *,
    backend: str,
    recipe: Recipe,
    tokens_per_pass: int,
    keep_bf16: Sequence[str] = (),
) -> KeepLosers:
    """Layers that take longer under a recipe than in BF16, forward and backward together, and of the others single GEMMs that
    do, where the backend can keep them. keep_bf16: the plan's own, which stay.
    """
    times = by_shape_and_part(found.times, backend, recipe.in_words)
    total: dict[tuple[str, ...], float] = {}
    by_module: dict[tuple[str, ...], list[Unit]] = {}
    for unit in units(sites, found.layout):
        gain = whole_gain_us(times, _shape(unit, tokens_per_pass))
        if gain is not None:
            total[unit.together] = total.get(unit.together, 0.0) + gain
            by_module.setdefault(unit.together, []).append(unit)
    lost = [pattern_of(site) for module, gain in total.items() if gain <= 0 for site in module]
    rules = [
        rule
        for module, gain in total.items()
        if gain > 0
        for unit in by_module[module]
        if unit.together == unit.sites
        for rule in _single_gemms(times, unit, _shape(unit, tokens_per_pass), backend, recipe)
    ]
    patterns = tuple(dict.fromkeys(each for each in lost if each not in keep_bf16))
    kept = {*keep_bf16, *patterns}
    wanted = tuple(rule for rule in dict.fromkeys(rules) if rule.layers not in kept)
    return KeepLosers((*keep_bf16, *patterns), wanted, patterns)


def fewest_tokens(times: Iterable[PartTime], out_features: int, in_features: int, backend: str, recipe: str) -> int | None:
    """The fewest measured tokens from which on a layer of this size gains; None: it never does."""
    return _least(
        by_shape_and_part(times, backend, recipe),
        lambda shape: (shape.out_features, shape.in_features) == (out_features, in_features),
        lambda shape: shape.tokens,
    )


def fewest_weights(times: Iterable[PartTime], tokens: int, backend: str, recipe: str) -> int | None:
    """The smallest measured out × in from which on layers gain at so many tokens: a keep_smaller_than; None: none does."""
    return _least(by_shape_and_part(times, backend, recipe), lambda shape: shape.tokens == tokens, lambda shape: shape.weights)


def recipes_of_unit(unit: Unit, policy: Policy) -> Mapping[Gemm, Recipe]:
    """What a matrix runs in: what its layers share. Empty: BF16, for one of them is kept or has another recipe."""
    recipes = [policy.sites[site].recipes for site in unit.together]
    return recipes[0] if all(each == recipes[0] for each in recipes) else {}


def _parts(recipes: Mapping[Gemm, Recipe]) -> list[tuple[Part, Recipe]]:
    """The measurements that tell a matrix's time: forward and backward as a whole, or single GEMMs of a policy's exception."""
    first, *others = dict.fromkeys(recipes.values())
    own = {gemm for gemm in GEMMS if first.operands(gemm) is not None}
    if not others and recipes.keys() == own:
        return [("forward", first), ("backward", first)]
    return list(recipes.items())


def _added(before: Converted | None, unit: Unit, shape: LinearShape, times: Sequence[PartTime]) -> Converted:
    bf16, fp8 = sum(time.bf16_us for time in times), sum(time.fp8_us for time in times)
    if before is None:
        return Converted(unit.pattern, shape, 1, bf16, fp8)
    return Converted(unit.pattern, shape, before.count + 1, before.bf16_us + bf16, before.fp8_us + fp8)


def _single_gemms(
    times: Mapping[tuple[LinearShape, Part], PartTime], unit: Unit, shape: LinearShape, backend: str, recipe: Recipe
) -> list[PolicyRule]:
    """Rules that keep GEMMs in BF16 which lose by themselves. Transformer Engine keeps both gradients or none."""
    if backend == "transformer_engine":
        backward = times.get((shape, "backward"))
        loses = backward is not None and backward.gain_us <= 0 and not isinstance(recipe, DelayedRecipe)
        lost = _BACKWARD if loses else ()
    else:
        lost = tuple(gemm for gemm in GEMMS if (time := times.get((shape, gemm))) is not None and time.gain_us <= 0)
    if not lost or len(lost) == len(GEMMS):
        return []
    return [PolicyRule(layers=pattern_of(site), gemms=lost, recipe=Bf16Recipe()) for site in unit.sites]


def _least(
    times: Mapping[tuple[LinearShape, Part], PartTime],
    wanted: Callable[[LinearShape], bool],
    size: Callable[[LinearShape], int],
) -> int | None:
    by_size: dict[int, float] = {}
    for shape in {shape for shape, _ in times if wanted(shape)}:
        gain = whole_gain_us(times, shape)
        if gain is not None:
            by_size[size(shape)] = min(gain, by_size.get(size(shape), gain))
    least = None
    for each in sorted(by_size, reverse=True):
        if by_size[each] <= 0:
            break
        least = each
    return least


def _raw_saving(raw: RawGemm | None) -> float | None:
    return None if raw is None or raw.fp8_us is None else raw.bf16_us - raw.fp8_us


@dataclass
class _Sum:
    """A sum that is unknown as soon as one of its terms is."""

    total: float | None = 0.0

    def add(self, term: float | None) -> None:
        self.total = None if term is None or self.total is None else self.total + term


def _shape(unit: Unit, tokens: int) -> LinearShape:
    return LinearShape(tokens=tokens, out_features=unit.out_features, in_features=unit.in_features)


def _quoted(pattern: str) -> str:
    return f'"{pattern}"' if "*" in pattern or "[" in pattern or "?" in pattern else pattern
