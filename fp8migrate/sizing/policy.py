"""Which GEMM of which layer gets which recipe, and why the others stay in BF16.

In this order: attention's products of activations are never converted; `keep_bf16` keeps whole layers; the policy's rules
exchange the recipe by layer and GEMM, later ones over earlier; a recipe may leave a GEMM in BF16 by itself; and a layer whose
shape the hardware's GEMMs do not take is kept.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import Recipe
from fp8migrate.plan.schema import PolicyRule
from fp8migrate.sizing.flops import GemmSite

PRODUCTS_REASON = "a product of activations: attention runs in BF16"

_LAYER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class SitePolicy:
    """One site: the recipe of each GEMM that is in low precision; `reason`: why none is, or the recipes' names."""

    recipes: Mapping[Gemm, Recipe]
    reason: str


@dataclass(frozen=True)
class Policy:
    """sites: by name, in the model's order. unmatched: filters and rules that name no linear layer, a mistake to report."""

    sites: Mapping[str, SitePolicy]
    unmatched: tuple[str, ...] = ()

    @property
    def kept(self) -> dict[str, str]:
        """Sites that stay in BF16 as a whole, and why."""
        return {name: site.reason for name, site in self.sites.items() if not site.recipes}

    def low_precision_share(self, sites: Sequence[GemmSite]) -> float:
        """Share of the model's GEMM FLOPs, forward and backward, that run in low precision."""
        low = sum(site.flops_of(gemm) for site in sites for gemm in self.sites[site.name].recipes)
        return low / sum(site.flops for site in sites)


def resolve_policy(
    sites: Sequence[GemmSite], recipe: Recipe, keep_bf16: Sequence[str], rules: Sequence[PolicyRule], tokens_per_pass: int
) -> Policy:
    """What every site gets. tokens_per_pass: micro_batch_size × sequence_length, the leading dimension of activations."""
    linear = [site.name for site in sites if site.is_linear]
    kept: dict[str, str] = {}
    unmatched = []
    for wanted in keep_bf16:
        matches = matching(linear, wanted)
        kept = dict.fromkeys(matches, f"keep_bf16: {wanted}") | kept
        unmatched += [] if matches else [wanted]
    matched_rules = [(rule, set(matching(linear, rule.layers))) for rule in rules]
    unmatched += [rule.layers for rule, matches in matched_rules if not matches]
    found = {}
    for site in sites:
        if site.name in kept or not site.is_linear:
            found[site.name] = SitePolicy({}, kept.get(site.name, PRODUCTS_REASON))
            continue
        own = [rule for rule, matches in matched_rules if site.name in matches]
        found[site.name] = _site_policy(site, recipe, own, tokens_per_pass)
    return Policy(found, tuple(dict.fromkeys(unmatched)))


def _site_policy(site: GemmSite, recipe: Recipe, rules: Sequence[PolicyRule], tokens_per_pass: int) -> SitePolicy:
    chosen: dict[Gemm, Recipe] = dict.fromkeys(GEMMS, recipe)
    for rule in rules:
        chosen |= dict.fromkeys(rule.gemms, rule.recipe)
    low = {gemm: chosen[gemm] for gemm in GEMMS if chosen[gemm].operands(gemm) is not None}
    if not low:
        return SitePolicy({}, "; ".join(f"policy: {rule.layers}" for rule in rules) or "BF16: no recipe for it")
    if refusal := shape_refusal(site, low.values(), tokens_per_pass):
        return SitePolicy({}, refusal)
    by_kind: dict[str, list[str]] = {}
    for gemm, each in low.items():
        by_kind.setdefault(each.in_words, []).append(gemm)
    whole = len(low) == len(GEMMS) and len(by_kind) == 1
    words = [words if whole else f"{words}: {', '.join(gemms)}" for words, gemms in by_kind.items()]
    return SitePolicy(low, "; ".join(words))


def matching(names: Iterable[str], wanted: str) -> list[str]:
    """Names that `lm_head`, `first_layer`, `last_layer`, a name or a shell-style, case-sensitive pattern means."""
    names = list(names)
    layers = [int(match[1]) for name in names if (match := _LAYER.match(name))]
    aliases = {"first_layer": f"layers.{min(layers)}.*", "last_layer": f"layers.{max(layers)}.*"} if layers else {}
    return [name for name in names if fnmatchcase(name, aliases.get(wanted, wanted))]


def shape_refusal(site: GemmSite, recipes: Iterable[Recipe], tokens_per_pass: int) -> str | None:
    """Why the GEMMs of these recipes cannot take a layer's shape, with the dimension at fault and what to do; None: they can.

    Operands of a linear layer are [tokens, in], [out, in] and [tokens, out].
    """
    recipes = list(recipes)
    leading = max((recipe.leading_multiple for recipe in recipes), default=1)
    last = max((recipe.last_multiple for recipe in recipes), default=1)
    if tokens_per_pass % leading:
        return f"micro_batch_size × sequence_length = {tokens_per_pass} is not a multiple of {leading}: change either"
    for dimension, size in (("out_features", site.out_features), ("in_features", site.in_features)):
        if size % last:
            return f"{dimension} {size} is not a multiple of {last}: pad it"
    return None
