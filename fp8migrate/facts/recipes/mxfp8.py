"""mxfp8: a power-of-two scale for every 32 values along the contraction, stored as E8M0."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.operands import Gemm, Operand, Operands
from fp8migrate.facts.recipes.base import FORWARD_AND_GRADIENT, Fp8Formats, ScalingRecipe, per_gemm

BLOCK = 32


class Mxfp8Recipe(ScalingRecipe):
    """OCP microscaling with the exponent rounded up, so that nothing saturates."""

    source: ClassVar[str] = "Transformer Engine, MXFP8BlockScaling; OCP Microscaling Formats (MX) v1.0"
    leading_multiple: ClassVar[int] = BLOCK
    last_multiple: ClassVar[int] = BLOCK
    emulated_step: ClassVar[float] = 2.6

    kind: Literal["mxfp8"] = Field("mxfp8", description="scales per 32 values, powers of two (Blackwell)")
    format: Fp8Formats = Field("e4m3", description="e4m3 throughout, or hybrid: E5M2 gradients")
    enable_2d_quantization: bool = Field(False, description="weights: one scale per 32 x 32, the same for both GEMMs")

    def operands(self, gemm: Gemm) -> Operands:
        forward, gradient = FORWARD_AND_GRADIENT[self.format]
        x, dy = Operand(forward, (1, BLOCK), "e8m0"), Operand(gradient, (1, BLOCK), "e8m0")
        w = Operand(forward, (BLOCK if self.enable_2d_quantization else 1, BLOCK), "e8m0")
        return per_gemm(gemm, (x, w), (dy, w), (dy, x))
