"""Rounding FP32 tensors onto the values of a low-precision format, on any device, bit for bit what a hardware cast gives.

The trick: adding c = 1.5 · 2^(e + 23 − m) to a float32 x of exponent e, and taking it off again, leaves x rounded to m mantissa
bits, because the sum's last bit is worth 2^(e − m) and float32 addition rounds to nearest, ties to even (c is an even number of
those last bits). Holding e at the format's least normal exponent rounds its subnormals on their fixed grid.
"""

import torch
from torch import Tensor

from fp8migrate.facts.formats import FormatInfo

FLOAT32_EXPONENT_MASK = 0x7F800000
_FLOAT32_MANTISSA_BITS = 23


def round_to_format_(x: Tensor, info: FormatInfo) -> Tensor:
    """Round a contiguous float32 tensor in place: to nearest, ties to even, saturating at ±max_finite.

    NaN stays NaN; Inf saturates, as Transformer Engine's casts do. The sign of a result that rounds to zero is not kept: GEMMs
    do not see it. Raises TypeError for other dtypes.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"round_to_format_ takes float32, got {x.dtype}")
    x.clamp_(-info.max_finite, info.max_finite)
    power = (x.view(torch.int32) & FLOAT32_EXPONENT_MASK).view(torch.float32)
    power.clamp_(min=info.min_normal)
    shift = power.mul_(1.5 * 2.0 ** (_FLOAT32_MANTISSA_BITS - info.mantissa_bits))
    return x.add_(shift).sub_(shift)


def round_to_bf16(x: Tensor) -> Tensor:
    """float32 values rounded to BF16, still as float32 (to nearest, ties to even)."""
    return x.to(torch.bfloat16).to(torch.float32)
