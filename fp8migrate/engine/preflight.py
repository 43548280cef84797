"""What a plan says that cannot be carried out, found before anything runs."""

from fp8migrate.engine.odd_shapes import kept_for_shape
from fp8migrate.errors import PlanError
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.plan.schema import LlamaModel, Plan
from fp8migrate.plan.shrink import shrink
from fp8migrate.records.schema import Environment
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.planned import planned_policy
from fp8migrate.sizing.policy import KINDS


def preflight(loaded: LoadedPlan) -> None:
    """Raise PlanError with file and line where a filter names no layer, nothing is left for FP8, or the model cannot be shrunk.

    A filter that matches nothing leaves a layer in FP8 that its author believes to be in BF16.
    """
    plan = loaded.plan
    _refuse_policy(loaded, plan.model, "the model")
    try:
        small = shrink(plan.model, plan.phases.small_scale.shrink)
    except PlanError as error:
        raise PlanError(
            error.what,
            where=f"{loaded.where('phases.small_scale.shrink')}: phases.small_scale.shrink",
            next_step=error.next_step,
        ) from error
    _refuse_policy(loaded, small, f"the model shrunk to {small.num_layers} layers")


def refuse_more_data_than_there_is(loaded: LoadedPlan, environment: Environment) -> None:
    """Raise PlanError where a plan asks to be validated on more tokens than are held out: fewer would be used unsaid."""
    wanted, there = loaded.plan.data.validation_tokens, environment.held_out_tokens
    if there is not None and wanted > there:
        raise PlanError(
            f"data.validation_tokens {wanted} is more than the {there} tokens held out here",
            where=loaded.where("data.validation_tokens"),
            next_step=f"Ask for at most {there}.",
        )


def _refuse_policy(loaded: LoadedPlan, model: LlamaModel, words: str) -> None:
    """Filters and rules that match nothing, and plans that leave nothing in FP8, on a model of these layers."""
    candidate = loaded.plan.candidate
    sites = gemm_sites(model, loaded.plan.training.sequence_length)
    linear = [site.name for site in sites if site.is_linear]
    policy = planned_policy(loaded.plan, model)
    if policy.unmatched:
        key = "candidate.keep_bf16" if set(policy.unmatched) & set(candidate.keep_bf16) else "candidate.policy"
        raise PlanError(
            f"{key}: {', '.join(policy.unmatched)} matches no layer of {words}",
            where=loaded.where(key),
            next_step=f"Layers are named like {linear[0]}; {', '.join(KINDS)} are names too; * matches all.",
        )
    if candidate.recipe.kind == "bf16":
        return
    if all(name in policy.kept for name in linear):
        reasons = "; ".join(sorted({policy.kept[name] for name in linear}))
        raise PlanError(
            f"every layer of {words} stays in BF16 ({reasons}): nothing is left to judge",
            where=loaded.where("candidate"),
            next_step=f"{_way_out(loaded.plan, model)}; for an A/A test say candidate.recipe: {{kind: bf16}}.",
        )
    if loaded.plan.parity.serve == "fp8" and not any("forward" in site.recipes for site in policy.sites.values()):
        raise PlanError(
            f"parity.serve: fp8, and no forward GEMM of {words} is in FP8: there is no FP8 forward to serve",
            where=loaded.where("parity.serve"),
            next_step="Say serve: bf16, or leave forward GEMMs to the recipe.",
        )


def _way_out(plan: Plan, model: LlamaModel) -> str:
    """Of plans that leave nothing in FP8: padding where shapes alone keep layers out."""
    if plan.candidate.odd_shapes == "keep" and kept_for_shape(plan, model):
        return "Say candidate.odd_shapes: pad, or change the shapes"
    return "Keep fewer layers"
