"""Transformer Engine's fused modules: which layers each holds, and what a policy comes to for one."""

import re
from collections.abc import Mapping

from fp8migrate.errors import UsageError
from fp8migrate.facts.operands import Gemm
from fp8migrate.facts.recipes import Recipe
from fp8migrate.sizing.policy import Policy
from fp8migrate.sizing.units import MLP, PACKED

# Modules of a decoder layer, and the linear layers of each.
FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv": PACKED["attention.qkv"],
    "output": PACKED["attention.output"],
    "mlp": MLP,
}
Recipes = Mapping[Gemm, Recipe]
_LAYER = re.compile(r"layers\.\d+\.")


def fused_modules(policy: Policy) -> dict[str, tuple[str, ...]]:
    """Linear layers of every fused module of a model, by `layers.0.mlp` and `lm_head`."""
    prefixes = dict.fromkeys(found[0] for site in policy.sites if (found := _LAYER.match(site)))
    layers = {
        prefix + module: tuple(prefix + member for member in members)
        for prefix in prefixes
        for module, members in FUSED.items()
    }
    return layers | {"lm_head": ("lm_head",)}


def module_recipes(policy: Policy) -> dict[str, Recipes]:
    """Recipes of every fused module, by `layers.0.mlp` and `lm_head`; empty: in BF16, for one of its layers is.

    Raises UsageError where layers of one module are to have different recipes, or to be padded.
    """
    return {name: _joint(policy, members) for name, members in fused_modules(policy).items()}


def _joint(policy: Policy, members: tuple[str, ...]) -> Recipes:
    if odd := [site for site in members if policy.sites[site].padding]:
        raise UsageError(
            f"{', '.join(odd)}: fused modules take no padding",
            where="candidate.odd_shapes",
            next_step="Say candidate.odd_shapes: keep.",
        )
    recipes = [policy.sites[site].recipes for site in members]
    if not all(recipes):
        return {}
    if any(each != recipes[0] for each in recipes):
        raise UsageError(
            f"{', '.join(members)} are one fused module and cannot have different recipes",
            where="candidate.policy",
            next_step="Give them the same recipe.",
        )
    return recipes[0]
