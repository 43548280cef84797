"""Training: one task for all arms. What differs between arms is the job's `precision`, and nothing in this file asks for it."""

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from fp8migrate.jobs import Precision, Train
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.records.schema import Conversion
from fp8migrate.records.writer import RunWriter, checkpoint_path, last_checkpoint
from fp8migrate.worker import checkpoint
from fp8migrate.worker.backends import convert
from fp8migrate.worker.backends.converted import (
    Converted,
    begin_microbatch,
    forward_mode,
    layers_without_fp8,
    tensors_quantized,
)
from fp8migrate.worker.data.sampling import TrainingStream, ValidationSet, training_stream, validation_set
from fp8migrate.worker.models.llama import Llama, token_losses
from fp8migrate.worker.optimizer import build_optimizer, learning_rate, set_learning_rate
from fp8migrate.worker.quantizers import Quantizer, end_pass
from fp8migrate.worker.tasks.context import Interrupted, NonFinite, TaskContext
from fp8migrate.worker.tensor_watch import TensorWatch
from fp8migrate.worker.transfer import to_device
from fp8migrate.worker.update_log import UpdateLog

# Steps that are left out of the speed: allocation, caches, compilation.
_WARM_UP_STEPS = 10
# Evaluation batches hold about this many tokens, whatever the training batch is.
_EVALUATION_TOKENS = 8192


@dataclass
class TrainingState:
    """A run under way."""

    model: Llama
    optimizer: torch.optim.AdamW
    conversion: Conversion
    step: int = 0
    data_sha256: str = ""
    quantized_before: int = 0
    in_each_pass: nn.Module | None = None
    without_fp8_before: tuple[str, ...] = ()

    @property
    def quantized_tensors(self) -> int:
        """Over all attempts of this run."""
        return self.quantized_before + tensors_quantized(self.model)


def run(context: TaskContext) -> None:
    """Carry out a `Train` task. Raises NonFinite or Interrupted; whatever it logged stays."""
    task = context.job.task
    assert isinstance(task, Train)
    training = task.training
    stream = training_stream(context.corpus, task.data_order, training.sequence_length, training.global_batch_size)
    held_out = validation_set(context.corpus, training.sequence_length, task.data.validation_tokens)
    state = prepare(context, task, stream, held_out)
    watch = TensorWatch(state.model, task, context.writer)
    log = UpdateLog(context.writer, watch, context.device)
    while state.step < task.last_step:
        if context.stop.requested:
            log.flush()
            keep(context, task, state)
            raise Interrupted(state.step)
        log_update(task, state, stream, log)
        validated = state.step in task.validate_at
        kept = state.step in task.checkpoint_at or state.step % task.resume_every == 0
        if validated or kept:
            log.flush()  # a state that is not finite is neither
        if validated:
            validate(context, task, state, held_out)
        if kept:
            keep(context, task, state)
    log.flush()
    finish(context, task, state, stream, log.seconds)


def prepare(context: TaskContext, task: Train, stream: TrainingStream, held_out: ValidationSet) -> TrainingState:
    """Build model and optimizer; go on from the run's own newest checkpoint, else from the job's start."""
    state = build(task.model, task.training, task.precision, context.device)
    earlier, own = context.writer.run.conversion, last_checkpoint(context.directory)
    if own is not None and earlier is not None:
        state.without_fp8_before = earlier.not_in_fp8
    describe(state, context.writer)
    if own is not None:
        found = checkpoint.load(own[1])
        checkpoint.restore(state.model, state.optimizer, found, same_run=True)
        state.step, state.data_sha256, state.quantized_before = found.step, found.data_sha256, found.quantized_tensors
        context.writer.resume_after(state.step)
        return state
    # Not from a checkpoint: whatever an earlier attempt logged is done again.
    context.writer.resume_after(task.first_step - 1)
    state.step = task.first_step
    if context.start is not None:
        checkpoint.restore(state.model, state.optimizer, checkpoint.load(context.start), same_run=False)
    if task.one_ulp is not None:
        move_one_ulp(state.model, task.one_ulp)
    context.writer.update(facts={"initial_weights_sha256": weights_sha256(state.model)})
    warm_scales(state, task.training, stream, task.first_step, task.warm_amax_batches)
    if task.first_step in task.validate_at:
        validate(context, task, state, held_out)
    return state


