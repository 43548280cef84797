"""Codes of low-precision formats to numbers and back, one at a time, in exact arithmetic: the reference for fast code.

Slow and plain on purpose, to be read beside the specifications (OCP OFP8 v1.0, OCP MX v1.0). A code is a format's bits as an
unsigned integer: sign, exponent field E (width w), mantissa field M (width m). With the format's bias:

    normal      E > 0    (-1)^sign · 2^(E - bias) · (1 + M / 2^m)
    subnormal   E = 0    (-1)^sign · 2^(1 - bias) · (M / 2^m)

Inf and NaN lie above `FormatInfo.largest_code`. E8M0 has no sign, no mantissa and no subnormals: E = 0 is 2^-127.
"""

import math

from fp8migrate.facts.formats import E8M0, FormatInfo


def decode(info: FormatInfo, code: int) -> float:
    """The number of a code; every format's fit in a float exactly. Raises ValueError where the format has no such code."""
    if code not in all_codes(info):
        raise ValueError(f"{info.name} has {info.bits} bits: no code {code}")
    negative, magnitude = divmod(code, _sign_bit(info))
    number = _decode_magnitude(info, magnitude)
    return -number if negative else number


def _decode_magnitude(info: FormatInfo, magnitude: int) -> float:
    if magnitude > info.largest_code:
        return math.inf if info.has_infinity and magnitude == info.largest_code + 1 else math.nan
    exponent_field, mantissa_field = divmod(magnitude, 1 << info.mantissa_bits)
    if info.has_zero and exponent_field == 0:
        return math.ldexp(mantissa_field, info.min_normal_exponent - info.mantissa_bits)
    significand = (1 << info.mantissa_bits) + mantissa_field
    return math.ldexp(significand, exponent_field - info.bias - info.mantissa_bits)


def encode(info: FormatInfo, value: float, *, saturate: bool = True) -> int:
    """The code nearest to value, ties to the even code; the sign of zero is kept, NaN gives `nan_code`.

    What rounds beyond max_finite, were there larger numbers, and Inf: ±max_finite if `saturate`, else ±Inf, or NaN in formats
    without Inf. Raises ValueError for a NaN in formats without NaN, and for E8M0: see `encode_scale`.
    """
    if not info.signed:
        raise ValueError(f"{info.name} holds scales, which are not rounded to nearest: encode_scale")
    if math.isnan(value):
        return nan_code(info)
    sign = _sign_bit(info) if math.copysign(1.0, value) < 0 else 0
    magnitude = info.largest_code + 1 if math.isinf(value) else _nearest_magnitude(info, abs(value))
    if magnitude <= info.largest_code:
        return sign | magnitude
    if saturate:
        return sign | info.largest_code
    return sign | (info.largest_code + 1) if info.has_infinity else nan_code(info)


def _nearest_magnitude(info: FormatInfo, size: float) -> int:
    """The code below the sign bit, running on beyond `largest_code` as if the exponent field had no end. size: 0 or more."""
    # frexp's fraction lies in [0.5, 1): its exponent is one more than that of a number written 1.xxx.
    exponent = max(math.frexp(size)[1] - 1, info.min_normal_exponent) if size else info.min_normal_exponent
    # In steps of the last mantissa bit. Exact: a power of two times a number, which ends up below 2^(m + 1) and, where it was
    # subnormal in float64, larger. round() goes to the nearest integer, ties to the even one.
    steps = round(math.ldexp(size, info.mantissa_bits - exponent))
    # A normal number's steps include the leading one, 2^m, which adds 1 to the exponent field; a subnormal's do not. Steps that
    # round up to the next power of two carry into that field.
    return ((exponent - info.min_normal_exponent) << info.mantissa_bits) + steps


def encode_scale(value: float, *, up: bool) -> int:
    """The E8M0 code of a scale, value >= 0: the power of two at or below it, or at or above it if `up`.

    Within 2^-127 … 2^127, so zero gives 2^-127 and Inf 2^127; NaN gives 0xFF. OCP MX v1.0 rounds down (section 6.3: the
    exponent of the block's largest magnitude less that of the element format's); cvt.rp.satfinite.ue8m0x2.f32, of PTX, up.
    Raises ValueError below zero.
    """
    if math.isnan(value):
        return nan_code(E8M0)
    if value < 0:
        raise ValueError(f"a scale is not negative: {value}")
    if value <= E8M0.min_normal:
        return 0
    if value >= E8M0.max_finite:
        return E8M0.largest_code
    fraction, exponent = math.frexp(value)
    is_power_of_two = fraction == 0.5
    return exponent - 1 + E8M0.bias + int(up and not is_power_of_two)


def round_value(info: FormatInfo, value: float, *, saturate: bool = True) -> float:
    """value rounded as `encode` rounds it. Raises ValueError as it does."""
    return decode(info, encode(info, value, saturate=saturate))


def nan_code(info: FormatInfo) -> int:
    """The NaN that is written: positive, quiet in IEEE-like formats. Raises ValueError for formats without NaN."""
    if not info.has_nan:
        raise ValueError(f"{info.name} has no NaN")
    if info.has_infinity:
        # Inf with the first bit of the mantissa set.
        return (info.largest_code + 1) | 1 << (info.mantissa_bits - 1)
    return _sign_bit(info) - 1


def all_codes(info: FormatInfo) -> range:
    return range(1 << info.bits)


def values(info: FormatInfo) -> list[float]:
    """Every finite number of a format, rising; zero once."""
    return sorted({number for number in (decode(info, code) for code in all_codes(info)) if math.isfinite(number)})


def _sign_bit(info: FormatInfo) -> int:
    """The sign bit of a code; in unsigned formats the first bit beyond it."""
    return 1 << (info.exponent_bits + info.mantissa_bits)
