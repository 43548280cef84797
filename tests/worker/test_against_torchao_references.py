"""Quantised tensors and their scales against torchao's own casts, bit for bit, on the CPU."""

import pytest
import torch
from torch import Tensor

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.facts.operands import Operand
from fp8migrate.worker.quantize import Quantized
from tests.low_precision import (
    FINITE,
    INPUTS,
    SHAPES,
    TORCH_DTYPES,
    alike,
    assert_same_codes,
    codes,
    every_amax,
    hard_input,
    quantized,
    unpacked,
)
from tests.torchao_casts import check_cast, torchao_quietly

MX = Operand(E4M3, (1, 32), "e8m0")
NVFP4 = Operand(E2M1, (1, 16), "e4m3")
# torchao raises NVFP4's block scales to E4M3's least normal number; Transformer Engine and we go down to its subnormals and 0.
TORCHAO_LEAST_NVFP4_SCALE = E4M3.min_normal
both_formats = pytest.mark.parametrize("info", [E4M3, E5M2], ids=lambda info: info.name)


@both_formats
@pytest.mark.parametrize("powers_of_two", [False, True], ids=["float32", "powers of two"])
@pytest.mark.parametrize("along", [None, 0, 1], ids=["tensor", "columns", "rows"])
@pytest.mark.parametrize("name", INPUTS)
def test_float8_casts(info: FormatInfo, powers_of_two: bool, along: int | None, name: str) -> None:
    for shape in (*SHAPES, (200, 272)):
        check_cast(hard_input(name, shape), info, along, powers_of_two)


@both_formats
@pytest.mark.parametrize("powers_of_two", [False, True], ids=["float32", "powers of two"])
def test_float8_casts_of_rows_for_every_amax(info: FormatInfo, powers_of_two: bool) -> None:
    check_cast(every_amax(16), info, 1, powers_of_two)


def check_mx(x: Tensor, info: FormatInfo) -> None:
    to_mx = torchao_quietly("torchao.prototype.mx_formats.mx_tensor").to_mx
    rounded_up = torchao_quietly("torchao.prototype.mx_formats.config").ScaleCalculationMode.RCEIL
    scale, values = to_mx(x, TORCH_DTYPES[info.name], MX.tile[1], rounded_up)
    found, ours = quantized(x, Operand(info, MX.tile, "e8m0"), 1)
    exponent = (found.inverse_scale.view(torch.int32) >> 23).to(torch.uint8)
    assert_same_codes("E8M0 scales", exponent, scale.view(torch.uint8))
    assert_same_codes("values", ours, alike(values.view(torch.uint8), info), x)


@both_formats
@pytest.mark.parametrize("name", INPUTS)
def test_mxfp8(info: FormatInfo, name: str) -> None:
    for shape in SHAPES:
        check_mx(hard_input(name, shape), info)


@both_formats
def test_mxfp8_for_every_amax(info: FormatInfo) -> None:
    check_mx(every_amax(32), info)


def both_nvfp4(x: Tensor) -> tuple[Quantized, Tensor, Tensor, Tensor]:
    """Ours, our E2M1 codes, torchao's E4M3 scales and its E2M1 codes."""
    module = torchao_quietly("torchao.prototype.mx_formats.nvfp4_tensor")
    scale, pairs = module.nvfp4_quantize(x, per_tensor_scale=module.per_tensor_amax_to_scale(x.abs().amax()))
    found, ours = quantized(x, NVFP4, 1)
    return found, ours, scale, alike(unpacked(pairs), E2M1)


def of_exact_amax(name: str, shape: tuple[int, int], power: int) -> Tensor:
    """A hard input within ±2688 · 2^power (448 · 6 · 2^power), which it reaches: the tensor's scale is then a power of two."""
    x, largest = hard_input(name, shape).float(), 2688 * 2.0**power
    x = x * (largest / 2 / x.abs().amax().clamp(min=1e-30))
    x[0, 0] = largest
    return x.to(torch.bfloat16)


@pytest.mark.parametrize("power", [-20, 0, 7])
@pytest.mark.parametrize("name", FINITE)
def test_nvfp4_where_the_tensors_scale_is_a_power_of_two(name: str, power: int) -> None:
    for shape in SHAPES:
        x = of_exact_amax(name, shape, power)
        found, ours, scale, theirs = both_nvfp4(x)
        comparable = scale.float() > TORCHAO_LEAST_NVFP4_SCALE
        own_scale = torch.where(comparable, found.inverse_scale, scale.float())
        assert (found.inverse_scale[~comparable] <= TORCHAO_LEAST_NVFP4_SCALE).all()
        assert_same_codes("E4M3 scales", codes(own_scale, E4M3), scale.view(torch.uint8))
        values = torch.where(comparable.repeat_interleave(16, 1), ours, theirs)
        assert_same_codes("values", values, theirs, x)


def near_middle(number: Tensor, ours: Tensor, theirs: Tensor) -> bool:
    """Whether numbers lie half way between two roundings of them, up to a few float32 ulps."""
    middle = (ours.double() + theirs.double()) / 2
    return bool(((number - middle).abs() <= 2**-21 * middle.abs()).all())


def test_nvfp4_elsewhere_differs_only_at_ties() -> None:
    """torchao divides where Transformer Engine (and we) multiply by reciprocals: a tie may fall either way.

    Of normal values 0.29 % of the E4M3 scales and, where those are the same, 0.06 % of the E2M1 values are such ties.
    """
    blocks = scales_off = values = values_off = 0
    for seed in range(20):
        x = torch.randn(256, 512, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
        found, ours, scale, theirs = both_nvfp4(x)
        unit = x.abs().amax().double() / 2688
        differ = found.inverse_scale != scale.float()
        wanted = x.abs().view(256, 32, 16).amax(-1).double() / 6 / unit
        assert (codes(found.inverse_scale, E4M3).int() - scale.view(torch.uint8).int()).abs().max() <= 1
        assert near_middle(wanted[differ], found.inverse_scale[differ], scale.float()[differ])
        same = ~differ.repeat_interleave(16, 1)
        off = same & (ours != theirs)
        grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        wanted = x.abs().double() / (scale.double().repeat_interleave(16, 1) * unit)
        assert near_middle(wanted[off], found.values.abs()[off], grid[(theirs & 7).long()][off])
        blocks, scales_off = blocks + differ.numel(), scales_off + int(differ.sum())
        values, values_off = values + int(same.sum()), values_off + int(off.sum())
    assert scales_off <= 4e-3 * blocks
    assert values_off <= 1e-3 * values
