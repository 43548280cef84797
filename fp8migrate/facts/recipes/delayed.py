"""delayed: one scale per tensor, from the maxima of earlier passes."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.operands import AmaxHistory, Gemm, Operand, Operands
from fp8migrate.facts.recipes.base import BACKWARD_SPLIT_ACCUMULATOR, FORWARD_AND_GRADIENT, Fp8Formats, ScalingRecipe, per_gemm


class DelayedRecipe(ScalingRecipe):
    """Per-tensor scales from the amax of earlier steps."""

    source: ClassVar[str] = "Transformer Engine, DelayedScaling"

    kind: Literal["delayed"] = Field("delayed", description="scales from the maxima of earlier steps")
    format: Fp8Formats = Field("hybrid", description="hybrid: E4M3 forward, E5M2 gradients")
    amax_history_len: int = Field(1024, ge=1, le=4096, description="steps that the history of maxima reaches back")
    amax_compute: Literal["max", "most_recent"] = Field("max", description="Transformer Engine: amax_compute_algo")
    margin: int = Field(0, ge=0, le=16, description="powers of two of headroom: scale = format_max / amax / 2^margin")
    backward_split_accumulator: bool = Field(True, description=BACKWARD_SPLIT_ACCUMULATOR)

    def operands(self, gemm: Gemm) -> Operands:
        forward, gradient = FORWARD_AND_GRADIENT[self.format]
        history = AmaxHistory(self.amax_history_len, self.amax_compute, self.margin)
        low, dy = Operand(forward, history=history), Operand(gradient, history=history)
        return per_gemm(gemm, (low, low), (dy, low), (dy, low))

    @property
    def sums_fast(self) -> bool:
        return not self.backward_split_accumulator

    @property
    def history_length(self) -> int:
        return self.amax_history_len
