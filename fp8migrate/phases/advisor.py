"""What the advisor samples of the BF16 run: decided from the plan alone, so that repeated and resumed runs sample the same.

It may cost 2 % of the run. One row of each tensor under all recipes costs as much as training on ROW_COST / hidden_size
tokens: training grows with the square of the width, quantising with the width.
"""

from fp8migrate.facts.recipes import (
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
)
from fp8migrate.jobs import TensorStats
from fp8migrate.plan.schema import Plan

ADVISED: tuple[Recipe, ...] = (
    DelayedRecipe(),
    CurrentRecipe(),
    BlockRecipe(),
    RowwiseRecipe(),
    RowwiseHighPrecisionRecipe(),
    Mxfp8Recipe(),
    Nvfp4Recipe(),
)
COST_SHARE = 0.02
# Measured on two CPU cores at hidden size 112 (reports/DECISIONS.md); taken as it is everywhere else.
ROW_COST = 3000
# Blocks of 128 x 128 are whole in a multiple of this.
ROWS = 128


def tensor_stats(plan: Plan) -> TensorStats | None:
    """Which updates of the baseline's run are looked at, and how many rows of their tensors; None: switched off."""
    wanted, last = plan.phases.baseline.advisor, plan.training.num_steps
    if wanted.samples == 0:
        return None
    affordable = COST_SHARE * last * plan.training.tokens_per_step / (ROW_COST / plan.model.hidden_size)
    samples = min(wanted.samples, last, max(1, int(affordable) // ROWS))
    rows = max(ROWS, int(affordable / samples) // ROWS * ROWS)
    return TensorStats(steps=sampled_steps(last, samples), recipes=advised(plan), max_tokens=min(wanted.max_tokens, rows))


def sampled_steps(last: int, samples: int) -> tuple[int, ...]:
    """Spread from a tenth of the run to its end; a single sample at seven tenths."""
    shares = [0.7] if samples == 1 else [0.1 + 0.9 * number / (samples - 1) for number in range(samples)]
    return tuple(sorted({max(1, round(share * last)) for share in shares}))


def advised(plan: Plan) -> tuple[Recipe, ...]:
    """The plan's own recipes first, then the usual ones."""
    own = [recipe for recipe in plan.candidate.recipes if recipe.kind != "bf16"]
    return tuple(dict.fromkeys((*own, *(recipe for recipe in ADVISED if not any(_alike(recipe, one) for one in own)))))


def _alike(recipe: Recipe, own: Recipe) -> bool:
    """Equal, or differing in how far a history reaches: further than the advisor's own reaches anyway."""
    if isinstance(recipe, DelayedRecipe) and isinstance(own, DelayedRecipe):
        return own.model_copy(update={"amax_history_len": recipe.amax_history_len}) == recipe
    return own == recipe
