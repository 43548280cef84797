"""A layer whose sizes FP8 GEMMs do not take, padded with zeros to the next ones that they do; for the layers of any backend.

Zeros add nothing to a product and raise no maximum, so results are those of the layer as it is, up to the order of sums. Scales
of blocks at the edge are those of the values that are there.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from fp8migrate.facts.operands import Gemm
from fp8migrate.sizing.policy import Padding, padded_size
from fp8migrate.worker.backends.converted import ConvertedLinear, MakeLayer
from fp8migrate.worker.linear import Linear


class PaddedLinear(ConvertedLinear):
    """The source's parameters, as they are; padded copies of them, made in each pass, go through a backend's layer.

    That layer stays beside the module tree, and its buffers and modules are this layer's: they have the names that they have
    without padding. With FP8 off it multiplies as we do, without padding.
    """

    def __init__(self, source: Linear | nn.Linear, inner: ConvertedLinear, padding: Padding) -> None:
        self.adopt(source)
        self._padding = padding
        # It gets a weight in each pass: it holds none, so it keeps no copy of one either.
        for name in ("weight", "bias"):
            if inner._parameters.get(name) is not None:
                del inner._parameters[name]
        self.__dict__["_inner"] = inner
        self.__dict__.update(_buffers=inner._buffers, _modules=inner._modules)
        self._non_persistent_buffers_set = inner._non_persistent_buffers_set

    @property
    def inner(self) -> ConvertedLinear:
        found: ConvertedLinear = self.__dict__["_inner"]
        return found

    @property
    def low_precision_gemms(self) -> frozenset[Gemm]:
        return self.inner.low_precision_gemms

    @property
    def tensors_quantized(self) -> int:
        return self.inner.tensors_quantized

    @property
    def ran_without(self) -> bool:
        return self.inner.ran_without

    def leaving_no_trace(self) -> AbstractContextManager[None]:
        return self.inner.leaving_no_trace()

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] to [..., out]."""
        if not self.enabled or x.numel() == 0:
            return super().forward(x)
        x_tk = x.reshape(-1, self.in_features)
        tokens, inner = x_tk.shape[0], self.inner
        more_tokens = padded_size(tokens, self._padding.tokens) - tokens
        more_in, more_out = (padded_size(size, self._padding.features) - size for size in (self.in_features, self.out_features))
        given: Any = inner
        given.weight = F.pad(self.weight, (0, more_in, 0, more_out))
        if self.bias is not None:
            given.bias = F.pad(self.bias, (0, more_out))
        inner.first_microbatch = self.first_microbatch
        try:
            y_tn: Tensor = inner(F.pad(x_tk, (0, more_in, 0, more_tokens)))
        finally:  # torch ends a recompute by an exception as soon as it has what it needs
            given.weight = None  # what the backward pass needs is saved there
        return y_tn[:tokens, : self.out_features].reshape(*x.shape[:-1], self.out_features)


def padded(make: MakeLayer, padding: Padding) -> MakeLayer:
    """Makes padded layers of the layers that `make` makes."""

    def make_padded(source: Linear | nn.Linear, recipes: Any, name: str) -> PaddedLinear:
        return PaddedLinear(source, make(_padded_source(source, padding), recipes, name), padding)

    return make_padded


def _padded_source(source: Linear | nn.Linear, padding: Padding) -> nn.Linear:
    """A layer of the padded sizes, for a backend to learn sizes, dtype and device from."""
    rows, columns = (padded_size(size, padding.features) for size in (source.out_features, source.in_features))
    weight = source.weight
    assert isinstance(weight, Tensor)
    found = nn.Linear(columns, rows, bias=source.bias is not None, device="meta")
    found.weight = nn.Parameter(weight.new_zeros(rows, columns))
    if source.bias is not None:
        found.bias = nn.Parameter(weight.new_zeros(rows))
    return found
