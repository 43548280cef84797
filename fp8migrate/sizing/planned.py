"""What every layer of a model gets by a plan: its candidate's recipe, rules and exceptions, with what is kept on advice."""

from fp8migrate.plan.schema import LlamaModel, OddShapes, Plan
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.keep import Kept, kept_layers
from fp8migrate.sizing.policy import Policy, resolve_policy


def planned_policy(plan: Plan, model: LlamaModel, advised: Kept = (), *, odd_shapes: OddShapes | None = None) -> Policy:
    """model: the plan's own, or that shrunk. advised: layers of the plan's model. odd_shapes: None for the plan's."""
    training, candidate = plan.training, plan.candidate
    return resolve_policy(
        gemm_sites(model, training.sequence_length),
        *(candidate.recipe, candidate.keep_bf16, candidate.policy),
        training.micro_batch_size * training.sequence_length,
        kept=kept_layers(candidate, plan.model, model, advised),
        odd_shapes=odd_shapes or candidate.odd_shapes,
        modules=candidate.modules,
    )
