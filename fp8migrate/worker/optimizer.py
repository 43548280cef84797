"""AdamW over FP32 master weights, and the learning rate as a function of the step."""

import inspect
import math
from typing import Any

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


class AdamW(torch.optim.AdamW):
    """torch's AdamW, which tells autograd of its updates and does not import torch's compiler.

    torch wraps these methods so that the compiler steps over them, and imports it to do so: a second of every job. Nothing is
    compiled here, so what is beneath the wrappers is called. Step hooks work as ever.
    """

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        inspect.unwrap(torch.optim.AdamW.add_param_group)(self, param_group)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update. A closure that evaluates the loss again is not taken."""
        inspect.unwrap(torch.optim.AdamW.step)(self)
        # The fused kernel changes weights without telling autograd; layers that keep a low-precision copy look at the version.
        increment_version([parameter for group in self.param_groups for parameter in group["params"]])

    def zero_grad(self, set_to_none: bool = True) -> None:
        inspect.unwrap(torch.optim.AdamW.zero_grad)(self, set_to_none)


def build_optimizer(model: nn.Module, training: Training) -> AdamW:
    """AdamW over `parameter_groups`."""
    betas = (training.beta1, training.beta2)
    return AdamW(parameter_groups(model, training), lr=training.learning_rate, betas=betas, eps=training.epsilon, fused=True)


def parameter_groups(model: nn.Module, training: Training) -> list[dict[str, Any]]:
    """Matrices decay; norms and the embedding do not (as in GPT-2 and Llama trainers)."""
    decayed = [p for name, p in model.named_parameters() if p.ndim >= 2 and not name.startswith("embedding.")]
    kept = [p for name, p in model.named_parameters() if p.ndim < 2 or name.startswith("embedding.")]
    return [{"params": decayed, "weight_decay": training.weight_decay}, {"params": kept, "weight_decay": 0.0}]


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate
