"""Rounding onto low-precision grids: what two other implementations and the reference codec give, value by value."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8migrate.facts import codec
from fp8migrate.facts.formats import BF16, E2M1, E4M3, E5M2, E8M0, FormatInfo
from fp8migrate.worker.chance import round_stochastically_, uniform_noise
from fp8migrate.worker.rounding import from_codes, round_to_bf16, round_to_format_, to_codes

DTYPES = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
TORCH_DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

every_format = pytest.mark.parametrize("info", [E4M3, E5M2, E2M1], ids=lambda info: info.name)


def grid(info: FormatInfo) -> np.ndarray:
    """Every finite value of a format, rising, from the bits that ml_dtypes gives a meaning."""
    bits = 1 + info.exponent_bits + info.mantissa_bits
    values = np.arange(2**bits, dtype=np.uint8).view(DTYPES[info.name]).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def by_ml_dtypes(x: Tensor, info: FormatInfo) -> np.ndarray:
    """Saturated (both libraries overflow to NaN or Inf), then cast."""
    clamped = np.clip(x.numpy(), -info.max_finite, info.max_finite)
    return clamped.astype(DTYPES[info.name]).astype(np.float32)


def rounded(values: object, info: FormatInfo) -> np.ndarray:
    return round_to_format_(torch.tensor(values, dtype=torch.float32), info).numpy()


def every_bf16() -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()


@every_format
def test_the_format_as_data_is_the_grid(info: FormatInfo) -> None:
    values = grid(info)
    assert values[-1] == info.max_finite
    assert values[values > 0][0] == info.min_subnormal
    assert info.min_normal in values


@every_format
def test_every_bf16_value_rounds_as_ml_dtypes_rounds_it(info: FormatInfo) -> None:
    x = every_bf16()
    x = x[~x.isnan()]
    assert x.numel() == 2**16 - 2 * 127
    np.testing.assert_array_equal(round_to_format_(x.clone(), info).numpy(), by_ml_dtypes(x, info))


@pytest.mark.parametrize("info", [E4M3, E5M2], ids=lambda info: info.name)
def test_every_bf16_value_rounds_as_torch_rounds_it(info: FormatInfo) -> None:
    x = every_bf16()
    x = x[~x.isnan()].clamp(-info.max_finite, info.max_finite)
    assert torch.equal(round_to_format_(x.clone(), info), x.to(TORCH_DTYPES[info.name]).float())


@every_format
def test_values_of_the_format_stay(info: FormatInfo) -> None:
    np.testing.assert_array_equal(rounded(grid(info), info), grid(info).astype(np.float32))


@every_format
def test_ties_go_to_the_even_neighbour_and_one_ulp_off_a_tie_to_the_nearest(info: FormatInfo) -> None:
    """Midpoints of all neighbours, subnormals and zero among them, and the float32 values right beside each."""
    values = grid(info)
    low, high = values[:-1], values[1:]
    middle = ((low + high) / 2).astype(np.float32)
    assert np.array_equal(middle, (low + high) / 2)
    below, above = np.nextafter(middle, np.float32(-np.inf)), np.nextafter(middle, np.float32(np.inf))
    np.testing.assert_array_equal(rounded(below, info), low.astype(np.float32))
    np.testing.assert_array_equal(rounded(above, info), high.astype(np.float32))
    # Sign-magnitude bits: the even neighbour is the one whose last bit is 0.
    bits = low.astype(DTYPES[info.name]).view(np.uint8)
    even = np.where((bits & 1) == 0, low, high).astype(np.float32)
    np.testing.assert_array_equal(rounded(middle, info), even)


@every_format
def test_beyond_the_largest_value_all_saturates(info: FormatInfo) -> None:
    largest = info.max_finite
    up = float(np.nextafter(np.float32(largest), np.float32(np.inf)))
    x = [up, largest * 1.01, largest * 100, 3.4e38, float("inf")]
    assert rounded(x, info).tolist() == [largest] * 5
    assert rounded([-v for v in x], info).tolist() == [-largest] * 5


@every_format
def test_nan_stays_nan_and_zeros_stay_zero(info: FormatInfo) -> None:
    x = rounded([float("nan"), -float("nan"), 0.0, -0.0, 1e-45, -1e-45, info.min_subnormal / 2], info)
    assert np.isnan(x[:2]).all()
    assert x[2:].tolist() == [0.0] * 5


def test_hand_worked_values() -> None:
    # E4M3: 8 steps a binade; 17 lies between 16 and 18, 19 between 18 and 20. Subnormals are multiples of 2^-9.
    assert rounded([17, 19, 0.1, 2**-10, 3 * 2**-10, 460], E4M3).tolist() == [16, 20, 0.1015625, 0, 2**-8, 448]
    # E5M2: 4 steps a binade.
    assert rounded([9, 11, 0.1, 60000], E5M2).tolist() == [8, 12, 0.09375, 57344]
    # E2M1 holds 0, 0.5, 1, 1.5, 2, 3, 4 and 6.
    assert rounded([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 5.1, -7], E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, -6]


@every_format
@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=64))
def test_any_float32_rounds_as_ml_dtypes_rounds_it(info: FormatInfo, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    np.testing.assert_array_equal(round_to_format_(x.clone(), info).numpy(), by_ml_dtypes(x, info))


def test_it_rounds_in_place_and_takes_float32_only() -> None:
    x = torch.tensor([1.01, 2.9])
    assert round_to_format_(x, E2M1) is x
    assert x.tolist() == [1.0, 3.0]
    with pytest.raises(TypeError, match=r"float32, got torch\.bfloat16"):
        round_to_format_(x.bfloat16(), E2M1)


def test_bf16_rounding_is_to_nearest_even() -> None:
    step = 2.0**-7
    x = torch.tensor([1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -0.0])
    assert round_to_bf16(x).tolist() == [1.0, 1 + 2 * step, 1 + step, 0.0]
    assert round_to_bf16(x).dtype == torch.float32


def same_bits(a: Tensor, b: Tensor) -> bool:
    """NaN equals NaN, and -0 is not 0."""
    return bool(((a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())).all())


def ties_and_beside(info: FormatInfo) -> Tensor:
    """Midpoints of all neighbours, the one beyond max_finite among them, and the float32 numbers on both sides of each."""
    values = torch.tensor(codec.values(info))
    values = torch.cat((values, (2 * values[-1] - values[-2])[None]))
    middle = (values[:-1] + values[1:]) / 2
    middle = torch.cat((middle, -middle[-1:]))
    return torch.cat([torch.nextafter(middle, torch.tensor(torch.inf) * side) for side in (-1, 1)] + [middle])


@every_format
def test_it_rounds_as_the_reference_does(info: FormatInfo) -> None:
    """But for the sign of zero, which 0.0 + x takes off the reference's."""
    x = torch.cat((every_bf16(), ties_and_beside(info)))
    x = x if info.has_nan else x[~x.isnan()]
    expected = torch.tensor([0.0 + codec.round_value(info, value) for value in x.tolist()])
    assert same_bits(0.0 + round_to_format_(x.clone(), info), expected)


