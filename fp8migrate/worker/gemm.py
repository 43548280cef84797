"""BF16 GEMMs as a tensor core does them: BF16 operands, FP32 accumulation, one rounding of the result.

Where the machine has BF16 matrix units (CUDA, AMX, AVX512-BF16) tensors are BF16. Elsewhere torch's BF16 GEMM is twenty times
slower than FP32, so operands are kept as float32 tensors that hold BF16 values: products of those are exact in FP32, so the
result is the same up to the order of accumulation, which differs between machines anyway.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fp8migrate.worker.rounding import bf16_values, round_to_bf16


@dataclass(frozen=True)
class Gemm:
    """How this device multiplies. `native`: BF16 tensors; else float32 tensors that hold BF16 values."""

    native: bool
    on_cuda: bool

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.native else torch.float32

    @property
    def description(self) -> str:
        return "native" if self.native else "float32 over BF16-rounded operands"

    def operand(self, x: Tensor) -> Tensor:
        """x rounded to BF16, in the dtype that `matmul` takes. Exact for values that are BF16 (so every FP8 value) already."""
        return x.to(torch.bfloat16) if self.native else round_to_bf16(x)

    def exact_operand(self, x_float32: Tensor) -> Tensor:
        """A float32 tensor whose values are BF16 values already, in the dtype that `matmul` takes."""
        return x_float32.to(torch.bfloat16) if self.native else x_float32

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        row_factor: Tensor | None = None,
        col_factor: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """(a · b) · factors + bias with one rounding to BF16 after it, in `dtype`. a: [m, k], b: [k, n].

        row_factor: float32, a scalar or [m]; col_factor: a scalar or [n]; none of both: 1. bias: [n].
        """
        if row_factor is None and col_factor is None and bias is None:
            return a @ b if self.native else round_to_bf16(a @ b)
        if self.native and not self.on_cuda and _are_scalars(row_factor, col_factor):
            # On a CPU reading the scale costs nothing, and addmm applies alpha before it rounds.
            alpha = _number(row_factor) * _number(col_factor)
            if bias is None:
                return torch.addmm(a.new_zeros(()), a, b, beta=0, alpha=alpha)
            return torch.addmm(bias.to(a.dtype), a, b, alpha=alpha)
        if self.native and self.on_cuda:
            product = torch.mm(a, b, out_dtype=torch.float32)
        else:
            product = a.to(torch.float32) @ b.to(torch.float32)
        if _are_scalars(row_factor, col_factor):
            factor = row_factor if col_factor is None else col_factor if row_factor is None else row_factor * col_factor
            product = product if factor is None else product.mul_(factor)
        else:
            product = product if row_factor is None else product.mul_(row_factor.unsqueeze(-1))
            product = product if col_factor is None else product.mul_(col_factor)
        if bias is not None:
            product = product.add_(bias)
        # Rounded before the cast: compiled code would carry the unrounded product on.
        return bf16_values(product).to(torch.bfloat16) if self.native else round_to_bf16(product)


def _are_scalars(*factors: Tensor | None) -> bool:
    return all(factor is None or factor.ndim == 0 for factor in factors)


def _number(factor: Tensor | None) -> float:
    return 1.0 if factor is None else float(factor)


def has_native_bf16(device: torch.device) -> bool:
    """Whether BF16 GEMMs are worth having here (see the module's text)."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported())


def gemm_for(device: torch.device) -> Gemm:
    return Gemm(native=has_native_bf16(device), on_cuda=device.type == "cuda")
