"""A matrix as one GEMM takes it in low precision. Pure functions; state that outlives a tensor is in `quantizers`.

`along` is the dimension that the GEMM sums over: tiles, rows and rotations lie along it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fp8migrate.facts.operands import Operand
from fp8migrate.worker.chance import round_stochastically_, uniform_noise
from fp8migrate.worker.rounding import bf16_values, round_to_format_
from fp8migrate.worker.scaling import Scales, inverse, scales_for

# Signs of the random Hadamard transform: fixed, as Transformer Engine's, so that both operands and all ranks agree.
_SIGNS_16 = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)


@dataclass(frozen=True)
class Quantized:
    """values: float32 on the format's grid, [rows, cols]; along the contraction padded to whole blocks where they are rotated.

    inverse_scale: float32, a scalar for the tensor, else [rows / tile rows, cols / tile cols]. outer: a float32 scalar or None.
    tensor ≈ values · inverse_scale · outer (rotated, where the operand is).
    """

    values: Tensor
    inverse_scale: Tensor
    outer: Tensor | None
    tile: tuple[int, int]

    def scaled_back(self) -> Tensor:
        """values · inverse_scale, float32, [rows, cols]."""
        if self.inverse_scale.ndim == 0:
            return self.values * self.inverse_scale
        (rows, cols), (r, c) = self.values.shape, self.tile
        if rows % r == 0 and cols % c == 0:
            tiles = self.values.view(rows // r, r, cols // c, c) * self.inverse_scale[:, None, :, None]
            return tiles.view(rows, cols)
        across = self.inverse_scale.repeat_interleave(r, 0)[:rows]
        return self.values * across.repeat_interleave(c, 1)[:, :cols]

    def dequantized(self) -> Tensor:
        """float32, [rows, cols]."""
        return self.scaled_back() if self.outer is None else self.scaled_back() * self.outer


def quantize(
    x: Tensor, operand: Operand, along: int, scale: Tensor | None = None, noise_seed: Tensor | None = None
) -> Quantized:
    """Quantise x [rows, cols], of any float dtype: rounded to BF16 before, as the tensors that real FP8 layers are given.

    scale: a float32 scalar that delayed or constant scaling brings; else scales come from x. noise_seed: an int64 scalar, for
    operands that are rounded stochastically. Raises ValueError where an operand needs what is not given.
    """
    if operand.stochastic and noise_seed is None:
        raise ValueError("stochastic rounding needs a noise_seed")
    if (operand.history or operand.constant is not None) and scale is None:
        raise ValueError("delayed and constant scaling need a scale")
    rounded = bf16_values(x)
    if operand.hadamard:
        rounded = rotate(rounded, operand.hadamard, along)
    if operand.tile == (None, None):
        scales = Scales(scale, inverse(scale)) if scale is not None else scales_for(largest(rounded), operand)
        values = rounded.to(torch.float32).mul_(scales.scale)
        return Quantized(_cast(values, operand, noise_seed), scales.inverse, scales.outer, (values.shape[0], values.shape[1]))
    return _quantize_tiles(rounded, operand, along, noise_seed)


def _quantize_tiles(rounded: Tensor, operand: Operand, along: int, noise_seed: Tensor | None) -> Quantized:
    rows, cols = rounded.shape
    r, c = tile_shape(operand, along, rows, cols)
    # Zeros beyond the edge change no maximum and quantise to zero.
    padded = F.pad(rounded, (0, -cols % c, 0, -rows % r)) if cols % c or rows % r else rounded
    tiles = padded.reshape(padded.shape[0] // r, r, padded.shape[1] // c, c)
    amax = torch.amax(tiles.abs(), dim=(1, 3), keepdim=True).to(torch.float32)
    tensor_amax = amax.amax() if operand.scale == "e4m3" else None
    scales = scales_for(amax, operand, tensor_amax)
    values = tiles.to(torch.float32).mul_(scales.scale).view(padded.shape)[:rows, :cols].contiguous()
    return Quantized(_cast(values, operand, noise_seed), scales.inverse[:, 0, :, 0], scales.outer, (r, c))


def _cast(values: Tensor, operand: Operand, noise_seed: Tensor | None) -> Tensor:
    if not operand.stochastic:
        return round_to_format_(values, operand.format)
    assert noise_seed is not None
    return round_stochastically_(values, operand.format, uniform_noise(values.shape, noise_seed))


def tile_shape(operand: Operand, along: int, rows: int, cols: int) -> tuple[int, int]:
    """(rows, cols) of a tile in a matrix of that shape."""
    across, length = operand.tile
    r, c = (across, length) if along == 1 else (length, across)
    return r or rows, c or cols


def largest(x: Tensor) -> Tensor:
    """The largest magnitude of a tensor, a float32 scalar; NaN where it holds one. One pass, where abs and amax are two."""
    least, most = torch.aminmax(x)
    found: Tensor = torch.maximum(most, -least).to(torch.float32)
    return found


def rotate(x: Tensor, size: int, along: int) -> Tensor:
    """Each run of `size` values along a dimension times diag(signs) · H / √size, rounded to BF16; zeros fill the last run.

    The matrix is orthogonal: with both operands of a product rotated, the product is the same.
    """
    lines = x if along == 1 else x.t()
    lines = F.pad(lines, (0, -lines.shape[1] % size))
    matrix = hadamard(size).to(x.device)
    rotated = bf16_values(lines.to(torch.float32).reshape(-1, size) @ matrix).view(lines.shape)
    return rotated if along == 1 else rotated.t()


def hadamard(size: int) -> Tensor:
    """diag(signs) · H / √size by Sylvester's construction, float32 [size, size]. Raises ValueError for a size without signs."""
    if size != len(_SIGNS_16):
        raise ValueError(f"Hadamard transforms have size {len(_SIGNS_16)}, not {size}")
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    signs = torch.tensor(_SIGNS_16, dtype=torch.float32)[:, None]
    return signs * matrix * (1 / math.sqrt(size))


def gemm_operand(quantized: Quantized, operand: Operand) -> tuple[Tensor, Tensor | None]:
    """(values for a BF16 GEMM, float32, exact in BF16; the factor of its product: a scalar, a vector across, or None).

    Power-of-two scales and E4M3 ones go into the values: every FP8 value times a power of two, and every E2M1 value times an
    E4M3 one, has at most 7 significant bits. float32 scales, which lie across the contraction, multiply the product.
    """
    if operand.tile == (None, None):
        return quantized.values, quantized.inverse_scale
    if operand.scale == "float32":
        return quantized.values, quantized.inverse_scale.flatten()
    return quantized.scaled_back(), quantized.outer
