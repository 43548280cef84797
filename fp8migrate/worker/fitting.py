"""After a run was out of memory: which micro-batch would fit, found by trying one step with each."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fp8migrate.jobs import Train
from fp8migrate.plan.schema import Training
from fp8migrate.worker.models.llama import Llama, token_losses
from fp8migrate.worker.runtime import release_memory
from fp8migrate.worker.tasks.train import build, evaluation_windows, update
from fp8migrate.worker.tensor_watch import TensorWatch
from fp8migrate.worker.transfer import to_device

# Of the free memory; twice what lay in pieces (see `_fits`).
_SPARE = 1 / 16


def what_would_fit(task: Train, device: torch.device) -> str:
    """One sentence: the largest part of the micro-batch that takes a step here, also with recompute, or that none does."""
    training = task.training
    plain = _largest(training, training.micro_batch_size // 2, lambda each: _fits(task, each, device))
    again = None
    if not training.recompute:
        trained = training.model_copy(update={"recompute": True})
        again = _largest(trained, training.micro_batch_size, lambda each: _fits(task, each, device), above=plain or 0)
    ways = []
    if plain:
        ways.append(f"micro_batch_size: {plain} fits, with the same global batch")
    if again:
        ways.append(f"recompute: true fits with micro_batch_size: {again}, for up to a third more GEMM work")
    if ways:
        return "; ".join(ways)
    states = "its weights, gradients and AdamW states alone are too much"
    return f"not even micro_batch_size: 1 fits: {states}, or one sequence is; take a smaller model or shorter sequences"


def _largest(training: Training, size: int, fits: Callable[[Training], bool], above: int = 0) -> int | None:
    """Of `size`, its half, its quarter, … the largest that fits, as a micro-batch of the same global batch."""
    while size > above:
        if training.global_batch_size % size == 0 and fits(training.model_copy(update={"micro_batch_size": size})):
            return size
        size //= 2
    return None


def _fits(task: Train, training: Training, device: torch.device) -> bool:
    """Whether what a run does goes through, in a run's order: a validation batch, then a step of two micro-batches, for
    gradients to lie beside activations, with the advisor's look at it where the run has one, and a validation batch again.

    With memory to spare: on an H200 a step that had just fitted did not fit into a run of its own, where 3 % of the memory lay
    in pieces too small to use.
    """
    release_memory(device)
    size, sequence = training.micro_batch_size, training.sequence_length
    training = training.model_copy(update={"global_batch_size": 2 * size})
    tokens, windows = (
        np.random.default_rng(0).integers(0, 256, (rows, sequence + 1), dtype=np.uint8)
        for rows in (2 * size, evaluation_windows(sequence))
    )
    spare = _spare(device)
    try:
        state = build(task.model, training, task.precision, device)
        watch = TensorWatch(state.model, task, _NoTables())
        _validate(state.model, windows, device)
        with watch.update_to(min(task.tensor_stats.steps) if task.tensor_stats else 1):
            update(state, training, tokens, 0.0)
        _validate(state.model, windows, device)
    except torch.OutOfMemoryError:
        return False
    finally:
        del spare
    return True


def _spare(device: torch.device) -> Tensor | None:
    """Memory that a trial does without: this share of what is free."""
    if device.type != "cuda":
        return None
    free, _ = torch.cuda.mem_get_info(device)
    return torch.empty(int(free * _SPARE), dtype=torch.uint8, device=device)


@torch.no_grad()
def _validate(model: Llama, windows: NDArray[np.uint8], device: torch.device) -> None:
    token_losses(model, to_device(windows, device))


class _NoTables:
    """A watch's numbers are not wanted, what it takes to find them is."""

    def table(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        list(rows)

    def read_table(self, name: str) -> list[dict[str, Any]]:
        return []

    def update(self, **changes: Any) -> None:
        pass

    def fact(self, name: str, default: float) -> float:
        return default