def build(model_settings: LlamaModel, training: Training, precision: Precision, device: torch.device) -> TrainingState:
    """A model in its precision with its optimizer, at step 0."""
    model = Llama(model_settings, training.sequence_length, training.seed, recompute=training.recompute).to(device)
    conversion = convert(model, precision, training.micro_batch_size * training.sequence_length)
    return TrainingState(model, build_optimizer(model, training), conversion, in_each_pass=told_of_passes(model))


def describe(state: TrainingState, writer: RunWriter) -> None:
    """Record what was converted, with the tensors quantised up to now, and the layers in which FP8 did not run."""
    missing = tuple(dict.fromkeys((*state.without_fp8_before, *layers_without_fp8(state.model))))
    counted = state.conversion.model_copy(update={"quantized_tensors": state.quantized_tensors, "not_in_fp8": missing})
    writer.update(conversion=counted, facts={"parameters": sum(p.numel() for p in state.model.parameters())})


def warm_scales(state: TrainingState, training: Training, stream: TrainingStream, first_step: int, batches: int) -> None:
    """Fill amax histories by passes without an update: delayed scaling that starts cold shows its start, not itself."""
    for batch in range(batches):
        forward_backward(state.model, stream.batch(first_step + batch), training.micro_batch_size)
        state.optimizer.zero_grad(set_to_none=True)
        # As after an update, weights are quantised anew: the copy made at the cold scale must not reach the first step.
        increment_version(list(state.model.parameters()))


def forward_backward(
    model: Llama, tokens: NDArray[np.uint8], micro_batch_size: int, in_each_pass: nn.Module | None = None
) -> Tensor:
    """Gradients of the mean loss of a global batch [b, t + 1], accumulated over micro-batches. Returns that loss, FP32.

    in_each_pass: `told_of_passes` of the model, which a caller of many steps keeps.
    """
    told = told_of_passes(model) if in_each_pass is None else in_each_pass
    device = next(model.parameters()).device
    parts = tokens.shape[0] // micro_batch_size
    total = torch.zeros((), device=device)
    for number, part in enumerate(np.split(tokens, parts)):
        begin_microbatch(told, number, parts)
        loss = token_losses(model, to_device(part, device)).mean() / parts
        loss.backward()
        end_pass(told)
        total += loss.detach()
    return total


def told_of_passes(model: nn.Module) -> nn.Module:
    """The modules that are told of each pass. To look for them among all took 0.6 ms a pass, at 8 layers."""
    return nn.ModuleList(module for module in model.modules() if isinstance(module, Converted | Quantizer))


def update(state: TrainingState, training: Training, batch: NDArray[np.uint8], rate: float) -> tuple[float, float]:
    """One optimizer step on a global batch. Waits for it; returns its loss and the gradient norm before clipping.

    Neither is checked here: an update from a non-finite gradient is for the caller to refuse.
    """
    loss, norm = start_update(state, training, batch, rate)
    return float(loss), float(norm)


def start_update(state: TrainingState, training: Training, batch: NDArray[np.uint8], rate: float) -> tuple[Tensor, Tensor]:
    """As `update`, without waiting for a GPU: loss and norm are scalars there."""
    loss = forward_backward(state.model, batch, training.micro_batch_size, state.in_each_pass)
    norm = nn.utils.clip_grad_norm_(state.model.parameters(), training.grad_clip_norm)
    set_learning_rate(state.optimizer, rate)
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.data_sha256 = hashlib.sha256(state.data_sha256.encode() + batch.tobytes()).hexdigest()
    state.step += 1
    return loss, norm


