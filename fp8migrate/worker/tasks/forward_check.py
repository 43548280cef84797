"""Inference first: the same weights and held-out tokens under a BF16 and an FP8 forward."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp8migrate.jobs import ForwardCheck
from fp8migrate.worker import checkpoint
from fp8migrate.worker.backends.converted import Converted, forward_mode
from fp8migrate.worker.data.sampling import training_stream, validation_set
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.llama import Llama
from fp8migrate.worker.tasks.agreement import agreement
from fp8migrate.worker.tasks.context import TaskContext
from fp8migrate.worker.tasks.train import build, describe, warm_scales

# Passes that fill amax histories before anything is measured: a load without scales shows nonsense.
WARM_PASSES = 4
_TOKENS = 8192


def run(context: TaskContext) -> None:
    """Tables `logits` (one row) and `outputs` (one row per linear layer)."""
    task = context.job.task
    assert isinstance(task, ForwardCheck)
    training = task.training
    state = build(task.model, training, task.precision, context.device)
    if context.start is not None:
        checkpoint.restore(state.model, state.optimizer, checkpoint.load(context.start), same_run=False)
    stream = training_stream(context.corpus, task.data_order, training.sequence_length, training.global_batch_size)
    warm_scales(state, training, stream, 0, WARM_PASSES)
    held_out = validation_set(context.corpus, training.sequence_length, min(_TOKENS, task.data.validation_tokens))
    tokens = torch.from_numpy(held_out.windows).to(torch.int64).to(context.device)
    bf16_logits, bf16_outputs = observe(state.model, tokens, fp8=False)
    fp8_logits, fp8_outputs = observe(state.model, tokens, fp8=True)
    describe(state, context.writer)
    context.writer.table("outputs", [agreement(name, bf16_outputs[name], fp8_outputs[name]) for name in bf16_outputs])
    context.writer.table("logits", [compare_logits(bf16_logits, fp8_logits, tokens[:, 1:])])


@torch.no_grad()
def observe(model: Llama, tokens: Tensor, fp8: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits [b, t, vocab] and the output of every linear layer or converted module that runs, by name."""
    outputs: dict[str, Tensor] = {}

    def watch(name: str) -> object:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            outputs[name] = output.detach().clone()

        return hook

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, Linear | Converted)]
    handles = [module.register_forward_hook(watch(name)) for name, module in layers]  # type: ignore[arg-type]
    try:
        with forward_mode(model, fp8=fp8):
            logits = model(tokens[:, :-1]).float()
    finally:
        for handle in handles:
            handle.remove()
    return logits, outputs


def compare_logits(bf16: Tensor, fp8: Tensor, targets: Tensor) -> dict[str, object]:
    """Mean KL(BF16 || FP8) in nats, top-1 agreement and both losses over next-token distributions [b, t, vocab]."""
    log_p, log_q = F.log_softmax(bf16.double(), -1), F.log_softmax(fp8.double(), -1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    return {
        "kl_nats": float(kl),
        "top1_agreement": float((bf16.argmax(-1) == fp8.argmax(-1)).double().mean()),
        "loss_bf16": float(-log_p.gather(-1, targets[..., None]).mean()),
        "loss_fp8": float(-log_q.gather(-1, targets[..., None]).mean()),
        "tokens": targets.numel(),
    }
