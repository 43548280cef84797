"""Quantised tensors compared by their codes, and tensors that are hard on scales; for tests against other libraries.

Our rounding does not keep the sign of a value that rounds to zero, for no GEMM sees it: codes are compared with −0 taken for
+0, and with one NaN for all of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.facts.operands import Operand
from fp8migrate.worker.quantize import Quantized, quantize

TORCH_DTYPES = {E4M3.name: torch.float8_e4m3fn, E5M2.name: torch.float8_e5m2}
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SHAPES = ((256, 512), (384, 1024))


def codes(values: Tensor, info: FormatInfo) -> Tensor:
    """float32 values on a format's grid as its codes, uint8."""
    if info == E2M1:
        grid = torch.tensor(_E2M1_VALUES, device=values.device)
        found = torch.searchsorted(grid, values.abs().contiguous()).to(torch.uint8)
        assert torch.equal(grid[found.long()], values.abs()), "not E2M1 values"
        return found | ((values < 0).to(torch.uint8) << 3)
    narrow = values.to(TORCH_DTYPES[info.name])
    assert torch.equal(narrow.float().nan_to_num(), values.nan_to_num()), f"not {info.name} values"
    return alike(narrow.view(torch.uint8), info)


def alike(found: Tensor, info: FormatInfo) -> Tensor:
    """A library's codes with −0 as +0 and every NaN as one."""
    if info == E2M1:
        return torch.where(found == 0x8, 0, found)
    largest_number = 0x7E if info == E4M3 else 0x7C
    found = torch.where((found & 0x7F) > largest_number, 0x7F, found)
    return torch.where(found == 0x80, 0, found)


def unpacked(pairs: Tensor) -> Tensor:
    """Two E2M1 codes a byte, the first in the low half, as one code each."""
    return torch.stack((pairs & 0xF, pairs >> 4), dim=-1).flatten(-2)


def assert_same_codes(what: str, ours: Tensor, theirs: Tensor, x: Tensor | None = None) -> None:
    """Says how many codes differ and shows one, with the value that was quantised."""
    assert ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"
    differ = ours != theirs
    if not differ.any():
        return
    at = tuple(int(i) for i in differ.nonzero()[0])
    value = "" if x is None else f" of {float(x[at])!r}"
    found = f"ours {int(ours[at]):#x}, theirs {int(theirs[at]):#x}"
    raise AssertionError(f"{what}: {int(differ.sum())} of {differ.numel()} codes differ, first at {at}{value}: {found}")


def assert_same_floats(what: str, ours: Tensor, theirs: Tensor) -> None:
    """By their float32 bits, every NaN alike."""
    ours, theirs = ours.float().contiguous(), theirs.float().contiguous()
    assert ours.shape == theirs.shape, f"{what}: shapes {tuple(ours.shape)} and {tuple(theirs.shape)}"
    differ = (ours.view(torch.int32) != theirs.view(torch.int32)) & ~(ours.isnan() & theirs.isnan())
    if not differ.any():
        return
    at = tuple(int(i) for i in differ.nonzero()[0]) if differ.ndim else ()
    found = f"ours {float(ours[at])!r}, theirs {float(theirs[at])!r}"
    raise AssertionError(f"{what}: {int(differ.sum())} of {differ.numel()} differ, first at {at}: {found}")


def quantized(x: Tensor, operand: Operand, along: int, scale: Tensor | None = None) -> tuple[Quantized, Tensor]:
    """Ours, and its codes."""
    found = quantize(x, operand, along, scale)
    return found, codes(found.values, operand.format)


def _normal(rows: int, cols: int, size: float, seed: int = 0) -> Tensor:
    return torch.randn(rows, cols, generator=torch.Generator().manual_seed(seed)) * size


def _heavy(rows: int, cols: int) -> Tensor:
    """A tenth of a percent of the values a thousand times larger."""
    chances = torch.rand(rows, cols, generator=torch.Generator().manual_seed(2))
    return _normal(rows, cols, 1.0, 1) * torch.where(chances < 1e-3, 1000.0, 1.0)


def _holes(rows: int, cols: int) -> Tensor:
    """All-zero rows, columns and blocks."""
    x = _normal(rows, cols, 1.0, 3)
    x[:129], x[:, 1::7], x[-1] = 0, 0, 0
    return x


def _uneven(rows: int, cols: int) -> Tensor:
    """Every row and every run of 16 columns of a magnitude of its own."""
    across = torch.randint(-30, 30, (rows, 1), generator=torch.Generator().manual_seed(4))
    along = torch.randint(-9, 9, (1, (cols + 15) // 16), generator=torch.Generator().manual_seed(5))
    return torch.ldexp(_normal(rows, cols, 1.0, 6), across + along.repeat_interleave(16, 1)[:, :cols])


def _with(value: float) -> Callable[[int, int], Tensor]:
    """Normal, with a few such values."""

    def make(rows: int, cols: int) -> Tensor:
        x = _normal(rows, cols, 1.0, 7)
        x[3, 5], x[rows // 2, cols - 1] = value, -value
        return x

    return make


_MAKERS: dict[str, Callable[[int, int], Tensor]] = {
    "normal": lambda rows, cols: _normal(rows, cols, 1.0),
    "small": lambda rows, cols: _normal(rows, cols, 1e-6),
    "large": lambda rows, cols: _normal(rows, cols, 3e4),
    "heavy outliers": _heavy,
    "uneven": _uneven,
    "holes": _holes,
    "zeros": lambda rows, cols: torch.zeros(rows, cols),
    "subnormal": lambda rows, cols: _normal(rows, cols, 1e-39),
    "one huge": _with(3e38),
    "infinite": _with(float("inf")),
    "nan": _with(float("nan")),
}
FINITE = tuple(name for name in _MAKERS if name not in ("infinite", "nan"))
INPUTS = tuple(_MAKERS)


def hard_input(name: str, shape: tuple[int, int], device: str = "cpu") -> Tensor:
    """BF16; drawn on the CPU, so that every device gets the same bits."""
    return _MAKERS[name](*shape).to(torch.bfloat16).to(device)


def every_amax(width: int, device: str = "cpu") -> Tensor:
    """BF16 [32640, width]: a row for every positive finite BF16 value, which is its largest magnitude."""
    amax = torch.arange(1, 0x7F80, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    amax = torch.cat((torch.zeros(1), amax))[:, None]
    parts = torch.rand(amax.shape[0], width, generator=torch.Generator().manual_seed(8)) * 2 - 1
    x = amax * parts
    x[:, 1] = -amax[:, 0]
    return x.to(torch.bfloat16).to(device)
