"""Scaling recipes: how the tensors of a linear layer's three GEMMs are brought into a low-precision format.

A new recipe is one file here and one name in `Recipe`. Keys have the names that Transformer Engine
(transformer_engine.common.recipe) and torchao (torchao.float8.config) give them.
"""

from typing import Annotated

from pydantic import Field

from fp8migrate.facts.recipes.base import ScalingRecipe
from fp8migrate.facts.recipes.bf16 import Bf16Recipe
from fp8migrate.facts.recipes.block import BlockRecipe
from fp8migrate.facts.recipes.current import CurrentRecipe
from fp8migrate.facts.recipes.delayed import DelayedRecipe
from fp8migrate.facts.recipes.fixed import FixedRecipe
from fp8migrate.facts.recipes.mxfp8 import Mxfp8Recipe
from fp8migrate.facts.recipes.nvfp4 import Nvfp4Recipe
from fp8migrate.facts.recipes.rowwise import RowwiseHighPrecisionRecipe, RowwiseRecipe
from fp8migrate.facts.recipes.tensorwise import TensorwiseRecipe

Recipe = Annotated[
    DelayedRecipe
    | CurrentRecipe
    | BlockRecipe
    | TensorwiseRecipe
    | RowwiseRecipe
    | RowwiseHighPrecisionRecipe
    | Mxfp8Recipe
    | Nvfp4Recipe
    | FixedRecipe
    | Bf16Recipe,
    Field(discriminator="kind"),
]

# Those that somebody would train with, as they are by default; a cast with a fixed scale and BF16 are none of them.
MIGRATION_RECIPES: tuple[Recipe, ...] = (
    DelayedRecipe(),
    CurrentRecipe(),
    BlockRecipe(),
    RowwiseRecipe(),
    RowwiseHighPrecisionRecipe(),
    Mxfp8Recipe(),
    Nvfp4Recipe(),
)

# PARITY.md 2: the recipe known to be bad that every design must convict.
KNOWN_BAD = CurrentRecipe(format="e2m1")

__all__ = [
    "KNOWN_BAD",
    "MIGRATION_RECIPES",
    "Bf16Recipe",
    "BlockRecipe",
    "CurrentRecipe",
    "DelayedRecipe",
    "FixedRecipe",
    "Mxfp8Recipe",
    "Nvfp4Recipe",
    "Recipe",
    "RowwiseHighPrecisionRecipe",
    "RowwiseRecipe",
    "ScalingRecipe",
    "TensorwiseRecipe",
]
