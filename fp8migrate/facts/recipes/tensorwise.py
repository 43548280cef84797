"""tensorwise: one scale per tensor, from the tensor itself, by torchao's rules."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.formats import E4M3, E5M2
from fp8migrate.facts.operands import Gemm, Operand, Operands, ScaleRule
from fp8migrate.facts.recipes.base import ScalingRecipe, per_gemm
from fp8migrate.facts.recipes.rowwise import TORCHAO_LEAST_AMAX


class TensorwiseRecipe(ScalingRecipe):
    """E4M3 forward, E5M2 gradients. `current` but for amaxes below 1e-12, and for the library that runs it."""

    source: ClassVar[str] = "torchao, Float8LinearRecipeName.TENSORWISE"
    # torch._scaled_mm takes every contraction in multiples of 16, and the weight gradient sums over tokens.
    leading_multiple: ClassVar[int] = 16

    kind: Literal["tensorwise"] = Field("tensorwise", description="scales from the tensor itself, torchao's rules")
    round_scales_to_power_of_2: bool = Field(False, description="scales rounded down to powers of two")

    def operands(self, gemm: Gemm) -> Operands:
        rule: ScaleRule = "power_of_two" if self.round_scales_to_power_of_2 else "float32"
        low, dy = (
            Operand(E4M3, scale=rule, least_amax=TORCHAO_LEAST_AMAX),
            Operand(E5M2, scale=rule, least_amax=TORCHAO_LEAST_AMAX),
        )
        return per_gemm(gemm, (low, low), (dy, low), (dy, low))
