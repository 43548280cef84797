"""Which GEMM of which layer gets which recipe, and why the others stay in BF16.

In this order: attention's products of activations are never converted; `keep_bf16` keeps whole layers, then those kept by name;
the policy's rules exchange the recipe by layer and GEMM, later ones over earlier; a recipe may leave a GEMM in BF16 by itself;
and a layer whose shape the hardware's GEMMs do not take is kept, or padded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import Recipe
from fp8migrate.plan.schema import Modules, OddShapes, PolicyRule
from fp8migrate.sizing.flops import GemmSite
from fp8migrate.sizing.units import units

PRODUCTS_REASON = "a product of activations: attention runs in BF16"

# Kinds that a plan may keep in BF16 although no GEMM of theirs is ever converted here.
WITHOUT_GEMMS: Mapping[str, str] = {
    "norms": "norms have no GEMM: they are never in FP8 here",
    "embeddings": "the embedding is a look-up, no GEMM: it is never in FP8 here",
}
_PATTERNS = {"head": "lm_head", "attention": "layers.*.attention.*", "mlp": "layers.*.mlp.*"}
# Names besides those of layers.
KINDS = ("lm_head", *_PATTERNS, "first_layer", "last_layer")
_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class Padding:
    """What the sizes of a layer's operands are brought to with zeros: multiples of these."""

    tokens: int
    features: int


@dataclass(frozen=True)
class SitePolicy:
    """One site: the recipe of each GEMM that is in low precision; `reason`: why none is, or the recipes' names.

    padding: how it is padded for that; None: its shape is taken as it is.
    """

    recipes: Mapping[Gemm, Recipe]
    reason: str
    padding: Padding | None = None


@dataclass(frozen=True)
class Policy:
    """sites: by name, in the model's order. unmatched: filters and rules that name no linear layer, a mistake to report.

    notes: filters that name what has no GEMM, in words.
    """

    sites: Mapping[str, SitePolicy]
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> dict[str, str]:
        """Sites that stay in BF16 as a whole, and why."""
        return {name: site.reason for name, site in self.sites.items() if not site.recipes}

    def low_precision_share(self, sites: Sequence[GemmSite]) -> float:
        """Share of the model's GEMM FLOPs, forward and backward, that run in low precision."""
        low = sum(site.flops_of(gemm) for site in sites for gemm in self.sites[site.name].recipes)
        return low / sum(site.flops for site in sites)


def resolve_policy(
    sites: Sequence[GemmSite],
    recipe: Recipe,
    keep_bf16: Sequence[str],
    rules: Sequence[PolicyRule],
    tokens_per_pass: int,
    *,
    kept: Iterable[tuple[str, str]] = (),
    odd_shapes: OddShapes = "keep",
    modules: Modules = "linear",
) -> Policy:
    """What every site gets. tokens_per_pass: micro_batch_size × sequence_length, the leading dimension of activations.

    kept: further layers in BF16, by name, and why. modules fused: one layer that stays in BF16 keeps its whole module there.
    """
    linear = [site.name for site in sites if site.is_linear]
    reasons: dict[str, str] = {}
    unmatched = []
    for wanted in keep_bf16:
        matches = matching(linear, wanted)
        reasons = dict.fromkeys(matches, f"keep_bf16: {wanted}") | reasons
        unmatched += [] if matches or wanted in WITHOUT_GEMMS else [wanted]
    for name, reason in kept:
        reasons.setdefault(name, reason)
    matched_rules = [(rule, set(matching(linear, rule.layers))) for rule in rules]
    unmatched += [rule.layers for rule, matches in matched_rules if not matches]
    found: dict[str, SitePolicy] = {}
    for site in sites:
        if site.name in reasons or not site.is_linear:
            found[site.name] = SitePolicy({}, reasons.get(site.name, PRODUCTS_REASON))
            continue
        own = [rule for rule, matches in matched_rules if site.name in matches]
        found[site.name] = _site_policy(site, recipe, own, tokens_per_pass, odd_shapes)
    if modules == "fused":
        found = _whole_modules(sites, found)
    notes = tuple(dict.fromkeys(WITHOUT_GEMMS[wanted] for wanted in keep_bf16 if wanted in WITHOUT_GEMMS))
    return Policy(found, tuple(dict.fromkeys(unmatched)), notes)


