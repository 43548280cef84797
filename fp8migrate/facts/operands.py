"""What a GEMM's operand is in low precision: its format, which values share a scale, and how that scale is found.

A linear layer y = x · wᵀ has three GEMMs, each over two tensors and summed over one dimension (the contraction):

forward          y = x · wᵀ     input × weight      summed over in_features
data gradient    dx = dy · w    gradient × weight   summed over out_features
weight gradient  dw = dyᵀ · x   gradient × input    summed over tokens
"""

from dataclasses import dataclass
from typing import Literal

from fp8migrate.facts.formats import FormatInfo

Gemm = Literal["forward", "data_gradient", "weight_gradient"]
TensorName = Literal["input", "weight", "gradient"]

GEMM_OPERANDS: dict[Gemm, tuple[TensorName, TensorName]] = {
    "forward": ("input", "weight"),
    "data_gradient": ("gradient", "weight"),
    "weight_gradient": ("gradient", "input"),
}
GEMMS: tuple[Gemm, ...] = tuple(GEMM_OPERANDS)

# float32: format_max / amax. power_of_two: that, rounded down to a power of two. e8m0: 2^ceil(log2(amax / format_max)), stored
# as E8M0 (OCP MX v1.0). e4m3: amax / format_max stored as E4M3, times one float32 for the whole tensor (NVFP4).
ScaleRule = Literal["float32", "power_of_two", "e8m0", "e4m3"]


@dataclass(frozen=True)
class AmaxHistory:
    """Scales from the maxima of earlier passes (Transformer Engine's DelayedScaling). margin: powers of two of headroom."""

    length: int
    compute: Literal["max", "most_recent"]
    margin: int


@dataclass(frozen=True)
class Operand:
    """One tensor as one GEMM takes it.

    tile: how many values share a scale (across the contraction, along it); None: all of them. (1, 128) is a run of 128 values
    of one row along the contraction, (128, 128) a square, (1, None) a whole row, (None, None) the tensor.
    least_amax: amaxes are raised to it first, and Inf is taken as it comes (torchao); 0: an amax of 0, Inf or NaN gives scale 1
    (Transformer Engine).
    history: scales come from it. constant: the scale itself. Neither: from the tensor at hand.
    hadamard: each run of so many values along the contraction is rotated by a Hadamard matrix first; 0: none.
    stochastic: rounded up or down by chance, so that the mean is kept.
    """

    format: FormatInfo
    tile: tuple[int | None, int | None] = (None, None)
    scale: ScaleRule = "float32"
    least_amax: float = 0.0
    history: AmaxHistory | None = None
    constant: float | None = None
    hadamard: int = 0
    stochastic: bool = False

    @property
    def directional(self) -> bool:
        """Whether the values depend on the dimension that is summed over; if not, one copy serves two GEMMs."""
        return self.tile[0] != self.tile[1] or self.hadamard > 0

    @property
    def in_words(self) -> str:
        """`e4m3, 1 x 128, power-of-two scales`"""
        across, along = ("all" if extent is None else str(extent) for extent in self.tile)
        tile = "per tensor" if self.tile == (None, None) else f"{across} x {along}"
        rules = {
            "float32": "",
            "power_of_two": "power-of-two scales",
            "e8m0": "E8M0 scales",
            "e4m3": "E4M3 scales and one float32",
        }
        words = [self.format.name, tile, rules[self.scale]]
        words.append("Hadamard" if self.hadamard else "")
        words.append("stochastic rounding" if self.stochastic else "")
        return ", ".join(word for word in words if word)


Operands = tuple[Operand, Operand]
