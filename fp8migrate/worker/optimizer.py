"""AdamW over FP32 master weights, and the learning rate as a function of the step."""

import math

import torch
from torch import nn
from torch.autograd.graph import increment_version

from fp8migrate.jobs import Cooldown
from fp8migrate.plan.schema import Training


def learning_rate(training: Training, step: int, cooldown: Cooldown | None = None) -> float:
    """The rate of the update number `step` (from 0): linear warm-up, cosine to the least rate at num_steps.

    Under a cool-down it falls linearly from what it was at its start to zero after its last step.
    """
    if cooldown is not None:
        return learning_rate(training, cooldown.start) * (1 - (step - cooldown.start) / cooldown.num_steps)
    peak, least = training.learning_rate, training.learning_rate * training.min_learning_rate_ratio
    if step < training.warmup_steps:
        return peak * (step + 1) / training.warmup_steps
    progress = (step - training.warmup_steps) / max(1, training.num_steps - training.warmup_steps)
    return least + (peak - least) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def build_optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """Matrices decay; norms and the embedding do not (as in GPT-2 and Llama trainers)."""
    decayed = [p for name, p in model.named_parameters() if p.ndim >= 2 and not name.startswith("embedding.")]
    kept = [p for name, p in model.named_parameters() if p.ndim < 2 or name.startswith("embedding.")]
    groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    betas = (training.beta1, training.beta2)
    optimizer = torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.epsilon, fused=True)
    # The fused kernel changes weights without telling autograd; layers that keep a low-precision copy look at the version.
    parameters = list(model.parameters())
    optimizer.register_step_post_hook(lambda *_: increment_version(parameters))
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
