"""After a run was out of memory: which micro-batch would fit, found by trying one step with each."""

import gc

import numpy as np
import torch

from fp8migrate.jobs import Train
from fp8migrate.worker.tasks.train import build, update


def what_would_fit(task: Train, device: torch.device) -> str:
    """One sentence: the largest half, quarter, … of the micro-batch that takes a step here, or that none does."""
    size = task.training.micro_batch_size
    while (size := size // 2) >= 1:
        if task.training.global_batch_size % size == 0 and _fits(task, size, device):
            return f"micro_batch_size: {size} fits, with the same global batch"
    states = "its weights, gradients and AdamW states alone are too much"
    return f"not even micro_batch_size: 1 fits: {states}, or one sequence is; take a smaller model or shorter sequences"


def _fits(task: Train, size: int, device: torch.device) -> bool:
    """Whether one step goes through with two micro-batches, as many as it takes for gradients to lie beside activations."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    training = task.training.model_copy(update={"micro_batch_size": size, "global_batch_size": 2 * size})
    tokens = np.random.default_rng(0).integers(0, 256, (2 * size, training.sequence_length + 1), dtype=np.uint8)
    try:
        update(build(task.model, training, task.precision, device), training, tokens, 0.0)
    except torch.OutOfMemoryError:
        return False
    return True
