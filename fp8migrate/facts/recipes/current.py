"""current: one scale per tensor, from the tensor itself."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.operands import Gemm, Operand, Operands, ScaleRule
from fp8migrate.facts.recipes.base import (
    BACKWARD_SPLIT_ACCUMULATOR,
    FORWARD_AND_GRADIENT,
    OperandFormats,
    ScalingRecipe,
    per_gemm,
)


class CurrentRecipe(ScalingRecipe):
    """Per-tensor scales from the tensor itself."""

    source: ClassVar[str] = "Transformer Engine, Float8CurrentScaling"

    kind: Literal["current"] = Field("current", description="scales from the tensor itself")
    format: OperandFormats = Field("hybrid", description="e2m1 with one scale per tensor is the known-bad recipe")
    use_power_2_scales: bool = Field(False, description="scales rounded down to powers of two")
    backward_split_accumulator: bool = Field(True, description=BACKWARD_SPLIT_ACCUMULATOR)

    @property
    def sums_fast(self) -> bool:
        return not self.backward_split_accumulator

    def operands(self, gemm: Gemm) -> Operands:
        forward, gradient = FORWARD_AND_GRADIENT[self.format]
        scale: ScaleRule = "power_of_two" if self.use_power_2_scales else "float32"
        low, dy = Operand(forward, scale=scale), Operand(gradient, scale=scale)
        return per_gemm(gemm, (low, low), (dy, low), (dy, low))
