"""Scales of every amax that BF16 holds, against exact fractions and the reference codec."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from fp8migrate.facts import codec
from fp8migrate.facts.formats import BF16, E2M1, E4M3, E5M2, E8M0, FormatInfo
from fp8migrate.facts.operands import Operand, ScaleRule
from fp8migrate.worker.scaling import FLOAT32_MAX, scales_for

# 0 and every positive number, subnormals among them; Inf and NaN have tests of their own.
AMAXES = [codec.decode(BF16, code) for code in range(BF16.largest_code + 1)]
TORCHAO_LEAST_AMAX = 1e-12

every_format = pytest.mark.parametrize("info", [E4M3, E5M2, E2M1], ids=lambda info: info.name)


def scales(amaxes: list[float], info: FormatInfo, rule: ScaleRule, least_amax: float = 0.0) -> tuple[Tensor, Tensor]:
    """(scales, their inverses)"""
    found = scales_for(torch.tensor(amaxes), Operand(info, scale=rule, least_amax=least_amax))
    return found.scale, found.inverse


def powers(exponents: list[int]) -> Tensor:
    return torch.tensor([math.ldexp(1.0, exponent) for exponent in exponents])


def floor_log2(exact: Fraction) -> int:
    guess = exact.numerator.bit_length() - exact.denominator.bit_length()
    return guess if Fraction(2) ** guess <= exact else guess - 1


def assert_nearest(found: Tensor, exact: list[Fraction]) -> None:
    """Each fraction lies within half a step of its float32; the largest float32 stands for all beyond it."""
    numbers = found.numpy()
    assert numbers.max() <= FLOAT32_MAX
    with np.errstate(over="ignore"):
        low, high = (np.nextafter(numbers, np.float32(side)).astype(np.float64) for side in (0, np.inf))
    limits = zip(((low + numbers) / 2).tolist(), ((high + numbers) / 2).tolist(), exact, strict=True)
    assert all(lower <= value and (upper == math.inf or value <= upper) for lower, upper, value in limits)


@every_format
def test_e8m0_scales_are_the_reference_codes_rounded_up(info: FormatInfo) -> None:
    found, inverse = scales(AMAXES, info, "e8m0")
    # amax / max_finite in float64 is a power of two only where the quotient is one: BF16 holds 8 bits, max_finite 4 at most.
    codes = [codec.encode_scale(amax / info.max_finite, up=True) for amax in AMAXES]
    assert torch.equal(inverse, torch.tensor([codec.decode(E8M0, code) for code in codes]))
    # Code 0 scales by 1: what its amaxes are worth is lost, as in Transformer Engine and torchao.
    assert torch.equal(found, powers([E8M0.bias - code if code else 0 for code in codes]))


@every_format
def test_e8m0_scales_hold_the_amax_and_half_of_them_would_not(info: FormatInfo) -> None:
    """Without the codec: 2^e holds amax / max_finite, 2^(e - 1) does not, but at the ends of E8M0."""
    _, inverse = scales(AMAXES, info, "e8m0")
    for amax, power in zip(AMAXES, inverse.tolist(), strict=True):
        exact = Fraction(amax) / Fraction(info.max_finite)
        assert exact <= power
        assert power == E8M0.min_normal or exact > power / 2


@every_format
def test_float32_scales_and_their_inverses_are_rounded_once(info: FormatInfo) -> None:
    found, inverse = scales(AMAXES[1:], info, "float32")
    assert_nearest(found, [Fraction(info.max_finite) / Fraction(amax) for amax in AMAXES[1:]])
    assert_nearest(inverse, [1 / Fraction(scale) for scale in found.tolist()])


@every_format
def test_float32_scales_of_raised_amaxes_are_rounded_once(info: FormatInfo) -> None:
    """As torchao raises them: none is near enough to zero for its scale to overflow."""
    amaxes = [0.0, *(amax for amax in AMAXES if amax > TORCHAO_LEAST_AMAX / 16)]
    found, inverse = scales(amaxes, info, "float32", TORCHAO_LEAST_AMAX)
    least = float(np.float32(TORCHAO_LEAST_AMAX))
    assert_nearest(found, [Fraction(info.max_finite) / Fraction(max(amax, least)) for amax in amaxes])
    assert_nearest(inverse, [1 / Fraction(scale) for scale in found.tolist()])


@every_format
@pytest.mark.parametrize("least_amax", [0.0, TORCHAO_LEAST_AMAX])
def test_power_of_two_scales_are_the_quotients_rounded_down(info: FormatInfo, least_amax: float) -> None:
    found, inverse = scales(AMAXES[1:], info, "power_of_two", least_amax)
    least = float(np.float32(least_amax))
    exact = [Fraction(info.max_finite) / Fraction(max(amax, least)) for amax in AMAXES[1:]]
    exponents = [min(floor_log2(quotient), 127) for quotient in exact]
    assert torch.equal(found, powers(exponents))
    assert torch.equal(inverse, powers([-exponent for exponent in exponents]))


@every_format
@pytest.mark.parametrize("rule", ["float32", "power_of_two"])
def test_transformer_engine_scales_by_one_what_gives_no_scale(info: FormatInfo, rule: ScaleRule) -> None:
    found, inverse = scales([0.0, math.inf, math.nan], info, rule)
    assert found.tolist() == inverse.tolist() == [1.0] * 3


@every_format
@pytest.mark.parametrize("rule", ["float32", "power_of_two"])
def test_torchao_takes_inf_as_it_comes_and_keeps_nan(info: FormatInfo, rule: ScaleRule) -> None:
    found, inverse = scales([math.inf, math.nan], info, rule, TORCHAO_LEAST_AMAX)
    assert (found[0], inverse[0]) == (0.0, math.inf)
    assert bool(found[1].isnan())
    assert bool(inverse[1].isnan())


@every_format
def test_e8m0_scales_of_inf_and_nan(info: FormatInfo) -> None:
    found, inverse = scales([math.inf, math.nan], info, "e8m0")
    assert (found[0], inverse[0]) == (2.0**-127, 2.0**127)
    assert [codec.encode_scale(amax, up=True) for amax in (math.inf, math.nan)] == [254, 255]
    assert bool(found[1].isnan())
    assert bool(inverse[1].isnan())
