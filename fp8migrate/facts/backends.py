"""What each backend needs to run each recipe: compute capability and CUDA version, as data, and the refusal in words.

Emulation runs every recipe everywhere. That a library is installed and loads is another question: see `doctor`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fp8migrate.facts.gpus import find_architecture

BackendName = Literal["emulated", "transformer_engine", "torchao"]
Version = tuple[int, int]


@dataclass(frozen=True)
class Support:
    """One recipe on one backend.

    recipe: a `kind` of facts.recipes. It runs from compute capability `least` up to but not `below` (None: no end known), with
    `least_cuda` or newer (the CUDA that torch was built with; None: any). least (0, 0): no GPU needed.
    limited: from this capability on it runs only as `limit` says.
    """

    backend: BackendName
    recipe: str
    least: Version
    below: Version | None
    least_cuda: Version | None
    source: str
    note: str = ""
    limited: Version | None = None
    limit: str = ""


_TE = "Transformer Engine 2.20.2, transformer_engine/pytorch/quantization.py"
_TORCH = "torch 2.11, aten/src/ATen/native/cuda/ScaledBlas.cpp, _scaled_mm_allowed_device"
_ROWWISE = f"{_TORCH}; RowwiseScaledMM.cu: kernels for 8.9, 9.x, 10.x, 11.x and 12.x"
_EVERY = ("delayed", "current", "block", "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "nvfp4", "fixed")

SUPPORT: tuple[Support, ...] = (
    *(Support("emulated", kind, (0, 0), None, None, "fp8migrate's own emulation") for kind in _EVERY),
    Support("transformer_engine", "delayed", (8, 9), None, (12, 1), f"{_TE}, _compute_fp8_support"),
    Support("transformer_engine", "current", (8, 9), None, (12, 1), f"{_TE}, _compute_fp8_support"),
    Support(
        "transformer_engine",
        "block",
        (9, 0),
        None,
        (12, 9),
        f"{_TE}, _compute_fp8_block_scaling_support; NVIDIA/TransformerEngine pull request 2157 and issue 2668 (10.0, 12.0)",
        note="from 10.0 on it runs on the GEMMs of mxfp8, with scales that are powers of two",
    ),
    Support(
        "transformer_engine",
        "mxfp8",
        (10, 0),
        (12, 0),
        (12, 8),
        f"{_TE}, _compute_mxfp8_support; its README: CUDA 12.8 for Blackwell",
        note="not all layouts of its GEMMs exist on 12.0",
    ),
    Support(
        "transformer_engine",
        "nvfp4",
        (10, 0),
        None,
        (12, 8),
        f"{_TE}, _compute_nvfp4_support; NVIDIA/TransformerEngine issue 2255 and pull request 3195 (12.0)",
        note="12.x has no instruction for stochastic rounding to E2M1, nor the kernel of the Hadamard transform",
        limited=(12, 0),
        limit="only with disable_rht: true and disable_stochastic_rounding: true",
    ),
    Support("torchao", "tensorwise", (8, 9), None, None, _TORCH),
    Support("torchao", "rowwise", (8, 9), None, None, _ROWWISE),
    Support("torchao", "rowwise_with_gw_hp", (8, 9), None, None, _ROWWISE),
    # Not here: mxfp8. torchao 0.18 trains with it in a prototype alone (prototype/moe_training/mxfp8_linear.py; its conversion
    # asks for a torch newer than any release), and the backend `torchao` of ours does not take it.
)


def find_support(backend: BackendName, recipe_kind: str) -> Support | None:
    """What a backend needs for a recipe; None: it has no such recipe."""
    return next((each for each in SUPPORT if (each.backend, each.recipe) == (backend, recipe_kind)), None)


def recipes_of(backend: BackendName) -> tuple[str, ...]:
    """The kinds of recipe that a backend has, on whatever hardware."""
    return tuple(each.recipe for each in SUPPORT if each.backend == backend)


def version_of(dotted: str | None) -> Version | None:
    """ "12.9" as (12, 9)."""
    if dotted is None:
        return None
    major, _, minor = dotted.partition(".")
    return int(major), int(minor.partition(".")[0] or 0)


def refusal(backend: BackendName, recipe_kind: str, capability: Version | None, cuda: Version | None = None) -> str | None:
    """Why a recipe cannot run on a backend here and what to do instead, in one sentence; None: it can.

    capability: the GPU's; None: there is no NVIDIA GPU. cuda: that torch was built with; None: not looked at. bf16 is FP8
    switched off, which every backend can.
    """
    if recipe_kind == "bf16":
        return None
    support = find_support(backend, recipe_kind)
    if support is None:
        return f"{backend} has no recipe {recipe_kind}: it has {_listed(recipes_of(backend))}{_otherwise(recipe_kind)}"
    missing = shortfall(support, capability, cuda)
    return None if missing is None else f"{recipe_kind} on {backend} {missing}: {instead(backend, capability, cuda)}"


def instead(backend: BackendName, capability: Version | None, cuda: Version | None = None) -> str:
    """What to do where a recipe cannot run: the backend's recipes that can, and emulation."""
    runs = [each.recipe for each in SUPPORT if each.backend == backend and shortfall(each, capability, cuda) is None]
    emulate = "say candidate.backend: emulated"
    return f"use {_listed(runs)} here, or {emulate}" if runs else emulate


def limit(backend: BackendName, recipe_kind: str, capability: Version | None) -> str | None:
    """Under which settings alone a recipe that is not refused runs on this GPU; None: under all."""
    support = find_support(backend, recipe_kind)
    if support is None or support.limited is None or capability is None or capability < support.limited:
        return None
    return support.limit


def shortfall(support: Support, capability: Version | None, cuda: Version | None = None) -> str | None:
    """What this machine lacks for a recipe, without its subject ("needs …, this GPU has …"); None: nothing."""
    if support.least == (0, 0):
        return None
    if capability is None:
        return f"needs a GPU of compute capability {_gpu(support.least)} or newer, and there is none here"
    if capability < support.least:
        return f"needs compute capability {_gpu(support.least)} or newer, this GPU has {_gpu(capability)}"
    if support.below is not None and capability >= support.below:
        return f"does not run yet from compute capability {_gpu(support.below)} on, this GPU has {_gpu(capability)}"
    if support.least_cuda is not None and cuda is not None and cuda < support.least_cuda:
        return f"needs a torch built with CUDA {_dotted(support.least_cuda)} or newer, this one has {_dotted(cuda)}"
    return None


def _otherwise(kind: str) -> str:
    others = [each.backend for each in SUPPORT if each.recipe == kind]
    return f"; {kind} is for candidate.backend: {_listed(others, 'or')}" if others else ""


def _gpu(capability: Version) -> str:
    architecture = find_architecture(capability)
    return f"{_dotted(capability)} ({architecture.name})" if architecture else _dotted(capability)


def _dotted(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _listed(words: Sequence[str], last: str = "and") -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)
