"""Which kernels really ran: of each converted layer by itself, and of one whole training step. On a GPU alone."""

from collections import Counter
from collections.abc import Callable

import torch

from fp8migrate.facts.kernels import kernel_kind
from fp8migrate.jobs import Precision
from fp8migrate.worker.backends.converted import converted_modules, leaving_no_trace
from fp8migrate.worker.kernels import Kernel, KernelWatch
from fp8migrate.worker.models.llama import Llama
from fp8migrate.worker.tasks.layer_check import Seen, given_to, products

_STEP = "step"
Row = dict[str, object]


def layer_kernels(model: Llama, seen: Seen) -> list[Row]:
    """One row per converted module: GEMMs that should be in low precision, and GEMM kernels that ran in its GEMMs.

    forward_again: a training step runs the forward GEMM, in low precision, once more. seen: inputs and output gradients of
    every layer, as `seen_by_layers` gives them.
    """
    layers = converted_modules(model)
    given = {name: given_to(name, layer, seen) for name, layer in layers.items()}
    with leaving_no_trace(model):
        for name, layer in layers.items():  # what is compiled or tuned at the first call is no part of it
            products(layer, *given[name], fp8=True)
        with KernelWatch() as watch:
            for name, layer in layers.items():
                with watch.range(name):
                    products(layer, *given[name], fp8=True)
    found = watch.kernels()
    again = set(model.layers.modules()) if model.recompute else set()
    return [
        {
            "layer": name,
            "asked": layer.matrices * len(layer.low_precision_gemms),
            "forward_again": layer in again and "forward" in layer.low_precision_gemms,
            **_gemm_counts(found[name]),
        }
        for name, layer in layers.items()
    ]


def _gemm_counts(kernels: tuple[Kernel, ...]) -> Row:
    calls: Counter[str] = Counter()
    for kernel in kernels:
        calls[kernel_kind(kernel.name)] += kernel.calls
    names = [kernel.name for kernel in kernels if "gemm" in kernel_kind(kernel.name)]
    return {
        "low_precision_gemms": calls["fp8_gemm"] + calls["fp4_gemm"],
        "other_gemms": calls["gemm"],
        "unknown_gemms": calls["unknown_gemm"],
        "names": names,
    }


def step_kernels(step: Callable[[], object]) -> list[Row]:
    """Kernels of one training step, longest first: name, kind, calls, microseconds on the GPU."""
    with KernelWatch() as watch, watch.range(_STEP):
        step()
    return [
        {"name": kernel.name, "kind": kernel_kind(kernel.name), "calls": kernel.calls, "microseconds": kernel.microseconds}
        for kernel in watch.kernels()[_STEP]
    ]


def has_kernels_to_see(device: torch.device, precision: Precision) -> bool:
    """Emulated FP8 runs BF16 kernels, and a CPU none."""
    return device.type == "cuda" and precision.backend != "emulated"
