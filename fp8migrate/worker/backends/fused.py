"""Transformer Engine's fused modules in the place of the whole model: which module gets which recipe."""

from collections.abc import Mapping

from fp8migrate.errors import UsageError
from fp8migrate.facts.operands import Gemm
from fp8migrate.facts.recipes import Recipe
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.sizing.policy import Policy
from fp8migrate.worker.backends.te_modules import import_transformer_engine
from fp8migrate.worker.backends.transformer_engine import TransformerEngine
from fp8migrate.worker.models.fused import MODULES, FusedLlama, NonGemm
from fp8migrate.worker.models.packed import PackedLlama

Recipes = Mapping[Gemm, Recipe]


def module_recipes(policy: Policy, settings: LlamaModel) -> dict[str, Recipes]:
    """Recipes of every fused module, by `layers.0.mlp` and `lm_head`; empty: in BF16, for one of its sites is kept.

    Raises UsageError where sites of one module are to have different recipes.
    """
    found = {
        f"layers.{layer}.{module}": _joint(policy, [f"layers.{layer}.{site}" for site in sites])
        for layer in range(settings.num_layers)
        for module, sites in MODULES.items()
    }
    return found | {"lm_head": _joint(policy, ["lm_head"])}


def _joint(policy: Policy, sites: list[str]) -> Recipes:
    if odd := [site for site in sites if policy.sites[site].padding]:
        raise UsageError(
            f"{', '.join(odd)}: fused modules take no padding",
            where="candidate.odd_shapes",
            next_step="Say candidate.odd_shapes: keep.",
        )
    recipes = [policy.sites[site].recipes for site in sites]
    if not all(recipes):
        return {}
    if any(each != recipes[0] for each in recipes):
        raise UsageError(
            f"{', '.join(sites)} are one fused module and cannot have different recipes",
            where="candidate.policy",
            next_step="Give them the same recipe.",
        )
    return recipes[0]


def fuse(
    packed: PackedLlama,
    backend: TransformerEngine,
    recipes: Mapping[str, Recipes],
    *,
    fuse_head: bool,
    non_gemm: NonGemm | None = None,
) -> FusedLlama:
    """The packed model's parameters run by Transformer Engine."""
    te = import_transformer_engine()
    settled = {name: backend.recipe_of(each, name) for name, each in recipes.items()}
    model = FusedLlama(packed, te, settled.__getitem__, fuse_head=fuse_head, non_gemm=non_gemm)
    model.around_pass = backend.around_pass
    return model
