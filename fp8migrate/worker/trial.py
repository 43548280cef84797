"""`python -m fp8migrate.worker.trial transformer_engine|torchao DEVICE`: load a library in a process of its own.

DEVICE: where something small is run once it has loaded; none: nowhere.

Loading may raise, crash the interpreter or hang, so every step is told as soon as it is known, one line each: STEP, a space,
JSON. Who started this reads as far as it came: see libraries.py.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

STEP = "@fp8migrate"
# Small, and of a shape that every backend of Transformer Engine's attention takes: (batch, sequence, heads, channels).
_SHAPE = (2, 128, 4, 64)
_IS_AVAILABLE = {
    "delayed": "is_fp8_available",
    "current": "is_fp8_available",
    "block": "is_fp8_block_scaling_available",
    "mxfp8": "is_mxfp8_available",
    "nvfp4": "is_nvfp4_available",
}


def main(arguments: list[str]) -> int:
    library, device = arguments
    if importlib.util.find_spec(library) is None:
        tell(missing=True)
        return 0
    tell(version=_version(library))
    {"transformer_engine": _transformer_engine, "torchao": _torchao}[library](device)
    return 0


def tell(**step: Any) -> None:
    """One step's result, out of this process at once: the next step may end it."""
    print(STEP, json.dumps(step), flush=True)


def _transformer_engine(device: str) -> None:
    te = _loaded("transformer_engine.pytorch")
    if te is None:
        return
    tell(loaded=True)
    _try("cudnn", _cudnn_version)
    if device == "none":
        return
    _try("refused", lambda: _refused(te))
    _try("attention", lambda: _attention(te, device))


def _torchao(device: str) -> None:
    if _loaded("torchao.float8") is not None:
        tell(loaded=True)


def _loaded(name: str) -> Any:
    import torch  # noqa: F401 - first, as every program does: which cuDNN is in the process then depends on it

    try:
        return importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what a user would meet
        tell(error=f"{type(error).__name__}: {error}")
        return None


def _try(step: str, look: Callable[[], Any]) -> None:
    """Tell what a look finds, or why it finds nothing."""
    try:
        tell(**{step: look()})
    except Exception as error:  # noqa: BLE001 - a look that fails is a line, never the end of the others
        tell(**{f"{step}_error": f"{type(error).__name__}: {error}"})


def _cudnn_version() -> int:
    """As cuDNN encodes it. Transformer Engine's extension is a module of its own."""
    return int(importlib.import_module("transformer_engine_torch").get_cudnn_version())


def _refused(te: Any) -> dict[str, str]:
    """Recipes that Transformer Engine says it cannot run here, with its reason."""
    answers = {recipe: getattr(te, name)(return_reason=True) for recipe, name in _IS_AVAILABLE.items() if hasattr(te, name)}
    return {recipe: str(answer[1]) for recipe, answer in answers.items() if not answer[0]}


def _attention(te: Any, device: str) -> dict[str, str]:
    """Run one forward and backward, then read which backend was taken where Transformer Engine keeps it."""
    import torch

    query, key, value = (torch.randn(_SHAPE, dtype=torch.bfloat16, device=device, requires_grad=True) for _ in range(3))
    attention = te.DotProductAttention(_SHAPE[2], _SHAPE[3], qkv_format="bshd", attn_mask_type="causal")
    attention(query, key, value).float().square().mean().backward()
    if device == "cuda":
        torch.cuda.synchronize()
    from transformer_engine.pytorch.attention.dot_product_attention import _attention_backends as taken

    for name in ("flash", "fused", "unfused"):
        if taken[f"use_{name}_attention"]:
            version = taken.get(f"{name}_attention_backend")
            return {"backend": name, "detail": "" if version is None else str(version)}
    raise LookupError("Transformer Engine does not say which backend it took")


def _version(library: str) -> str | None:
    try:
        return metadata.version(library.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    from fp8migrate.records.parent import exit_with_parent

    exit_with_parent()
    sys.exit(main(sys.argv[1:]))
