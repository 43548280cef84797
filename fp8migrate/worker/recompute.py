"""Activation recompute: a layer keeps its input alone, and its forward pass runs once more during the backward pass.

The second pass has to give the first one's bits. What counts or records passes leaves it out by `recomputing`.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch.utils.checkpoint
from torch import Tensor, nn

_NOTHING: AbstractContextManager[object] = nullcontext()


class Checkpoint(Protocol):
    """Runs a layer without keeping its activations."""

    def __call__(self, layer: nn.Module, *inputs: Tensor) -> Tensor: ...


class _Thread(threading.local):
    """By thread: on a GPU the backward pass has one of its own."""

    again = False


_thread = _Thread()


def recomputing() -> bool:
    """Whether the forward pass under way is one's second."""
    return _thread.again


class _SecondPass(AbstractContextManager[None]):
    """May be entered once for each backward pass over a graph that is kept."""

    def __init__(self, inside: AbstractContextManager[object]) -> None:
        self._inside = inside

    def __enter__(self) -> None:
        self._inside.__enter__()
        _thread.again = True

    def __exit__(self, *error: Any) -> None:
        _thread.again = False
        self._inside.__exit__(*error)


def checkpoint(
    layer: Callable[..., Tensor],
    *inputs: Tensor,
    run: Callable[..., Any] = torch.utils.checkpoint.checkpoint,
    inside: AbstractContextManager[object] = _NOTHING,
) -> Tensor:
    """run: torch's checkpoint, or a library's that takes the same arguments. inside: what else the second pass runs in."""
    found: Tensor = run(layer, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), _SecondPass(inside)))
    return found
