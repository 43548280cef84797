"""From the largest magnitude of each tile to its scale, by the rules of Transformer Engine and torchao.

A scale multiplies before the cast; its inverse brings the values back. Shapes pass through: a scalar for a tensor, one number
for each tile else.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fp8migrate.facts.formats import E4M3
from fp8migrate.facts.operands import AmaxHistory, Operand
from fp8migrate.worker.rounding import round_to_format_

FLOAT32_MAX = torch.finfo(torch.float32).max
_EXPONENT_AND_SIGN, _MANTISSA, _MANTISSA_BITS = -(1 << 23), (1 << 23) - 1, 23
# The E8M0 code of 2^127; 255 is NaN.
_E8M0_LARGEST = 254


@dataclass(frozen=True)
class Scales:
    """scale: x · scale is cast. inverse: the cast values times this times `outer` are x again. outer: NVFP4's second level."""

    scale: Tensor
    inverse: Tensor
    outer: Tensor | None = None


def scales_for(amax: Tensor, operand: Operand, tensor_amax: Tensor | None = None) -> Scales:
    """Scales of tiles whose largest magnitudes are `amax` (float32). tensor_amax: of the whole tensor, for `e4m3` scales."""
    if operand.scale == "e8m0":
        return _e8m0_scales(amax, operand.format.max_finite)
    if operand.scale == "e4m3":
        assert tensor_amax is not None
        return _two_level_scales(amax, tensor_amax, operand.format.max_finite)
    scale = _quotient(operand.format.max_finite, amax, operand.least_amax)
    if operand.scale == "power_of_two":
        # NaN without its mantissa would be Inf.
        scale = torch.where(scale.isnan(), scale, (scale.view(torch.int32) & _EXPONENT_AND_SIGN).view(torch.float32))
    return Scales(scale, inverse(scale))


def next_scales(history_nl: Tensor, scale_n: Tensor, format_max: float, rule: AmaxHistory) -> Tensor:
    """Delayed scaling: the next scales of n tensors from their histories of l passes; kept where the amax is 0, Inf or NaN."""
    amax_n = history_nl.nan_to_num(nan=0.0, posinf=torch.inf).amax(dim=1) if rule.compute == "max" else history_nl[:, 0]
    usable = (amax_n > 0) & (amax_n < torch.inf)
    # The margin before the division: an amax near float32's smallest overflows later for it.
    scale = _divided(format_max * 2.0**-rule.margin, amax_n).clamp(max=FLOAT32_MAX)
    return torch.where(usable, scale, scale_n)


def _quotient(format_max: float, amax: Tensor, least_amax: float) -> Tensor:
    """format_max / amax as `Operand.least_amax` says, at most the largest float32."""
    if least_amax > 0:
        # torchao divides in float64 and rounds once more; an amax of Inf gives scale 0.
        return _divided(format_max, amax.clamp(min=least_amax))
    usable = (amax > 0) & (amax < torch.inf)
    return torch.where(usable, _divided(format_max, amax).clamp(max=FLOAT32_MAX), 1.0)


def _divided(number: float, tensor: Tensor) -> Tensor:
    """number / tensor, float32, rounded once.

    In float64, where a quotient of BF16 values is never near a tie of float32. In float32 torch's own number / tensor is
    number · (1 / tensor), rounded twice, and compiled GPU code divides with an error of 2 ulp.
    """
    return (number / tensor.double()).to(torch.float32)


def inverse(tensor: Tensor) -> Tensor:
    """1 / tensor, float32, rounded once."""
    return tensor.double().reciprocal().to(torch.float32)


def _e8m0_scales(amax: Tensor, format_max: float) -> Scales:
    """2^-e with e the exponent of amax / format_max rounded up, as cvt.rp.satfinite.ue8m0x2.f32 rounds; NaN where amax is NaN.

    Code 0 scales by 1, not by 2^127, as Transformer Engine's and torchao's casts do: amaxes below 2^-118 or so are lost.
    """
    quotient = (amax.double() / format_max).to(torch.float32)
    bits = quotient.view(torch.int32)
    exponent, mantissa = bits >> _MANTISSA_BITS, bits & _MANTISSA
    # A subnormal quotient is at most 2^-127, code 0, up to half of the subnormal range.
    beyond = torch.where(exponent == 0, mantissa > 1 << (_MANTISSA_BITS - 1), mantissa > 0)
    code = (exponent + beyond.to(torch.int32)).clamp(max=_E8M0_LARGEST)
    scale = torch.where(code == 0, 1.0, _power_of_two(_E8M0_LARGEST - code))
    return Scales(torch.where(amax.isnan(), amax, scale), torch.where(amax.isnan(), amax, _power_of_two(code)))


def _power_of_two(code: Tensor) -> Tensor:
    """2^(code - 127), float32, from its bits: code 0 is the subnormal 2^-127."""
    bits = torch.where(code == 0, 1 << (_MANTISSA_BITS - 1), code << _MANTISSA_BITS)
    return bits.to(torch.int32).view(torch.float32)


def _two_level_scales(amax: Tensor, tensor_amax: Tensor, format_max: float) -> Scales:
    """NVFP4 (arXiv 2509.25149, appendix C): amax / format_max as E4M3, in units of a float32 that maps the tensor's to 448.

    In the order of Transformer Engine's kernels, whose roundings these are.
    """
    outer_scale = _divided(E4M3.max_finite * format_max, tensor_amax).clamp(max=FLOAT32_MAX)
    outer_scale = torch.where(outer_scale == 0, 1.0, outer_scale)
    outer = inverse(outer_scale)
    unit = outer_scale * inverse(torch.full_like(outer_scale, format_max))
    stored = round_to_format_((amax * unit).clamp(max=FLOAT32_MAX).contiguous(), E4M3)
    scale = inverse(stored * outer).clamp(max=FLOAT32_MAX)
    return Scales(scale, stored, outer)
