"""block: a scale for every 128 values of an activation or gradient, and for every square of 128 × 128 weights."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fp8migrate.facts.operands import Gemm, Operand, Operands
from fp8migrate.facts.recipes.base import FORWARD_AND_GRADIENT, Fp8Formats, ScalingRecipe, per_gemm
from fp8migrate.settings import InconsistentError

BLOCK = 128
Dimensions = Literal[1, 2]


class BlockRecipe(ScalingRecipe):
    """Power-of-two scales per block. A tensor that two GEMMs sum over different dimensions is quantised once for each."""

    source: ClassVar[str] = "Transformer Engine, Float8BlockScaling; DeepSeek-V3 (arXiv 2412.19437), section 3.3.2"
    emulated_step: ClassVar[float] = 2.2

    kind: Literal["block"] = Field("block", description="scales per block of 128 values or 128 x 128 weights")
    format: Fp8Formats = Field("e4m3", description="e4m3 throughout, or hybrid: E5M2 gradients")
    x_block_scaling_dim: Dimensions = Field(1, description="activations: 1 is 1 x 128, 2 is 128 x 128")
    w_block_scaling_dim: Dimensions = Field(2, description="weights: 1 is 1 x 128, 2 is 128 x 128")
    grad_block_scaling_dim: Dimensions = Field(1, description="gradients: 1 is 1 x 128, 2 is 128 x 128")

    @model_validator(mode="after")
    def no_two_squares(self) -> Self:
        squares = {"x": self.x_block_scaling_dim, "w": self.w_block_scaling_dim, "grad": self.grad_block_scaling_dim}
        if sum(dimensions == 2 for dimensions in squares.values()) > 1:
            names = [f"{name}_block_scaling_dim" for name, dimensions in squares.items() if dimensions == 2]
            written = next((name for name in names if name in self.model_fields_set), names[0])
            others = ", ".join(name for name in names if name != written)
            what = f"is 2, and so is {others}: no GEMM takes two operands with 128 x 128 blocks, so say {others}: 1"
            raise InconsistentError({written: what})
        return self

    def operands(self, gemm: Gemm) -> Operands:
        forward, gradient = FORWARD_AND_GRADIENT[self.format]
        x = Operand(forward, self._tile(self.x_block_scaling_dim), "power_of_two")
        w = Operand(forward, self._tile(self.w_block_scaling_dim), "power_of_two")
        dy = Operand(gradient, self._tile(self.grad_block_scaling_dim), "power_of_two")
        return per_gemm(gemm, (x, w), (dy, w), (dy, x))

    @staticmethod
    def _tile(dimensions: Dimensions) -> tuple[int, int]:
        return (1 if dimensions == 1 else BLOCK, BLOCK)
