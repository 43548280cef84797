"""Number formats and the reference codec against ml_dtypes, gfloat, torch and torchao, code by code."""

import itertools
import logging
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import FrozenInstanceError
from functools import cache

import gfloat
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from gfloat import formats as gfloat_formats
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8migrate.facts import codec
from fp8migrate.facts.formats import BF16, E2M1, E4M3, E5M2, E8M0, FORMATS, FormatInfo

ML_DTYPES = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "bf16": ml_dtypes.bfloat16,
}
GFLOAT = {
    "e4m3": gfloat_formats.format_info_ocp_e4m3,
    "e5m2": gfloat_formats.format_info_ocp_e5m2,
    "e2m1": gfloat_formats.format_info_ocp_e2m1,
    "e8m0": gfloat_formats.format_info_ocp_e8m0,
    "bf16": gfloat_formats.format_info_bfloat16,
}
# torch's E2M1 is a pair of numbers in a byte, without casts.
TORCH_DTYPES = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e8m0": torch.float8_e8m0fnu,
    "bf16": torch.bfloat16,
}


def among(*infos: FormatInfo) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("info", infos, ids=lambda info: info.name)


every_format = among(*FORMATS.values())
rounded_formats = among(E4M3, E5M2, E2M1, BF16)


def code_array(codes: Iterable[int], info: FormatInfo) -> np.ndarray:
    return np.fromiter(codes, dtype=np.uint16 if info.bits > 8 else np.uint8)


def every_bf16() -> np.ndarray:
    return (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)


def around_ties(info: FormatInfo, dtype: type[np.floating]) -> np.ndarray:
    """Midpoints of all neighbours, the one beyond max_finite among them, and the numbers of the dtype on both sides of each."""
    values = codec.values(info)
    beyond = 2 * values[-1] - values[-2]
    grid = np.array([-beyond, *values, beyond])
    middle = ((grid[:-1] + grid[1:]) / 2).astype(dtype)
    return np.concatenate((np.nextafter(middle, dtype(-np.inf)), middle, np.nextafter(middle, dtype(np.inf))))


@cache
def encoded(info: FormatInfo, *, saturate: bool) -> tuple[np.ndarray, np.ndarray]:
    """(float64 numbers: every BF16 bit pattern and all around ties, NaN only where the format has it; our codes of them)."""
    with np.errstate(invalid="ignore"):  # signalling NaNs turn quiet
        x = np.concatenate((every_bf16(), around_ties(info, np.float32), around_ties(info, np.float64)))
    x = x if info.has_nan else x[~np.isnan(x)]
    return x, code_array((codec.encode(info, value, saturate=saturate) for value in x.tolist()), info)


def encoded_float32(info: FormatInfo, *, saturate: bool) -> tuple[np.ndarray, np.ndarray]:
    """Those of them that float32 holds."""
    x, codes = encoded(info, saturate=saturate)
    fits = (x == x.astype(np.float32)) | np.isnan(x)
    return x[fits].astype(np.float32), codes[fits]


def by_ml_dtypes(x: np.ndarray, info: FormatInfo) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x.astype(ML_DTYPES[info.name])
    return cast.view(np.uint16 if info.bits > 8 else np.uint8)


def by_gfloat(x: np.ndarray, info: FormatInfo, *, saturate: bool) -> np.ndarray:
    fi = GFLOAT[info.name]
    rounded = gfloat.round_ndarray(fi, x, sat=saturate)
    return gfloat.encode_ndarray(fi, rounded).astype(np.uint16 if info.bits > 8 else np.uint8)


def assert_same_codes(ours: np.ndarray, theirs: np.ndarray, info: FormatInfo) -> None:
    """Codes of NaN count as one: libraries write different ones (of E5M2, torch 0x7F, ml_dtypes 0x7E), some with its sign."""
    if info.has_nan:
        size = theirs & ((1 << (info.bits - 1)) - 1)
        theirs = np.where(size > info.largest_code + int(info.has_infinity), codec.nan_code(info), theirs)
    np.testing.assert_array_equal(ours, theirs)


def assert_same_numbers(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> None:
    """NaN equals NaN, and -0 is not 0."""
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours[~np.isnan(ours)]), np.signbit(theirs[~np.isnan(theirs)]))


def decoded(info: FormatInfo) -> list[float]:
    return [codec.decode(info, code) for code in codec.all_codes(info)]


