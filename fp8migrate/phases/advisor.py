"""What the advisor samples of the BF16 run: decided before it starts, so that repeated and resumed runs sample the same.

It may cost 2 % of the run, by estimates that favour no machine: on a CPU it is the values that take time, on a GPU starting
kernels. A run too short for that is sampled once all the same.
"""

from typing import Literal

from fp8migrate.facts.recipes import MIGRATION_RECIPES, DelayedRecipe, Recipe
from fp8migrate.jobs import TensorStats
from fp8migrate.plan.schema import Plan
from fp8migrate.sizing.flops import flops_per_token

Device = Literal["cpu", "cuda"]

COST_SHARE = 0.02
# Blocks of 128 x 128 are whole in a multiple of this.
ROWS = 128
# On a CPU one row of each tensor under all recipes costs as much as training on ROW_COST / hidden_size tokens: training grows
# with the square of the width, quantising with the width. Measured at hidden size 112, reports/DECISIONS.md.
ROW_COST = 3000
# On a GPU a sample takes as long for each decoder layer, and a step at least this long. Both measured on one H200 with torch
# 2.11, whose vmap cannot look at a float's bits: newer ones sample faster.
GPU_SAMPLE_SECONDS_PER_LAYER = 0.17
GPU_STEP_SECONDS_PER_LAYER = 0.006
GPU_FLOPS_PER_SECOND = 4e14


def tensor_stats(plan: Plan, device: Device) -> TensorStats | None:
    """Which updates of the baseline's run are looked at, and how many rows of their tensors; None: switched off."""
    wanted, last = plan.phases.baseline.advisor, plan.training.num_steps
    if wanted.samples == 0:
        return None
    rows = affordable_rows(plan)
    samples = min(wanted.samples, last, max(1, rows // ROWS))
    if device == "cuda":
        samples = min(samples, max(1, affordable_gpu_samples(plan)))
    most = max(ROWS, rows // samples // ROWS * ROWS)
    return TensorStats(steps=sampled_steps(last, samples), recipes=advised(plan), max_tokens=min(wanted.max_tokens, most))


def affordable_rows(plan: Plan) -> int:
    """Rows in all samples together that quantising may cost on a CPU."""
    return int(COST_SHARE * plan.training.num_steps * plan.training.tokens_per_step * plan.model.hidden_size / ROW_COST)


def affordable_gpu_samples(plan: Plan) -> int:
    """Samples whose kernels may be started on a GPU."""
    layers, training = plan.model.num_layers, plan.training
    compute = flops_per_token(plan.model, training.sequence_length) * training.tokens_per_step / GPU_FLOPS_PER_SECOND
    step_seconds = max(layers * GPU_STEP_SECONDS_PER_LAYER, compute)
    return int(COST_SHARE * training.num_steps * step_seconds / (layers * GPU_SAMPLE_SECONDS_PER_LAYER))


def sampled_steps(last: int, samples: int) -> tuple[int, ...]:
    """Spread from a tenth of the run to its end; a single sample at seven tenths."""
    shares = [0.7] if samples == 1 else [0.1 + 0.9 * number / (samples - 1) for number in range(samples)]
    return tuple(sorted({max(1, round(share * last)) for share in shares}))


def advised(plan: Plan) -> tuple[Recipe, ...]:
    """The usual recipes, each as the plan has it, and the plan's others: plans of several recipes share a baseline run.

    In an order that does not depend on which of those that the advisor is to forecast is the candidate.
    """
    own = [recipe for recipe in (*plan.phases.baseline.advisor.recipes, *plan.candidate.recipes) if recipe.kind != "bf16"]
    usual = [next((one for one in own if _alike(recipe, one)), recipe) for recipe in MIGRATION_RECIPES]
    return tuple(dict.fromkeys((*usual, *own)))


def _alike(recipe: Recipe, own: Recipe) -> bool:
    """Equal, or differing in how far a history reaches: further than the advisor's own reaches anyway."""
    if isinstance(recipe, DelayedRecipe) and isinstance(own, DelayedRecipe):
        return own.model_copy(update={"amax_history_len": recipe.amax_history_len}) == recipe
    return own == recipe
