"""Rounding by chance, from a counter instead of a generator: the same bits on every device, resumed and compiled."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fp8migrate.facts.formats import FormatInfo
from fp8migrate.worker.rounding import FLOAT32_EXPONENT_MASK

# murmur3's 32-bit finaliser (Appleby, public domain), as signed 32-bit integers.
_MIX_1, _MIX_2 = 0x85EBCA6B - (1 << 32), 0xC2B2AE35 - (1 << 32)
_NOISE_BITS = 24


def uniform_noise(shape: torch.Size, seed: Tensor) -> Tensor:
    """float32 numbers uniform in [0, 1), multiples of 2^-24, on the seed's device. seed: an int64 scalar."""
    counter = torch.arange(shape.numel(), dtype=torch.int32, device=seed.device)
    low, high = (seed & 0xFFFFFFFF).to(torch.int32), (seed >> 32).to(torch.int32)
    # (first, second) is one-to-one with the seed. A seed that only met the counter would give the next tensor the same numbers
    # in another order, and their errors would not average out.
    first = _mix(_mix(low) + high)
    second = _mix(first + low)
    mixed = _mix(_mix(counter ^ first) + second)
    return (_shifted(mixed, 32 - _NOISE_BITS).to(torch.float32) * 2.0**-_NOISE_BITS).view(shape)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 16)) * _MIX_1
    x = (x ^ _shifted(x, 13)) * _MIX_2
    return x ^ _shifted(x, 16)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's is arithmetic."""
    return (x >> bits) & ((1 << (32 - bits)) - 1)


def round_stochastically_(x: Tensor, info: FormatInfo, noise: Tensor) -> Tensor:
    """Round a contiguous float32 tensor in place to one of its two neighbours, saturating; the mean is kept.

    x = lower + f · gap (in magnitude) goes up where noise < f. Values of the format stay; NaN stays NaN.
    """
    F.hardtanh_(x, -info.max_finite, info.max_finite)  # clamp_, which vmap would do one by one
    power = (x.view(torch.int32) & FLOAT32_EXPONENT_MASK).view(torch.float32).clamp_min_(info.min_normal)
    gap = power * 2.0**-info.mantissa_bits
    steps = x / gap  # exact: a power of two
    lower = steps.trunc()
    up = (steps - lower).abs() > noise
    return x.copy_((lower + torch.where(up, torch.sign(steps), 0.0)) * gap)
