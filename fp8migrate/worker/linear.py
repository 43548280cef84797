"""The linear layer of every backend: FP32 master weight, low-precision GEMMs.

y = x · wᵀ       forward          operands x, w
dx = dy · w      data gradient    operands dy, w
dw = dyᵀ · x     weight gradient  operands dy, x

The operands saved for backward are those of the forward GEMM: in FP8 the backward multiplies the same quantised x and w.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fp8migrate.worker.gemm import Gemm, gemm_for


class _LowPrecisionMatmul(torch.autograd.Function):
    """x_tk · w_nkᵀ on operands that the layer prepared; asks the layer to prepare dy in backward."""

    @staticmethod
    def forward(ctx: Any, x_tk: Tensor, weight_nk: Tensor, layer: "Linear") -> Tensor:
        x_low, x_scale = layer.prepare_input(x_tk)
        w_low, w_scale = layer.prepare_weight()
        ctx.layer = layer
        # A weight without gradient (evaluation) saves nothing.
        ctx.save_for_backward(x_low, x_scale, w_low, w_scale)
        return layer.gemm.matmul(x_low, w_low.t(), combine(x_scale, w_scale)).to(x_tk.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (dy_tn,) = gradients
        layer: Linear = ctx.layer
        x_low, x_scale, w_low, w_scale = ctx.saved_tensors
        dy_low, dy_scale = layer.prepare_gradient(dy_tn)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            dx = layer.gemm.matmul(dy_low, w_low, combine(dy_scale, w_scale)).to(dy_tn.dtype)
        if ctx.needs_input_grad[1]:
            dw = layer.gemm.matmul(dy_low.t(), x_low, combine(dy_scale, x_scale)).to(torch.float32)
        return dx, dw, None


def combine(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The factor by which a product of two scaled operands is multiplied; None where neither is scaled."""
    return None if a is None or b is None else a * b


class Linear(nn.Module):
    """A bias-free linear layer with an FP32 weight [out, in] whose GEMMs run in BF16."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=torch.float32))
        self._gemm: Gemm | None = None
        self._bf16_weight: tuple[int, Tensor] | None = None

    @property
    def gemm(self) -> Gemm:
        if self._gemm is None:
            self._gemm = gemm_for(self.weight.device)
        return self._gemm

    def prepare_input(self, x_tk: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.gemm.operand(x_tk), None

    def prepare_weight(self) -> tuple[Tensor, Tensor | None]:
        """The weight as an operand, made once for each value that the weight takes (its autograd version tells)."""
        version = self.weight._version
        if self._bf16_weight is None or self._bf16_weight[0] != version:
            self._bf16_weight = (version, self.gemm.operand(self.weight.detach()))
        return self._bf16_weight[1], None

    def prepare_gradient(self, dy_tn: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.gemm.operand(dy_tn), None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] to [..., out], in x's dtype."""
        apply: Callable[[Tensor, Tensor, Linear], Tensor] = _LowPrecisionMatmul.apply
        return apply(x.reshape(-1, self.in_features), self.weight, self).view(*x.shape[:-1], self.out_features)