@every_format
def test_every_code_is_the_number_that_ml_dtypes_and_gfloat_decode(info: FormatInfo) -> None:
    codes = code_array(codec.all_codes(info), info)
    with np.errstate(invalid="ignore"):  # BF16's signalling NaNs turn quiet
        assert_same_numbers(decoded(info), codes.view(ML_DTYPES[info.name]).astype(np.float64))
    assert_same_numbers(decoded(info), [gfloat.decode_float(GFLOAT[info.name], code).fval for code in codes.tolist()])


@among(E4M3, E5M2, E8M0, BF16)
def test_every_code_is_the_number_that_torch_decodes(info: FormatInfo) -> None:
    codes = torch.from_numpy(code_array(codec.all_codes(info), info))
    assert_same_numbers(decoded(info), codes.view(TORCH_DTYPES[info.name]).to(torch.float32).double().numpy())


@every_format
def test_the_data_is_that_of_ml_dtypes_and_gfloat(info: FormatInfo) -> None:
    theirs, fi = ml_dtypes.finfo(ML_DTYPES[info.name]), GFLOAT[info.name]
    assert (info.bits, info.mantissa_bits, info.max_finite) == (theirs.bits, theirs.nmant, float(theirs.max))
    assert (info.min_normal, info.min_subnormal) == (float(theirs.smallest_normal), float(theirs.smallest_subnormal))
    assert (info.bits, info.bias, info.exponent_bits, info.mantissa_bits + 1) == (fi.k, fi.bias, fi.expBits, fi.precision)
    assert (info.signed, info.has_zero, info.has_nan) == (fi.is_signed, fi.has_zero, fi.num_nans > 0)
    assert (info.has_infinity, info.max_finite) == (fi.num_posinfs > 0, fi.max)
    assert codec.decode(info, info.largest_code) == info.max_finite


@every_format
def test_finite_values_rise_from_end_to_end(info: FormatInfo) -> None:
    values = np.array(codec.values(info))
    assert (np.diff(values) > 0).all()
    assert values[-1] == info.max_finite
    assert values[values > 0][0] == info.min_subnormal
    np.testing.assert_array_equal(values, -values[::-1] if info.signed else values)
    assert (0.0 in values) == info.has_zero


@rounded_formats
def test_every_number_of_a_format_has_its_own_code_back(info: FormatInfo) -> None:
    numbers = decoded(info)
    theirs = [code if not math.isnan(number) else codec.nan_code(info) for code, number in enumerate(numbers)]
    assert [codec.encode(info, number, saturate=math.isfinite(number)) for number in numbers] == theirs


# E2M1, without NaN and Inf, can only saturate.
@pytest.mark.parametrize(("info", "saturate"), [*itertools.product([E4M3, E5M2, BF16], [True, False]), (E2M1, True)])
def test_every_bf16_number_and_all_around_ties_encode_as_gfloat_encodes_them(info: FormatInfo, saturate: bool) -> None:
    x, codes = encoded(info, saturate=saturate)
    assert_same_codes(codes, by_gfloat(x, info, saturate=saturate), info)


@among(E4M3, E5M2, BF16)
def test_overflowing_is_what_ml_dtypes_does(info: FormatInfo) -> None:
    x, codes = encoded_float32(info, saturate=False)
    assert_same_codes(codes, by_ml_dtypes(x, info), info)


@rounded_formats
def test_saturating_is_what_ml_dtypes_does_with_clipped_numbers(info: FormatInfo) -> None:
    """Its own casts overflow, but for E2M1's."""
    x, codes = encoded_float32(info, saturate=True)
    assert_same_codes(codes, by_ml_dtypes(np.clip(x, -info.max_finite, info.max_finite), info), info)


@among(E4M3, E5M2, BF16)
def test_saturating_is_what_torch_does_with_clipped_numbers(info: FormatInfo) -> None:
    """Beyond the range torch's CPU casts saturate for E4M3 and overflow to Inf for E5M2."""
    x, codes = encoded_float32(info, saturate=True)
    cast = torch.from_numpy(np.clip(x, -info.max_finite, info.max_finite)).to(TORCH_DTYPES[info.name])
    assert_same_codes(codes, cast.view(torch.uint16 if info.bits > 8 else torch.uint8).numpy(), info)


