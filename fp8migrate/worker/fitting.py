"""After a run was out of memory: which micro-batch would fit, found by trying one step with each."""

import gc
from collections.abc import Callable

import numpy as np
import torch

from fp8migrate.jobs import Train
from fp8migrate.plan.schema import Training
from fp8migrate.worker.tasks.train import build, update


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
    """Whether one step goes through with two micro-batches, as many as it takes for gradients to lie beside activations."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    size = training.micro_batch_size
    training = training.model_copy(update={"global_batch_size": 2 * size})
    tokens = np.random.default_rng(0).integers(0, 256, (2 * size, training.sequence_length + 1), dtype=np.uint8)
    try:
        update(build(task.model, training, task.precision, device), training, tokens, 0.0)
    except torch.OutOfMemoryError:
        return False
    return True
