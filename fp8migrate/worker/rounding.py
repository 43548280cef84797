"""Rounding FP32 tensors onto the values of a low-precision format, on any device, bit for bit what a hardware cast gives.

The trick: adding c = 1.5 · 2^(e + 23 − m) to a float32 x of exponent e, and taking it off again, leaves x rounded to m mantissa
bits, because the sum's last bit is worth 2^(e − m) and float32 addition rounds to nearest, ties to even (c is an even number of
those last bits). Holding e at the format's least normal exponent rounds its subnormals on their fixed grid.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fp8migrate.facts.formats import FormatInfo

FLOAT32_EXPONENT_MASK = 0x7F800000
_FLOAT32_MANTISSA_BITS = 23
# Of a float32, those that BF16 does not hold.
_DROPPED_BITS = 16
_BELOW_HALF_A_BF16_ULP = (1 << (_DROPPED_BITS - 1)) - 1


def round_to_format_(x: Tensor, info: FormatInfo) -> Tensor:
    """Round a contiguous float32 tensor in place: to nearest, ties to even, saturating at ±max_finite.

    NaN stays NaN; Inf saturates, as Transformer Engine's casts do. The sign of a result that rounds to zero is not kept: GEMMs
    do not see it. Raises TypeError for other dtypes.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"round_to_format_ takes float32, got {x.dtype}")
    F.hardtanh_(x, -info.max_finite, info.max_finite)  # clamp_, which vmap would do one by one
    power = (x.view(torch.int32) & FLOAT32_EXPONENT_MASK).view(torch.float32)
    power.clamp_min_(info.min_normal)
    shift = power.mul_(1.5 * 2.0 ** (_FLOAT32_MANTISSA_BITS - info.mantissa_bits))
    return x.add_(shift).sub_(shift)


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
