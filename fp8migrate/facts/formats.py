"""Low-precision number formats as data.

Sources: OCP 8-bit Floating Point Specification (OFP8) v1.0 for E4M3 and E5M2; OCP Microscaling Formats (MX) v1.0 for
E2M1 and E8M0; IEEE 754 and the bfloat16 definition for BF16.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FormatInfo:
    """A binary floating-point format: sign (unless `signed` is False), exponent field, mantissa field.

    has_infinity: as IEEE 754, the largest exponent field holds Inf and the NaNs. Without it, and with has_nan, NaN is the code
    whose bits below the sign are all ones. has_zero: exponent field 0 holds zero and the subnormals; else it is as others.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_finite: float
    has_infinity: bool
    source: str
    has_nan: bool = True
    has_zero: bool = True
    signed: bool = True

    @property
    def bits(self) -> int:
        """Width of a code."""
        return int(self.signed) + self.exponent_bits + self.mantissa_bits

    @property
    def largest_code(self) -> int:
        """The code of max_finite. Above it, below the sign bit, lie Inf, where there is one, and then NaN."""
        if self.has_infinity:
            return (((1 << self.exponent_bits) - 1) << self.mantissa_bits) - 1
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1 - int(self.has_nan)

    @property
    def min_normal_exponent(self) -> int:
        """Exponent (base 2) of the smallest normal number: 1 - bias, or -bias where exponent field 0 is as others."""
        return int(self.has_zero) - self.bias

    @property
    def min_normal(self) -> float:
        return float(2.0**self.min_normal_exponent)

    @property
    def min_subnormal(self) -> float:
        """The smallest number above zero, and the distance between subnormals."""
        return float(2.0 ** (self.min_normal_exponent - self.mantissa_bits))


E4M3 = FormatInfo("e4m3", 4, 3, 7, 448.0, False, "OCP OFP8 v1.0, E4M3: S.1111.111 is NaN, no infinities")
E5M2 = FormatInfo("e5m2", 5, 2, 15, 57344.0, True, "OCP OFP8 v1.0, E5M2: IEEE-like, with infinities")
E2M1 = FormatInfo("e2m1", 2, 1, 1, 6.0, False, "OCP MX v1.0, FP4 E2M1: no NaN, no infinities", has_nan=False)
E8M0 = FormatInfo(
    "e8m0",
    8,
    0,
    127,
    2.0**127,
    False,
    "OCP MX v1.0, E8M0 scales: powers of two, unsigned, 0xFF is NaN, no zero, no infinities",
    has_zero=False,
    signed=False,
)
BF16 = FormatInfo("bf16", 8, 7, 127, (2 - 2.0**-7) * 2.0**127, True, "bfloat16: the upper half of IEEE binary32")

FORMATS = {info.name: info for info in (E4M3, E5M2, E2M1, E8M0, BF16)}
