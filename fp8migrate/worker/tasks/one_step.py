"""One training step, looked at closely: gradients against BF16, save-load-step, N micro-batches against one batch."""

import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fp8migrate.jobs import OneStep, Precision
from fp8migrate.worker import checkpoint
from fp8migrate.worker.data.sampling import training_stream
from fp8migrate.worker.optimizer import learning_rate
from fp8migrate.worker.tasks.agreement import agreement
from fp8migrate.worker.tasks.context import TaskContext
from fp8migrate.worker.tasks.forward_check import WARM_PASSES
from fp8migrate.worker.tasks.kernel_check import has_kernels_to_see, layer_kernels, step_kernels
from fp8migrate.worker.tasks.layer_check import compare_layers, seen_by_layers
from fp8migrate.worker.tasks.train import TrainingState, build, describe, forward_backward, update, warm_scales

Gradients = dict[str, Tensor]


def run(context: TaskContext) -> None:
    """Tables `gradients` (one row per parameter), `layers` (one per layer and GEMM) and `equalities` (resume, accumulation).

    Where a GPU runs FP8 itself also `layer_kernels` (one row per converted layer) and `step_kernels` (one per kernel of a
    training step).
    """
    task = context.job.task
    assert isinstance(task, OneStep)
    training = task.training
    stream = training_stream(context.corpus, task.data_order, training.sequence_length, training.global_batch_size)

    def fresh(precision: Precision) -> TrainingState:
        state = build(task.model, training, precision, context.device)
        if context.start is not None:
            checkpoint.restore(state.model, state.optimizer, checkpoint.load(context.start), same_run=False)
        warm_scales(state, training, stream, 0, WARM_PASSES)
        return state

    batch = stream.batch(WARM_PASSES)
    bf16, fp8 = fresh(Precision()), fresh(task.precision)
    size = training.micro_batch_size
    reference, measured = gradients(bf16, batch, size), gradients(fp8, batch, size)
    describe(fp8, context.writer)
    context.writer.table("gradients", [agreement(name, reference[name], measured[name]) for name in reference])
    tokens = torch.from_numpy(batch[:size].astype(np.int64)).to(context.device)
    seen = seen_by_layers(bf16.model, tokens)
    context.writer.table("layers", list(compare_layers(fp8.model, seen)))
    if has_kernels_to_see(context.device, task.precision):
        context.writer.table("layer_kernels", layer_kernels(fp8.model, seen))
    batches = [stream.batch(WARM_PASSES + 1 + i) for i in range(2)]
    rows: list[dict[str, object]] = [
        {"name": "resume", "mismatches": resume_mismatches(lambda: fresh(task.precision), task, batches)},
        {
            "name": "accumulation",
            "fp8_error": accumulation_error(fresh(task.precision), batch),
            "bf16_error": accumulation_error(fresh(Precision()), batch),
        },
    ]
    context.writer.table("equalities", rows)
    if has_kernels_to_see(context.device, task.precision):
        update(fp8, training, batch, 0.0)  # what is compiled or tuned in the first step is no part of a step
        context.writer.table("step_kernels", step_kernels(lambda: update(fp8, training, batch, 0.0)))


def gradients(state: TrainingState, batch: NDArray[np.uint8], micro_batch_size: int) -> Gradients:
    """Gradients of one batch by parameter, without an update."""
    state.optimizer.zero_grad(set_to_none=True)
    forward_backward(state.model, batch, micro_batch_size)
    found = {name: p.grad.detach().clone() for name, p in state.model.named_parameters() if p.grad is not None}
    state.optimizer.zero_grad(set_to_none=True)
    return found


def resume_mismatches(fresh: Callable[[], TrainingState], task: OneStep, batches: list[NDArray[np.uint8]]) -> list[str]:
    """Step, save, load into a new model, step: names of the tensors that differ in any bit from having gone straight on."""
    rates = [learning_rate(task.training, task.training.warmup_steps + i) for i in range(2)]
    straight = fresh()
    update(straight, task.training, batches[0], rates[0])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "step.safetensors"
        checkpoint.save(path, checkpoint.training_state(straight.model, straight.optimizer), 1, "", 0)
        resumed = fresh()
        checkpoint.restore(resumed.model, resumed.optimizer, checkpoint.load(path), same_run=True)
    for state in (straight, resumed):
        update(state, task.training, batches[1], rates[1])
    expected = checkpoint.training_state(straight.model, straight.optimizer)
    found = checkpoint.training_state(resumed.model, resumed.optimizer)
    return sorted(name for name in expected.keys() | found.keys() if not _same_bits(expected.get(name), found.get(name)))


def accumulation_error(state: TrainingState, batch: NDArray[np.uint8]) -> float:
    """|g(one batch) - g(one sequence at a time)| / |g(one batch)| over the whole gradient; of an all-zero one 0 or Inf."""
    whole = gradients(state, batch, batch.shape[0])
    parts = gradients(state, batch, 1)
    difference = sum(float((whole[name] - parts[name]).double().square().sum()) for name in whole)
    size = sum(float(gradient.double().square().sum()) for gradient in whole.values())
    if size == 0:
        return 0.0 if difference == 0 else math.inf
    return math.sqrt(difference / size)


def _same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Also of NaN: a state that is not finite is another finding."""
    return a is not None and b is not None and a.dtype == b.dtype and a.shape == b.shape and _bytes(a) == _bytes(b)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()
