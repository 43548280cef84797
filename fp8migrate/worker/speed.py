"""How long one training step takes here: for estimates before a run, never for a verdict."""

import time
from statistics import median

import numpy as np
import torch

from fp8migrate.errors import UsageError
from fp8migrate.jobs import Job, Train
from fp8migrate.worker.runtime import choose_device, make_deterministic
from fp8migrate.worker.tasks.train import build, update

_WARM_UP_STEPS, _MAX_STEPS, _MAX_SECONDS = 2, 20, 3.0


def seconds_per_step(job: Job) -> float:
    """Median over a few steps on random tokens. Raises UsageError where the model does not fit."""
    task = job.task
    assert isinstance(task, Train)
    make_deterministic(job.threads)
    device = choose_device(job.device)
    training = task.training
    tokens = np.random.default_rng(0).integers(
        0, 256, (training.global_batch_size, training.sequence_length + 1), dtype=np.uint8
    )
    seconds: list[float] = []
    try:
        state = build(task.model, training, task.precision, device)
        began = time.perf_counter()
        while len(seconds) < _MAX_STEPS and (len(seconds) < 1 or time.perf_counter() - began < _MAX_SECONDS):
            started = time.perf_counter()
            update(state, training, tokens, 0.0)
            if state.step > _WARM_UP_STEPS:
                seconds.append(time.perf_counter() - started)
    except torch.OutOfMemoryError as error:
        raise UsageError(
            f"the model does not fit on {device}: {error}",
            next_step="Make the model or the batch smaller, or say training.recompute: true.",
        ) from error
    return median(seconds)
