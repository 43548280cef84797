"""What every recipe is: settings, and the operands that each GEMM takes under them."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.facts.operands import Gemm, Operands
from fp8migrate.settings import Settings

# Forward operands (x, w) and gradient operand (dy) of each choice. HYBRID: Transformer Engine's Format.HYBRID.
FORWARD_AND_GRADIENT: dict[str, tuple[FormatInfo, FormatInfo]] = {
    "hybrid": (E4M3, E5M2),
    "e4m3": (E4M3, E4M3),
    "e5m2": (E5M2, E5M2),
    "e2m1": (E2M1, E2M1),
}
OperandFormats = Literal["hybrid", "e4m3", "e5m2", "e2m1"]
Fp8Formats = Literal["hybrid", "e4m3"]
# Transformer Engine: use_split_accumulator of fp8_gemm_dgrad and fp8_gemm_wgrad.
BACKWARD_SPLIT_ACCUMULATOR = "backward GEMMs promote partial sums to FP32; false: faster, coarser sums"


class ScalingRecipe(Settings, ABC):
    """The base of the recipes. `source`: where the semantics come from."""

    source: ClassVar[str]
    kind: str
    # Shapes that the hardware's GEMMs take: the product of an operand's leading dimensions and its last one are multiples of
    # these. Transformer Engine 2.20, `assert_dim_for_fp8_exec`: 8 and 16.
    leading_multiple: ClassVar[int] = 8
    last_multiple: ClassVar[int] = 16
    # A whole emulated training step against BF16's, for estimates of cost alone: 1.1 to 1.9 with one scale per tensor, measured
    # at hidden 48 and 512 on two CPU cores; each recipe's own where it is more.
    emulated_step: ClassVar[float] = 1.9

    @abstractmethod
    def operands(self, gemm: Gemm) -> Operands | None:
        """The two operands of a GEMM, in the order of GEMM_OPERANDS; None: it runs in BF16."""

    @property
    def sums_fast(self) -> bool:
        """Whether backward GEMMs add up without promotion to FP32: faster, and coarser than anything emulated here."""
        return False

    @property
    def history_length(self) -> int:
        """Passes that a scale looks back on."""
        return 1

    @property
    def in_words(self) -> str:
        """The recipe in one line, every setting named."""
        settings = self.model_dump(exclude={"kind"})
        return f"{self.kind}({', '.join(f'{key}={value}' for key, value in settings.items())})" if settings else self.kind


def per_gemm(gemm: Gemm, forward: Operands, data_gradient: Operands, weight_gradient: Operands) -> Operands:
    """Choose by GEMM."""
    return {"forward": forward, "data_gradient": data_gradient, "weight_gradient": weight_gradient}[gemm]
