"""bf16: no low precision at all."""

from typing import ClassVar, Literal

from pydantic import Field

from fp8migrate.facts.operands import Gemm
from fp8migrate.facts.recipes.base import ScalingRecipe


class Bf16Recipe(ScalingRecipe):
    """As a candidate's recipe an A/A test: a BF16 run whose weights start one ulp away. In a policy: layers left in BF16."""

    source: ClassVar[str] = "plain BF16"
    leading_multiple: ClassVar[int] = 1
    last_multiple: ClassVar[int] = 1

    kind: Literal["bf16"] = Field("bf16", description="no FP8: an A/A test")

    def operands(self, gemm: Gemm) -> None:
        return None
