"""Quantisers with what outlives a tensor: amax histories, counters of chance, and the proof that they ran.

`end_pass` is called after each forward-backward pass and moves delayed scales on, for all layers at once and, where
torch.distributed runs, for all ranks (the largest amax of any, as Transformer Engine reduces them).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fp8migrate.facts.operands import AmaxHistory, Operand
from fp8migrate.worker.quantize import Quantized, largest, quantize
from fp8migrate.worker.recompute import recomputing
from fp8migrate.worker.rounding import bf16_values
from fp8migrate.worker.scaling import next_scales

# An odd multiplier spreads the seeds of layers over the 64 bits (the golden ratio, as in splitmix64).
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)


@dataclass
class Tally:
    """What changes with every tensor, apart from the module: nn.Module is slow to set attributes on.

    recording: off while evaluating, so that histories hold training alone.
    """

    quantized: int = 0
    recording: bool = True


class Quantizer(nn.Module):
    """Quantises one tensor of one layer as one operand."""

    def __init__(self, operand: Operand, seed: int = 0) -> None:
        super().__init__()
        self.operand = operand
        self.tally = Tally()
        if operand.constant is not None:
            self.register_buffer("constant", torch.tensor(operand.constant, dtype=torch.float32), persistent=False)
        if operand.history is not None:
            self.register_buffer("amax_history", torch.zeros(operand.history.length, dtype=torch.float32))
            self.register_buffer("scale", torch.ones((), dtype=torch.float32))
            # The largest magnitude of the pass under way. No buffer: DDP would overwrite it with rank 0's at each forward.
            self.pass_amax = torch.zeros((), dtype=torch.float32)
        if operand.stochastic:
            # Persistent: a resumed run must meet the same chances.
            self.register_buffer("noise_seed", torch.tensor(seed * _SPREAD % (1 << 63), dtype=torch.int64))

    def quantize(self, x: Tensor, along: int) -> Quantized:
        """Quantise x [rows, cols] for a GEMM that sums over `along`."""
        operand = self.operand
        scale = seed = None
        if operand.constant is not None:
            scale = self.get_buffer("constant")
        if operand.history is not None:
            x = bf16_values(x)
            scale = self._delayed_scale(x)
        if operand.stochastic:
            seed = self.get_buffer("noise_seed").add_(1).clone()
        if not torch.compiler.is_compiling() and not recomputing():
            self.tally.quantized += 1
        return quantize(x, operand, along, scale, seed)

    def _delayed_scale(self, x: Tensor) -> Tensor:
        """The scale from earlier passes; the amax of x, BF16 values, counts for the next."""
        if self.tally.recording:
            self.pass_amax.copy_(torch.maximum(self.pass_amax, largest(x)))
        # A copy: `end_pass` moves the scale on, and the backward pass still needs this one.
        return self.get_buffer("scale").clone()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Quantizer":
        """Moves with the module, and stays float32 when it becomes half: a scale of 1e6 would be Inf."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        if self.operand.history is not None:
            self.pass_amax = moved(self.pass_amax)
        return self


def quantizers(model: nn.Module) -> Iterator[Quantizer]:
    return (module for module in model.modules() if isinstance(module, Quantizer))


def quantized_tensors(model: nn.Module) -> int:
    """Tensors quantised so far. Under torch.compile they are not counted."""
    return sum(quantizer.tally.quantized for quantizer in quantizers(model))


@contextmanager
def not_recording(model: nn.Module) -> Iterator[None]:
    """Amax histories do not take in what is seen meanwhile: an evaluation leaves no trace in training."""
    found = list(quantizers(model))
    before = [quantizer.tally.recording for quantizer in found]
    try:
        for quantizer in found:
            quantizer.tally.recording = False
        yield
    finally:
        for quantizer, recording in zip(found, before, strict=True):
            quantizer.tally.recording = recording


class SameChances(AbstractContextManager[None]):
    """For a forward pass that will run once more: counters of chance stand there as they did when this was made.

    Afterwards they go on from where they were. Histories need nothing: scales move on at `end_pass` alone, and an amax that is
    seen twice is the same maximum.
    """

    def __init__(self, model: nn.Module) -> None:
        self._seeds = [each.get_buffer("noise_seed") for each in quantizers(model) if each.operand.stochastic]
        self._first = [seed.clone() for seed in self._seeds]

    def __enter__(self) -> None:
        self._now = [seed.clone() for seed in self._seeds]
        if self._seeds:
            torch._foreach_copy_(self._seeds, self._first)

    def __exit__(self, *error: Any) -> None:
        if self._seeds:
            torch._foreach_copy_(self._seeds, self._now)


@torch.no_grad()
def end_pass(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """After each forward-backward pass: histories roll, and delayed scales are taken from them anew.

    All quantisers of one rule at once: a model has hundreds, and one by one they took a sixth of a small model's step. Under
    torch.distributed every rank must call this, for amaxes are reduced over `group` (none: all ranks).
    """
    by_rule: dict[tuple[float, AmaxHistory], list[Quantizer]] = {}
    for quantizer in quantizers(model):
        operand = quantizer.operand
        if operand.history is not None:
            by_rule.setdefault((operand.format.max_finite, operand.history), []).append(quantizer)
    for (format_max, rule), members in by_rule.items():
        _move_on(format_max, rule, members, group)


def _move_on(format_max: float, rule: AmaxHistory, members: Sequence[Quantizer], group: dist.ProcessGroup | None) -> None:
    """As Transformer Engine: scales from this pass and the history, which then rolls; where the pass saw nothing, none of it.

    So a weight that is quantised once a step has one entry for the step, however many micro-batches it has.
    """
    pass_amaxes = [member.pass_amax for member in members]
    histories, scales = ([member.get_buffer(name) for member in members] for name in ("amax_history", "scale"))
    pass_amax_n, before_nl, scale_n = torch.stack(pass_amaxes), torch.stack(histories), torch.stack(scales)
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(pass_amax_n, dist.ReduceOp.MAX, group)
    saw_n = pass_amax_n != 0
    history_nl = torch.cat((pass_amax_n[:, None], before_nl[:, 1:]), dim=1)
    scale_n = torch.where(saw_n, next_scales(history_nl, scale_n, format_max, rule), scale_n)
    rolled_nl = history_nl.roll(-1, dims=1)
    rolled_nl[:, 0] = 0.0
    after_nl = torch.where(saw_n[:, None], rolled_nl, before_nl)
    torch._foreach_copy_([*scales, *histories], [*scale_n.unbind(), *after_nl.unbind()])
    torch._foreach_zero_(pass_amaxes)
