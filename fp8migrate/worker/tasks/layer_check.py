"""Each layer by itself: the same input, weight and output gradient through its three GEMMs in FP8 and in BF16.

Nothing adds up through depth here, so a layer that is poor by itself stands out, and the advisor's forecast can be held against
what was measured.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fp8migrate.facts.operands import GEMMS, TensorName
from fp8migrate.worker.backends.converted import Converted, converted_modules, leaving_no_trace
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.fused import FusedModule
from fp8migrate.worker.models.llama import Llama, RMSNorm, token_losses
from fp8migrate.worker.tasks.agreement import agreement
from fp8migrate.worker.tensor_watch import watching

# By linear layer and norm: x [..., in] as "input", dy [..., out] as "gradient".
Seen = dict[str, dict[TensorName, Tensor]]


def seen_by_layers(model: Llama, tokens: Tensor) -> Seen:
    """Inputs and output gradients of every linear layer and norm in one forward and backward pass over tokens [b, t + 1]."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Linear | RMSNorm)}
    found: Seen = {name: {} for name in layers}

    def see(layer: str, tensor: TensorName, values: Tensor) -> None:
        if tensor != "weight":
            found[layer][tensor] = values.detach().clone()

    with watching(layers, see):
        token_losses(model, tokens).mean().backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)
    return found


def given_to(name: str, module: Converted, seen: Seen) -> tuple[Tensor, Tensor]:
    """x and dy of a converted module, from what the plain model's layers saw that it stands for."""
    if not isinstance(module, FusedModule):
        return seen[name]["input"], seen[name]["gradient"]
    prefix = name.rpartition(".")[0]
    writes = [seen[f"{prefix}.{layer}"]["gradient"] for layer in module.weights.writes]
    return seen[f"{prefix}.{module.weights.reads}"]["input"], torch.cat(writes, dim=-1)


def compare_layers(model: Llama, seen: Seen) -> Iterator[dict[str, object]]:
    """One row per converted module and GEMM: how near FP8 comes to BF16. Histories stay as they are.

    Of a module with several matrices: its output, its input's gradient, and the gradients of its matrices together.
    """
    with leaving_no_trace(model):
        for name, module in converted_modules(model).items():
            if module.low_precision_gemms:
                x, dy = given_to(name, module, seen)
                reference, measured = (products(module, x, dy, fp8=fp8) for fp8 in (False, True))
                for gemm, exact, low in zip(GEMMS, reference, measured, strict=True):
                    if gemm in module.low_precision_gemms:
                        yield agreement(f"{name}: {gemm}", exact, low) | {"layer": name, "gemm": gemm}


def products(module: Converted, x: Tensor, dy: Tensor, *, fp8: bool) -> tuple[Tensor, Tensor, Tensor]:
    """y, dx and dw of a converted module by itself, x [..., in], dy [..., out]; dw of several matrices [values]."""
    module.enabled = fp8
    try:
        x = x.detach().requires_grad_()
        y = module(x)
        dx, *dw = torch.autograd.grad(y, (x, *module.gemm_weights), dy.to(y.dtype))
    finally:
        module.enabled = True
    return y.detach(), dx, dw[0] if len(dw) == 1 else torch.cat([each.flatten() for each in dw])
