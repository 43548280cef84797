"""What every module of Transformer Engine needs in our models, a te.Linear as well as the fused ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from fp8migrate.errors import UsageError
from fp8migrate.worker.recompute import recomputing

_PASSES = ("scaling_fwd", "scaling_bwd")
_STATE = ("scale", "amax_history")


def import_transformer_engine() -> ModuleType:
    """transformer_engine.pytorch. Raises UsageError, with what to do, where it is missing or does not load."""
    import importlib
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("transformer_engine.pytorch")
    except ModuleNotFoundError as error:
        raise UsageError(
            f"candidate.backend is transformer_engine, and it is not installed here ({error})",
            next_step="pip install --no-build-isolation 'transformer-engine[pytorch]', or say candidate.backend: emulated.",
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageError(
            f"Transformer Engine does not load beside torch {torch.__version__}: {error}",
            next_step="fp8migrate doctor tells why (another torch, two cuDNNs, no CUDA) and what to do.",
        ) from error


class Passes:
    """Passes of one module: in FP8, as Transformer Engine itself says, and those that should have been and were not."""

    def __init__(self) -> None:
        self.in_fp8, self.missed = 0, 0

    def count(self, inner: Any, wanted: bool) -> None:
        """After a pass of `inner`. wanted: it was to be in FP8. A recompute adds none, and can be one that was missed."""
        if inner.fp8:
            self.in_fp8 += not recomputing()
        elif wanted:
            self.missed += 1


def register_scaling_state(module: nn.Module, te: ModuleType, inner: Any, te_recipe: Any, gemms: int) -> None:
    """Make delayed scaling's scales and amax histories buffers of `module`, the same tensors that Transformer Engine uses.

    So they are saved and restored by name, as tensors. te_recipe None: FP8 off, no state. gemms: linear layers inside.
    """
    if te_recipe is None:
        return
    with te.autocast(enabled=True, recipe=te_recipe), torch.no_grad():
        inner.init_fp8_metadata(num_gemms=gemms)
    for tensors in _PASSES:
        for name in _STATE:
            state = getattr(inner.fp8_meta[tensors], name, None)
            if state is not None:
                module.register_buffer(f"{tensors}_{name}", state)


@contextmanager
def keeping_scaling_state(module: nn.Module) -> Iterator[None]:
    """What is seen meanwhile does not enter the module's scaling state."""
    state = list(module.buffers(recurse=False))
    before = [tensor.clone() for tensor in state]
    try:
        yield
    finally:
        if state:
            with torch.no_grad():
                torch._foreach_copy_(state, before)


def forget_scales_for_recompute(te: ModuleType) -> None:
    """Before a pass: drop scales that are kept for the recompute of passes whose backward pass never came.

    They wait in a queue for each module, the oldest first (2.20): the next recompute would take them, and be another pass than
    the one before it without a word.
    """
    for waiting in te.quantization.FP8GlobalStateManager.quantization_state.fp8_tensors_recompute_buffer:
        waiting.clear()


@contextmanager
def own_recipe(te: ModuleType, te_recipe: Any, enabled: bool) -> Iterator[None]:
    """A module's own recipe, where the pass around it does not already run in it."""
    manager = te.quantization.FP8GlobalStateManager
    inside = manager.is_fp8_enabled()
    if inside == enabled and (not enabled or manager.get_fp8_recipe() is te_recipe):
        yield
        return
    with te.autocast(enabled=enabled, recipe=te_recipe):
        yield
    if inside and enabled:
        # Leaving restored "no FP8 layer has run yet": the next one would move the gradients' scales on once more.
        manager.is_first_fp8_module()