@every_format
def test_codes_are_the_references_and_come_back(info: FormatInfo) -> None:
    """Every code of the format: -0, Inf and NaN among them, NaNs in one way."""
    numbers = torch.tensor([codec.decode(info, code) for code in codec.all_codes(info)])
    codes = torch.arange(len(numbers), dtype=torch.uint8)
    assert same_bits(from_codes(codes, info), numbers)
    one_nan = torch.where(numbers.isnan(), codec.nan_code(info), codes) if info.has_nan else codes
    assert torch.equal(to_codes(numbers, info), one_nan.to(torch.uint8))


@every_format
def test_codes_of_rounded_numbers_are_those_of_ml_dtypes(info: FormatInfo) -> None:
    x = torch.cat((every_bf16(), ties_and_beside(info)))
    rounded = round_to_format_(x[~x.isnan()], info)
    theirs = rounded.numpy().astype(DTYPES[info.name]).view(np.uint8)
    np.testing.assert_array_equal(to_codes(rounded, info).numpy(), theirs)


def test_codes_keep_a_shape_whatever_the_strides() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0], [0.5, -0.0, 6.0]]).t()
    assert to_codes(x, E2M1).tolist() == [[2, 1], [12, 8], [5, 7]]
    assert torch.equal(from_codes(to_codes(x, E2M1), E2M1), x)


def test_codes_of_other_formats_and_dtypes_are_refused() -> None:
    for info in (BF16, E8M0):
        with pytest.raises(ValueError, match=f"up to 8 bits, not {info.name}"):
            to_codes(torch.ones(1), info)
        with pytest.raises(ValueError, match=f"up to 8 bits, not {info.name}"):
            from_codes(torch.ones(1, dtype=torch.uint8), info)
    with pytest.raises(TypeError, match=r"float32, got torch\.bfloat16"):
        to_codes(torch.ones(1, dtype=torch.bfloat16), E4M3)
    with pytest.raises(TypeError, match=r"uint8, got torch\.int8"):
        from_codes(torch.ones(1, dtype=torch.int8), E4M3)


def test_traced_whole_they_give_what_they_give_eagerly() -> None:
    """No break in the graph, so nothing waits for the device; the seed is data, not a constant of the graph."""

    def both_ways(x: Tensor, seed: Tensor) -> tuple[Tensor, Tensor]:
        by_chance = round_stochastically_(x.clone(), E4M3, uniform_noise(x.shape, seed))
        return by_chance, from_codes(to_codes(round_to_format_(x.clone(), E4M3), E4M3), E4M3)

    traced = torch.compile(both_ways, fullgraph=True, backend="aot_eager")
    for seed in (1, 2):
        x = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        for found, expected in zip(traced(x, torch.tensor(seed)), both_ways(x, torch.tensor(seed)), strict=True):
            assert same_bits(found, expected)


def test_large_tensors_are_rounded_in_parts_to_the_same_bits() -> None:
    """Rows that do not fill the parts evenly, one row longer than a part, and a plain vector."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((1000, 301), (3, 150_000), (300_000,)):
        x = torch.randn(shape, generator=generator) * 100
        expected = torch.cat([round_to_format_(part.clone(), E4M3) for part in x.flatten().split(1000)])
        assert torch.equal(round_to_format_(x, E4M3).flatten(), expected)
