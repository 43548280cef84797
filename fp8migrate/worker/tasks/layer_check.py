"""Each layer by itself: the same input, weight and output gradient through its three GEMMs in FP8 and in BF16.

Nothing adds up through depth here, so a layer that is poor by itself stands out, and the advisor's forecast can be held against
what was measured.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fp8migrate.facts.operands import GEMMS, TensorName
from fp8migrate.worker.backends.converted import ConvertedLinear, leaving_no_trace
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.llama import Llama, token_losses
from fp8migrate.worker.tasks.agreement import agreement
from fp8migrate.worker.tensor_watch import watching

# By layer: x [..., in] as "input", dy [..., out] as "gradient".
Seen = dict[str, dict[TensorName, Tensor]]


def seen_by_layers(model: Llama, tokens: Tensor) -> Seen:
    """Inputs and output gradients of every linear layer in one forward and backward pass over tokens [b, t + 1]."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    found: Seen = {name: {} for name in layers}

    def see(layer: str, tensor: TensorName, values: Tensor) -> None:
        if tensor != "weight":
            found[layer][tensor] = values.detach().clone()

    with watching(layers, see):
        token_losses(model, tokens).mean().backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return found


def compare_layers(model: Llama, seen: Seen) -> Iterator[dict[str, object]]:
    """One row per converted layer and GEMM: how near FP8 comes to BF16. Histories stay as they are."""
    with leaving_no_trace(model):
        for name, layer in model.named_modules():
            if isinstance(layer, ConvertedLinear) and layer.low_precision_gemms:
                x, dy = seen[name]["input"], seen[name]["gradient"]
                reference, measured = (products(layer, x, dy, fp8=fp8) for fp8 in (False, True))
                for gemm, exact, low in zip(GEMMS, reference, measured, strict=True):
                    if gemm in layer.low_precision_gemms:
                        yield agreement(f"{name}: {gemm}", exact, low) | {"layer": name, "gemm": gemm}


def products(layer: ConvertedLinear, x: Tensor, dy: Tensor, *, fp8: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx and dw of a layer by itself, x [..., in], dy [..., out]."""
    layer.enabled = fp8
    try:
        x = x.detach().requires_grad_()
        y = layer(x)
        dx, dw = torch.autograd.grad(y, (x, layer.weight), dy)
    finally:
        layer.enabled = True
    return y.detach(), dx, dw
