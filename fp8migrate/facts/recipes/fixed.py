"""fixed: one constant scale for everything."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.operands import Gemm, Operand, Operands
from fp8migrate.facts.recipes.base import FORWARD_AND_GRADIENT, OperandFormats, ScalingRecipe, per_gemm


class FixedRecipe(ScalingRecipe):
    """One constant scale for every tensor. What a cast without scaling does; kept because people try it."""

    source: ClassVar[str] = "a plain cast: x.to(float8)"

    kind: Literal["fixed"] = Field("fixed", description="one constant scale")
    format: OperandFormats = Field("hybrid", description="hybrid: E4M3 forward, E5M2 gradients; else one format for all")
    scale: float = Field(1.0, gt=0, description="every tensor is multiplied by this before the cast; 1: no scaling")

    def operands(self, gemm: Gemm) -> Operands:
        forward, gradient = FORWARD_AND_GRADIENT[self.format]
        low, dy = Operand(forward, constant=self.scale), Operand(gradient, constant=self.scale)
        return per_gemm(gemm, (low, low), (dy, low), (dy, low))
