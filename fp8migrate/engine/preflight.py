"""What a plan says that cannot be carried out, found before anything runs: it needs the model's layers, not the machine."""

from fp8migrate.errors import PlanError
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.plan.shrink import shrink
from fp8migrate.sizing.flops import gemm_sites, resolve_filters


def preflight(loaded: LoadedPlan) -> None:
    """Raise PlanError with file and line where a filter names no layer, or the model cannot be shrunk as asked.

    A filter that matches nothing leaves a layer in FP8 that its author believes to be in BF16.
    """
    plan = loaded.plan
    _refuse_unmatched(loaded, plan.model, "the model")
    try:
        small = shrink(plan.model, plan.phases.small_scale.shrink)
    except PlanError as error:
        raise PlanError(
            error.what,
            where=f"{loaded.where('phases.small_scale.shrink')}: phases.small_scale.shrink",
            next_step=error.next_step,
        ) from error
    _refuse_unmatched(loaded, small, f"the model shrunk to {small.num_layers} layers")


def _refuse_unmatched(loaded: LoadedPlan, model: LlamaModel, words: str) -> None:
    linear = [site.name for site in gemm_sites(model, loaded.plan.training.sequence_length) if site.is_linear]
    unmatched = resolve_filters(linear, loaded.plan.candidate.keep_bf16).unmatched
    if unmatched:
        raise PlanError(
            f"candidate.keep_bf16: {', '.join(unmatched)} matches no layer of {words}",
            where=loaded.where("candidate.keep_bf16"),
            next_step=f"Layers are named like {linear[0]}; lm_head, first_layer and last_layer are names too; * matches all.",
        )
