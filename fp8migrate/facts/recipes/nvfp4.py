"""nvfp4: E2M1 values, an E4M3 scale for every 16 of them and a float32 scale for the tensor."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.formats import E2M1
from fp8migrate.facts.operands import Gemm, Operand, Operands
from fp8migrate.facts.recipes.base import ScalingRecipe, per_gemm

BLOCK = 16


class Nvfp4Recipe(ScalingRecipe):
    """Four bits in every GEMM.

    Three aids: squares of weights share a scale, both operands of the weight gradient are rotated by a random Hadamard
    matrix, and gradients are rounded stochastically.
    """

    source: ClassVar[str] = "Transformer Engine, NVFP4BlockScaling; arXiv 2509.25149"
    leading_multiple: ClassVar[int] = BLOCK
    emulated_step: ClassVar[float] = 7.0

    kind: Literal["nvfp4"] = Field("nvfp4", description="four bits, scales per 16 values (Blackwell)")
    disable_rht: bool = Field(False, description="no random Hadamard transform of the weight gradient's operands")
    disable_stochastic_rounding: bool = Field(False, description="gradients rounded to nearest")
    disable_2d_quantization: bool = Field(False, description="weights: 1 x 16 instead of 16 x 16")

    def operands(self, gemm: Gemm) -> Operands:
        rotation = 0 if self.disable_rht else BLOCK
        by_chance = not self.disable_stochastic_rounding
        run = (1, BLOCK)
        x = Operand(E2M1, run, "e4m3")
        w = Operand(E2M1, (1 if self.disable_2d_quantization else BLOCK, BLOCK), "e4m3")
        dy = Operand(E2M1, run, "e4m3", stochastic=by_chance)
        rotated_dy = Operand(E2M1, run, "e4m3", hadamard=rotation, stochastic=by_chance)
        rotated_x = Operand(E2M1, run, "e4m3", hadamard=rotation)
        return per_gemm(gemm, (x, w), (dy, w), (rotated_dy, rotated_x))