@pytest.fixture(scope="module")
def torchao_e2m1() -> Callable[[Tensor], Tensor]:
    """torchao's cast of float32 to E2M1 codes. Loading torchao logs and warns about kernels for other machines."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cast: Callable[[Tensor], Tensor] = pytest.importorskip("torchao.prototype.mx_formats.kernels").f32_to_f4_unpacked
    finally:
        logging.disable(before)
    return cast


def test_e2m1_codes_are_torchaos(torchao_e2m1: Callable[[Tensor], Tensor]) -> None:
    x, codes = encoded_float32(E2M1, saturate=True)
    np.testing.assert_array_equal(codes, torchao_e2m1(torch.from_numpy(x)).numpy())


@rounded_formats
@settings(max_examples=200, deadline=None)
@given(value=st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False) | st.floats(-1000, 1000))
@example(value=5e-324)
@example(value=1.7976931348623157e308)
def test_any_float64_rounds_as_gfloat_rounds_it(info: FormatInfo, value: float) -> None:
    rounded = codec.round_value(info, value)
    assert_same_numbers([rounded], [gfloat.round_float(GFLOAT[info.name], value, sat=True)])
    if info.has_nan:
        overflown = codec.round_value(info, value, saturate=False)
        assert_same_numbers([overflown], [gfloat.round_float(GFLOAT[info.name], value, sat=False)])


def test_the_limits_of_overflow_by_hand() -> None:
    """Half a step beyond max_finite the tie goes to the even code: E4M3's max_finite has one, those of the others are odd."""
    assert codec.round_value(E4M3, 464.0, saturate=False) == 448.0
    assert math.isnan(codec.round_value(E4M3, math.nextafter(464.0, 500.0), saturate=False))
    assert codec.round_value(E5M2, math.nextafter(61440.0, 0.0), saturate=False) == 57344.0
    assert codec.round_value(E5M2, -61440.0, saturate=False) == -math.inf
    assert codec.round_value(BF16, (2 - 2.0**-8) * 2.0**127, saturate=False) == math.inf
    assert codec.round_value(E2M1, math.nextafter(7.0, 0.0), saturate=False) == 6.0
    with pytest.raises(ValueError, match="e2m1 has no NaN"):
        codec.encode(E2M1, 7.0, saturate=False)


@rounded_formats
def test_zero_keeps_its_sign_and_infinity_saturates(info: FormatInfo) -> None:
    sign = 1 << (info.bits - 1)
    small = info.min_subnormal / 2
    assert [codec.encode(info, x) for x in (0.0, small, -0.0, -small)] == [0, 0, sign, sign]
    assert [codec.round_value(info, x) for x in (math.inf, -math.inf)] == [info.max_finite, -info.max_finite]


def test_nan_is_written_in_one_way() -> None:
    assert [codec.encode(info, math.nan) for info in (E4M3, E5M2, BF16)] == [0x7F, 0x7E, 0x7FC0]
    assert codec.encode(E4M3, -math.inf, saturate=False) == 0x7F
    with pytest.raises(ValueError, match="e2m1 has no NaN"):
        codec.encode(E2M1, math.nan)


def test_scales_are_rounded_down_or_up_to_powers_of_two() -> None:
    for code in range(255):
        power = codec.decode(E8M0, code)
        above, below = math.nextafter(power, math.inf), math.nextafter(power, 0.0)
        assert codec.encode_scale(power, up=False) == codec.encode_scale(power, up=True) == code
        assert codec.encode_scale(above, up=False) == codec.encode_scale(below, up=True) == code
        assert codec.encode_scale(above, up=True) == min(code + 1, 254)
        assert codec.encode_scale(below, up=False) == max(code - 1, 0)


@pytest.mark.parametrize("up", [False, True])
def test_scales_end_at_the_formats_limits(up: bool) -> None:
    ends = [0.0, 5e-324, 2.0**-127, 1.9 * 2.0**127, math.inf, math.nan]
    assert [codec.encode_scale(value, up=up) for value in ends] == [0, 0, 0, 254, 254, 255]
    with pytest.raises(ValueError, match="not negative: -1"):
        codec.encode_scale(-1.0, up=up)


@pytest.mark.parametrize(("up", "mode"), [(False, gfloat.RoundMode.TowardNegative), (True, gfloat.RoundMode.TowardPositive)])
@settings(max_examples=200, deadline=None)
@given(value=st.floats(2.0**-127, 2.0**127))
def test_any_scale_is_rounded_as_gfloat_rounds_it(up: bool, mode: gfloat.RoundMode, value: float) -> None:
    ours = codec.decode(E8M0, codec.encode_scale(value, up=up))
    assert ours == gfloat.round_float(GFLOAT["e8m0"], value, mode, sat=True)


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="e8m0 holds scales"):
        codec.encode(E8M0, 1.0)
    for code in (-1, 16):
        with pytest.raises(ValueError, match=f"e2m1 has 4 bits: no code {code}"):
            codec.decode(E2M1, code)
    with pytest.raises(FrozenInstanceError):
        E4M3.bias = 8  # type: ignore[misc]
