"""Scaling recipes: how the tensors of a linear layer's three GEMMs are brought into a low-precision format.

A linear layer y = x · wᵀ has a forward GEMM (x, w), a data-gradient GEMM (dy, w) and a weight-gradient GEMM (dy, x). Every
recipe here scales a tensor as a whole: q = round(clamp(t · s)) with s = format_max / amax, and the product is divided by
the two scales. Keys have Transformer Engine's names (transformer_engine.common.recipe).
"""

from typing import Annotated, Literal

from pydantic import Field

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.settings import Settings

OperandFormats = Literal["hybrid", "e4m3", "e5m2", "e2m1"]

# Forward operands (x, w) and gradient operand (dy) of each choice. HYBRID: Transformer Engine's Format.HYBRID.
FORWARD_AND_GRADIENT: dict[str, tuple[FormatInfo, FormatInfo]] = {
    "hybrid": (E4M3, E5M2),
    "e4m3": (E4M3, E4M3),
    "e5m2": (E5M2, E5M2),
    "e2m1": (E2M1, E2M1),
}


class DelayedRecipe(Settings):
    """Per-tensor scales from the amax of earlier steps (Transformer Engine's DelayedScaling)."""

    kind: Literal["delayed"] = Field("delayed", description="scales from the maxima of earlier steps")
    format: Literal["hybrid", "e4m3"] = Field("hybrid", description="hybrid: E4M3 forward, E5M2 gradients")
    amax_history_len: int = Field(1024, ge=1, le=4096, description="steps that the history of maxima reaches back")
    amax_compute: Literal["max", "most_recent"] = Field("max", description="Transformer Engine: amax_compute_algo")
    margin: int = Field(0, ge=0, le=16, description="powers of two of headroom: scale = format_max / amax / 2^margin")


class CurrentRecipe(Settings):
    """Per-tensor scales from the tensor itself (Transformer Engine's Float8CurrentScaling)."""

    kind: Literal["current"] = Field("current", description="scales from the tensor itself")
    format: OperandFormats = Field("hybrid", description="e2m1 with one scale per tensor is the known-bad recipe")


class FixedRecipe(Settings):
    """One constant scale for every tensor. What a cast without scaling does; kept because people try it."""

    kind: Literal["fixed"] = Field("fixed", description="one constant scale")
    format: OperandFormats = Field("hybrid", description="hybrid: E4M3 forward, E5M2 gradients; else one format for all")
    scale: float = Field(1.0, gt=0, description="every tensor is multiplied by this before the cast; 1: no scaling")


class Bf16Recipe(Settings):
    """No low precision at all: an A/A test. The candidate is a BF16 run whose weights start one ulp away."""

    kind: Literal["bf16"] = Field("bf16", description="no FP8: an A/A test")


Recipe = Annotated[DelayedRecipe | CurrentRecipe | FixedRecipe | Bf16Recipe, Field(discriminator="kind")]

# PARITY.md 2: the recipe known to be bad that every design must convict.
KNOWN_BAD = CurrentRecipe(format="e2m1")
