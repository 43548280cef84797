"""rowwise: a scale for every row along the contraction, so one for each token and one for each output feature."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.formats import E4M3
from fp8migrate.facts.operands import Gemm, Operand, Operands, ScaleRule
from fp8migrate.facts.recipes.base import ScalingRecipe

# torchao 0.18, float8_utils.EPS: amaxes are raised to it before the division.
TORCHAO_LEAST_AMAX = 1e-12


class _PerRow(ScalingRecipe):
    """What both recipes share: E4M3 throughout, and the rule of the scales."""

    round_scales_to_power_of_2: bool = Field(True, description="scales rounded down to powers of two")

    def _operand(self, tile: tuple[int | None, int | None]) -> Operand:
        rule: ScaleRule = "power_of_two" if self.round_scales_to_power_of_2 else "float32"
        return Operand(E4M3, tile, rule, TORCHAO_LEAST_AMAX)


class RowwiseRecipe(_PerRow):
    """E4M3 throughout; each tensor is quantised twice, once for each dimension that is summed over."""

    source: ClassVar[str] = "torchao, Float8LinearRecipeName.ROWWISE"
    # torch._scaled_mm takes every contraction in multiples of 16, and the weight gradient sums over tokens.
    leading_multiple: ClassVar[int] = 16
    emulated_step: ClassVar[float] = 2.3

    kind: Literal["rowwise"] = Field("rowwise", description="scales per row of each operand")

    def operands(self, gemm: Gemm) -> Operands:
        row = self._operand((1, None))
        return row, row


class RowwiseHighPrecisionRecipe(_PerRow):
    """rowwise with the weight gradient in high precision; the data gradient takes one scale for the whole weight."""

    source: ClassVar[str] = "torchao, Float8LinearRecipeName.ROWWISE_WITH_GW_HP"
    leading_multiple: ClassVar[int] = 1

    kind: Literal["rowwise_with_gw_hp"] = Field("rowwise_with_gw_hp", description="rowwise, weight gradients in BF16")

    def operands(self, gemm: Gemm) -> Operands | None:
        row, whole = self._operand((1, None)), self._operand((None, None))
        return None if gemm == "weight_gradient" else (row, row if gemm == "forward" else whole)