def _whole_modules(sites: Sequence[GemmSite], found: Mapping[str, SitePolicy]) -> dict[str, SitePolicy]:
    whole = dict(found)
    for unit in units(sites, "fused"):
        if kept := [site for site in unit.together if not found[site].recipes]:
            why = f"one fused module with {kept[0]}, which stays in BF16"
            whole |= {site: SitePolicy({}, why) for site in unit.together if found[site].recipes}
    return whole


def _site_policy(
    site: GemmSite, recipe: Recipe, rules: Sequence[PolicyRule], tokens_per_pass: int, odd_shapes: OddShapes
) -> SitePolicy:
    chosen: dict[Gemm, Recipe] = dict.fromkeys(GEMMS, recipe)
    for rule in rules:
        chosen |= dict.fromkeys(rule.gemms, rule.recipe)
    low = {gemm: chosen[gemm] for gemm in GEMMS if chosen[gemm].operands(gemm) is not None}
    if not low:
        return SitePolicy({}, "; ".join(f"policy: {rule.layers}" for rule in rules) or "BF16: no recipe for it")
    refusal = shape_refusal(site, low.values(), tokens_per_pass)
    if refusal and odd_shapes == "keep":
        return SitePolicy({}, refusal)
    by_kind: dict[str, list[str]] = {}
    for gemm, each in low.items():
        by_kind.setdefault(each.in_words, []).append(gemm)
    whole = len(low) == len(GEMMS) and len(by_kind) == 1
    words = [words if whole else f"{words}: {', '.join(gemms)}" for words, gemms in by_kind.items()]
    if not refusal:
        return SitePolicy(low, "; ".join(words))
    padding = _multiples(low.values())
    return SitePolicy(low, "; ".join([*words, _padded_words(site, padding, tokens_per_pass)]), padding)


def matching(names: Iterable[str], wanted: str) -> list[str]:
    """Names that a kind (`head`, `attention`, `mlp`, `first_layer`, `last_layer`), a name or a pattern means.

    Patterns are shell-style and case-sensitive.
    """
    names = list(names)
    layers = [int(match[1]) for name in names if (match := _LAYER.match(name))]
    ends = {"first_layer": f"layers.{min(layers)}.*", "last_layer": f"layers.{max(layers)}.*"} if layers else {}
    pattern = (_PATTERNS | ends).get(wanted, wanted)
    return [name for name in names if fnmatchcase(name, pattern)]


def shape_refusal(site: GemmSite, recipes: Iterable[Recipe], tokens_per_pass: int) -> str | None:
    """Why the GEMMs of these recipes cannot take a layer's shape, with the dimension at fault and what to do; None: they can.

    Operands of a linear layer are [tokens, in], [out, in] and [tokens, out].
    """
    wanted = _multiples(recipes)
    if tokens_per_pass % wanted.tokens:
        return f"micro_batch_size × sequence_length = {tokens_per_pass} is not a multiple of {wanted.tokens}: change either"
    for dimension, size in (("out_features", site.out_features), ("in_features", site.in_features)):
        if size % wanted.features:
            return f"{dimension} {size} is not a multiple of {wanted.features}: pad it"
    return None


def padded_size(size: int, multiple: int) -> int:
    """The next multiple that is not below."""
    return -(-size // multiple) * multiple


def _multiples(recipes: Iterable[Recipe]) -> Padding:
    """What these recipes' GEMMs take sizes in."""
    recipes = list(recipes)
    return Padding(
        tokens=max((recipe.leading_multiple for recipe in recipes), default=1),
        features=max((recipe.last_multiple for recipe in recipes), default=1),
    )


def _padded_words(site: GemmSite, padding: Padding, tokens_per_pass: int) -> str:
    """`padded: out_features 250 → 256`"""
    sizes = (
        ("out_features", site.out_features, padding.features),
        ("in_features", site.in_features, padding.features),
        ("tokens", tokens_per_pass, padding.tokens),
    )
    return "padded: " + ", ".join(
        f"{name} {size} → {padded_size(size, multiple)}" for name, size, multiple in sizes if size % multiple
    )
