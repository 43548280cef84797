"""AdamW for BF16 weights and BF16 states, as close to the memory's speed as each way of writing it gets.

The arithmetic is that of torch's fused AdamW: FP32 inside, one rounding at the end. Ways: `torch` its own kernel; `compiled`
by torch.compile; `triton` a kernel of ours; `stochastic` the same, with the weights rounded up or down by chance, which is
another recipe and has to be judged as one. States have torch's names, so that checkpoints do not depend on the way.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from fp8migrate.plan.schema import Training
from fp8migrate.worker.optimizer import AdamW, parameter_groups

Way = Literal["torch", "compiled", "triton", "stochastic"]


class Coefficients(NamedTuple):
    """What an update needs beside the tensors."""

    decay: float
    mean_weight: float
    square_weight: float
    step_size: float
    root_correction: float
    epsilon: float

    @classmethod
    def of(cls, group: Mapping[str, Any], step: int) -> "Coefficients":
        """Of the update number `step`, counted from 1."""
        beta1, beta2 = group["betas"]
        rate = float(group["lr"])
        return cls(
            decay=rate * group["weight_decay"],
            mean_weight=1 - beta1,
            square_weight=1 - beta2,
            step_size=rate / (1 - beta1**step),
            root_correction=(1 - beta2**step) ** 0.5,
            epsilon=group["eps"],
        )


@dataclass(frozen=True)
class KernelShape:
    """How the Triton kernel is cut: values per program, warps per program."""

    block: int = 2048
    warps: int = 8


class FastAdamW(AdamW):
    """One update a step, by the way asked for. `clipped_step` clips by the global norm as part of it."""

    def __init__(self, model: nn.Module, training: Training, way: Way, shape: KernelShape | None = None) -> None:
        betas = (training.beta1, training.beta2)
        super().__init__(
            parameter_groups(model, training), lr=training.learning_rate, betas=betas, eps=training.epsilon, fused=True
        )
        self.way, self.shape = way, shape or KernelShape()
        self._taken: int | None = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update by the gradients as they are."""
        if self.way == "torch":
            super().step()
            self._taken = None
        elif parameters := self._parameters():
            self.scaled_step(torch.ones((), device=parameters[0].device))

    @torch.no_grad()
    def clipped_step(self, max_norm: float) -> Tensor:
        """Scale gradients down to a global norm and update. Returns the norm before, float32, on the device."""
        norm = self.norm()
        self.scaled_step(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    @torch.no_grad()
    def norm(self) -> Tensor:
        """Global norm of the gradients, float32 on their device, summed in FP32, by the way's own kernel where it has one."""
        if self.way not in ("triton", "stochastic"):
            return gradient_norm(self._parameters())
        from fp8migrate.worker import adamw_kernel

        return adamw_kernel.norm(_gradients(self._parameters()))

    @torch.no_grad()
    def scaled_step(self, scale: Tensor) -> None:
        """Update by gradients times a float32 scalar on their device. The way `torch` alone changes the gradients."""
        if self.way == "torch":
            torch._foreach_mul_(_gradients(self._parameters()), scale)
            super().step()
            self._taken = None
            return
        step = self._next_step()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            self._update_all(parameters, scale, Coefficients.of(group, step), step)
            increment_version(parameters)

    def _update_all(self, parameters: list[nn.Parameter], scale: Tensor, coefficients: Coefficients, step: int) -> None:
        by_compiler = self.way == "compiled"
        on_device = _on_device(coefficients, scale.device) if by_compiler else None
        for number, parameter in enumerate(parameters):
            assert parameter.grad is not None
            state = self.state[parameter]
            tensors = (parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"])
            if by_compiler:
                _compiled()(*(tensor.view(-1) for tensor in tensors), scale, on_device)
                continue
            from fp8migrate.worker.adamw_kernel import update

            seed = (step * 1_000_003 + number * 7919) % 2**31 if self.way == "stochastic" else None
            shape = self.shape
            update(*tensors, scale, coefficients, seed=seed, block=shape.block, warps=shape.warps)

    def _next_step(self) -> int:
        """Make states where there are none, count the step."""
        states = []
        for parameter in self._parameters():
            state = self.state[parameter]
            if not state:
                # Where torch's fused AdamW has it.
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            states.append(state["step"])
        if self._taken is None:
            # Read once: states may be those of a checkpoint, with the counter on the GPU.
            self._taken = int(states[0])
        self._taken += 1
        torch._foreach_add_(states, 1)
        return self._taken

    @torch.no_grad()
    def restart(self) -> None:
        """As if no update had been taken."""
        states = [tensor for state in self.state.values() for tensor in state.values()]
        if states:
            torch._foreach_zero_(states)
        self._taken = None

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"] if parameter.grad is not None]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Global norm of the gradients, float32 on their device, summed in FP32."""
    norms = torch._foreach_norm(_gradients(parameters), 2, torch.float32)
    total: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return total


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def update_in_torch(
    weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, scale: Tensor, coefficients: Tensor
) -> None:
    """One update in place, written in torch: to be compiled, and what the kernel is tested against.

    coefficients: float32 [6], as `Coefficients`.
    """
    decay, mean_weight, square_weight, step_size, root_correction, epsilon = coefficients.unbind()
    g = gradient.float() * scale
    w = weight.float()
    w = w - decay * w
    m = mean.float()
    m = m + mean_weight * (g - m)
    s = square.float()
    s = s + square_weight * (g * g - s)
    mean.copy_(m)
    square.copy_(s)
    weight.copy_(w - step_size * m / (s.sqrt() / root_correction + epsilon))


@cache
def _compiled() -> Callable[..., None]:
    # Sizes are not known to the code: one compilation serves parameters of every shape.
    return torch.compile(update_in_torch, fullgraph=True, dynamic=True)


def _on_device(coefficients: Coefficients, device: torch.device) -> Tensor:
    """Sent without waiting for the device."""
    values = torch.tensor(coefficients, dtype=torch.float32)
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
