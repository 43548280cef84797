"""Rounding FP32 tensors onto the values of a low-precision format, on any device, bit for bit what a hardware cast gives.

The trick: adding c = 1.5 · 2^(e + 23 − m) to a float32 x of exponent e, and taking it off again, leaves x rounded to m mantissa
bits, because the sum's last bit is worth 2^(e − m) and float32 addition rounds to nearest, ties to even (c is an even number of
those last bits). Holding e at the format's least normal exponent rounds its subnormals on their fixed grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fp8migrate.facts.codec import nan_code
from fp8migrate.facts.formats import FormatInfo

FLOAT32_EXPONENT_MASK = 0x7F800000
_FLOAT32_MANTISSA_BITS, _FLOAT32_BIAS = 23, 127
_FLOAT32_SIZE_MASK = 0x7FFFFFFF
# Half a megabyte: five operations over what is in the cache take two thirds of the time that they take over all of a tensor.
_VALUES_IN_CACHE = 1 << 17
# Of a float32, those that BF16 does not hold.
_DROPPED_BITS = 16
_BELOW_HALF_A_BF16_ULP = (1 << (_DROPPED_BITS - 1)) - 1


def round_to_format_(x: Tensor, info: FormatInfo) -> Tensor:
    """Round a contiguous float32 tensor in place: to nearest, ties to even, saturating at ±max_finite.

    NaN stays NaN; Inf saturates, as Transformer Engine's casts do. The sign of a result that rounds to zero is not kept: GEMMs
    do not see it. Formats of up to 8 bits: c overflows for BF16's largest. Raises TypeError for other dtypes.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"round_to_format_ takes float32, got {x.dtype}")
    if x.device.type == "cpu" and x.ndim == 2 and x.numel() > 2 * _VALUES_IN_CACHE and not torch.compiler.is_compiling():
        for rows in torch.split(x, max(1, _VALUES_IN_CACHE // x.shape[1])):
            _round_(rows, info)
        return x
    return _round_(x, info)


def _round_(x: Tensor, info: FormatInfo) -> Tensor:
    F.hardtanh_(x, -info.max_finite, info.max_finite)  # clamp_, which vmap would do one by one
    power = (x.view(torch.int32) & FLOAT32_EXPONENT_MASK).view(torch.float32)
    power.clamp_min_(info.min_normal)
    # The product is exact, a power of two times 1.5, so that fused or not the sum is rounded once.
    factor = 1.5 * 2.0 ** (_FLOAT32_MANTISSA_BITS - info.mantissa_bits)
    return x.add_(power, alpha=factor).sub_(power, alpha=factor)


def round_to_bf16(x: Tensor) -> Tensor:
    """Values rounded to BF16 (to nearest, ties to even), as a new float32 tensor."""
    # Compiled, a cast there and back is taken for nothing to do; the bits are not.
    return _round_bits_to_bf16(x) if torch.compiler.is_compiling() else x.to(torch.bfloat16).to(torch.float32)


def bf16_values(x: Tensor) -> Tensor:
    """x rounded to BF16, as a BF16 tensor; compiled, as a float32 one."""
    return _round_bits_to_bf16(x) if torch.compiler.is_compiling() else x.to(torch.bfloat16)


def _round_bits_to_bf16(x: Tensor) -> Tensor:
    bits = x.to(torch.float32).view(torch.int32)
    half_minus_one_and_even = _BELOW_HALF_A_BF16_ULP + ((bits >> _DROPPED_BITS) & 1)
    rounded = ((bits + half_minus_one_and_even) & -(1 << _DROPPED_BITS)).view(torch.float32)
    return torch.where(x.isnan(), torch.nan, rounded)


def to_codes(x: Tensor, info: FormatInfo) -> Tensor:
    """The codes of float32 numbers of a format, as uint8 of x's shape, one code a byte (E2M1's are not packed).

    x lies on the format's grid, as `round_to_format_` leaves it, or is an Inf or NaN that the format has; for other x the codes
    mean nothing. The sign of zero is kept, NaN gives `codec.nan_code`. E4M3, E5M2 and E2M1; raises ValueError for others, and
    TypeError for other dtypes.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"to_codes takes float32, got {x.dtype}")
    _check_signed_and_narrow(info)
    bits = x.contiguous().view(torch.int32)
    size = x.abs()
    normal = ((bits & _FLOAT32_SIZE_MASK) >> _dropped_bits(info)) - _bias_difference(info)
    # Inf: its exponent field is float32's largest, and becomes the format's.
    normal.clamp_max_(info.largest_code + int(info.has_infinity))
    codes = torch.where(size < info.min_normal, (size / info.min_subnormal).to(torch.int32), normal)
    codes = torch.where(bits < 0, codes | _sign_bit(info), codes)
    if info.has_nan:
        codes = torch.where(x.isnan(), nan_code(info), codes)
    return codes.to(torch.uint8)


def from_codes(codes: Tensor, info: FormatInfo) -> Tensor:
    """float32 numbers of uint8 codes, one code a byte (of E2M1 the upper four bits are 0), of their shape.

    E4M3, E5M2 and E2M1; raises ValueError for others, and TypeError for other dtypes.
    """
    if codes.dtype != torch.uint8:
        raise TypeError(f"from_codes takes uint8, got {codes.dtype}")
    _check_signed_and_narrow(info)
    codes = codes.to(torch.int32)
    magnitude = codes & (_sign_bit(info) - 1)
    normal = ((magnitude + _bias_difference(info)) << _dropped_bits(info)).view(torch.float32)
    size = torch.where(magnitude < 1 << info.mantissa_bits, magnitude.to(torch.float32) * info.min_subnormal, normal)
    if info.has_nan:
        size = torch.where(magnitude > info.largest_code, torch.nan, size)
    if info.has_infinity:
        size = torch.where(magnitude == info.largest_code + 1, torch.inf, size)
    return torch.where(codes >= _sign_bit(info), -size, size)


def _check_signed_and_narrow(info: FormatInfo) -> None:
    if not info.signed or info.bits > 8:
        raise ValueError(f"codes are of signed formats of up to 8 bits, not {info.name}")


def _dropped_bits(info: FormatInfo) -> int:
    """Mantissa bits of a float32 that the format does not hold."""
    return _FLOAT32_MANTISSA_BITS - info.mantissa_bits


def _bias_difference(info: FormatInfo) -> int:
    """float32's bias less the format's, where the format's exponent field stands in its codes."""
    return (_FLOAT32_BIAS - info.bias) << info.mantissa_bits


def _sign_bit(info: FormatInfo) -> int:
    return 1 << (info.bits - 1)