def log_update(task: Train, state: TrainingState, stream: TrainingStream, log: UpdateLog) -> None:
    """Start one step and hand it to the log. Raises NonFinite for the step before it, or where the log is flushed."""
    rate = learning_rate(task.training, state.step, task.cooldown)
    with log.update_to(state.step + 1, rate) as done:
        done(*start_update(state, task.training, stream.batch(state.step), rate))


def validate(context: TaskContext, task: Train, state: TrainingState, held_out: ValidationSet) -> None:
    """Measure and record the held-out loss under each forward that the task asks for."""
    for forward in task.validate_forwards:
        with forward_mode(state.model, fp8=forward == "fp8"):
            nll, tokens = document_losses(state.model, held_out)
        mean = float(nll.sum() / tokens.sum())
        context.writer.evaluation(state.step, forward, mean, nll, tokens, held_out.documents_sha256)
        if not math.isfinite(mean):
            raise NonFinite(state.step, f"validation loss under the {forward} forward is {mean}")


def evaluation_windows(sequence_length: int) -> int:
    """Of one evaluation batch."""
    return max(1, _EVALUATION_TOKENS // sequence_length)


@torch.no_grad()
def document_losses(model: Llama, held_out: ValidationSet) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Per held-out document: sum of next-token losses in nats (float64), and its tokens."""
    device = next(model.parameters()).device
    t = held_out.windows.shape[1] - 1
    size = evaluation_windows(t)
    sums = []
    for first in range(0, len(held_out.windows), size):
        tokens = to_device(held_out.windows[first : first + size], device)
        sums.append(token_losses(model, tokens).double().sum(dim=1).cpu().numpy())
    count = len(held_out.documents)
    nll = np.bincount(held_out.document_of_window, weights=np.concatenate(sums), minlength=count)
    tokens_of_document = np.bincount(held_out.document_of_window, minlength=count) * t
    return nll.astype(np.float64), tokens_of_document.astype(np.int64)


def keep(context: TaskContext, task: Train, state: TrainingState) -> None:
    """Write a checkpoint, and drop the resume checkpoint before it. The log is on disk first."""
    context.writer.sync()
    path = checkpoint_path(context.directory, state.step)
    checkpoint.save(
        path, checkpoint.training_state(state.model, state.optimizer), state.step, state.data_sha256, state.quantized_tensors
    )
    drop_checkpoints(context.directory, {*task.checkpoint_at, state.step})
    # What this process saw of FP8 must not be lost where another goes on.
    describe(state, context.writer)


def drop_checkpoints(directory: Path, kept_steps: set[int]) -> None:
    """Remove all but these; what a kill in the middle of writing one left behind goes too."""
    kept = {checkpoint_path(directory, step) for step in kept_steps}
    for path in checkpoint_path(directory, 0).parent.glob("step-*"):
        if path not in kept:
            path.unlink()


def finish(context: TaskContext, task: Train, state: TrainingState, stream: TrainingStream, seconds: list[float]) -> None:
    """Record what is known only at the end. Checkpoints that no other job starts from are dropped."""
    facts: dict[str, object] = {"data_sha256": state.data_sha256, "data_passes": stream.passes(state.step)}
    steady = seconds[_WARM_UP_STEPS:]
    if steady:
        facts["tokens_per_second"] = task.training.tokens_per_step / median(steady)
    if context.device.type == "cuda":
        facts["peak_memory_bytes"] = torch.cuda.max_memory_allocated()
    describe(state, context.writer)
    context.writer.update(facts=facts)
    drop_checkpoints(context.directory, set(task.checkpoint_at))


@torch.no_grad()
def move_one_ulp(model: nn.Module, seed: int) -> None:
    """Move every weight to the next float32 above or below, by a random sign: the least change there is (the floor arm)."""
    generator = torch.Generator().manual_seed(seed)
    for _, parameter in sorted(model.named_parameters()):
        up = torch.rand(parameter.shape, generator=generator) < 0.5
        target = torch.where(up, torch.inf, -torch.inf).to(parameter.device)
        parameter.copy_(torch.nextafter(parameter, target))


def weights_sha256(model: nn.Module) -> str:
    """Of all parameters' bits, by name."""
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode() + b"\0" + parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
