"""What a library can be asked for: which recipes, with which settings, in which GEMMs of one layer, and which side by side."""

from collections.abc import Iterable, Mapping

from fp8migrate.facts.backends import BackendName, Version, limit
from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, FixedRecipe, Nvfp4Recipe, Recipe

# Formats that Transformer Engine's Float8CurrentScaling takes (2.20: "Pure E5M2 training is not supported").
_TE_FORMATS = ("hybrid", "e4m3")
_FAST = "backward_split_accumulator: false"


def layer_refusal(backend: BackendName, recipes: Mapping[Gemm, Recipe]) -> str | None:
    """Why a backend cannot run one layer's GEMMs under these recipes, and what to do; None: it can. Empty: FP8 off."""
    kinds = list(dict.fromkeys(recipes.values()))
    if backend == "emulated" or not kinds:
        fast = any(recipe.sums_fast for recipe in kinds)
        return f"emulation adds up in FP32 and cannot show what {_FAST} does: judge it on a GPU with FP8" if fast else None
    if len(kinds) > 1:
        return "one recipe for all GEMMs of a layer: give the rule all of them, or leave the others in BF16"
    (recipe,) = kinds
    if backend == "torchao":
        return None
    if isinstance(recipe, FixedRecipe) or (isinstance(recipe, CurrentRecipe) and recipe.format not in _TE_FORMATS):
        return f"Transformer Engine has no {recipe.in_words}: choose hybrid or e4m3, or say candidate.backend: emulated"
    own = {gemm for gemm in GEMMS if recipe.operands(gemm) is not None}
    if set(recipes) == own:
        return None
    if set(recipes) != {"forward"}:
        return (
            "Transformer Engine runs all three GEMMs of a layer in FP8, or the forward GEMM alone: "
            "give the rule all of them, or both backward ones"
        )
    if isinstance(recipe, DelayedRecipe):
        return "Transformer Engine's delayed scaling never runs the forward GEMM alone: use current scaling for such layers"
    return None


def plan_refusal(backend: BackendName, recipes: Iterable[Recipe], capability: Version | None) -> str | None:
    """Why a backend cannot run these recipes in one model on a GPU of this capability; None: it can."""
    if backend != "transformer_engine":
        return None
    recipes = list(recipes)
    for recipe in recipes:
        needs = limit(backend, recipe.kind, capability)
        if needs and isinstance(recipe, Nvfp4Recipe) and not (recipe.disable_rht and recipe.disable_stochastic_rounding):
            return f"{recipe.kind} runs on this GPU {needs}"
    summing_alike = (recipe.model_copy(update={"backward_split_accumulator": True}) for recipe in recipes)
    delayed = {recipe for recipe in summing_alike if isinstance(recipe, DelayedRecipe)}
    alike = {recipe.model_copy(update={"amax_compute": "max"}) for recipe in delayed}
    if len(alike) < len(delayed):
        # Its key of a recipe (2.20, DelayedScaling._make_repr) leaves amax_compute_algo out: one of both would hold for all.
        return "Transformer Engine takes delayed recipes that differ in amax_compute alone for one: use one of both"
    return None
