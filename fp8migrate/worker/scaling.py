"""Scales for whole tensors: where they come from, and the state that a checkpoint must carry.

Semantics follow Transformer Engine: a scale multiplies before the cast (scale = format_max / amax), an amax of zero or Inf
gives scale 1 (current scaling) or leaves the scale as it was (delayed), and a scale that overflows becomes the largest float32.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fp8migrate.facts.formats import FormatInfo
from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, FixedRecipe
from fp8migrate.worker.rounding import round_to_format_

FLOAT32_MAX = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class Quantized:
    """values: the tensor on the format's grid, float32. inverse_scale: float32 scalar; tensor ≈ values · inverse_scale."""

    values: Tensor
    inverse_scale: Tensor


class Scaler(nn.Module):
    """Quantises one operand of one layer. `count` says how many tensors it has quantised: the proof that it ran."""

    def __init__(self, info: FormatInfo) -> None:
        super().__init__()
        self.info = info
        self.count = 0
        self.recording = True

    def scale_for(self, x: Tensor) -> Tensor:
        """The float32 scalar by which x is multiplied before the cast."""
        raise NotImplementedError

    def quantize(self, x: Tensor) -> Quantized:
        """Quantise x (any float dtype; rounded to BF16 before, as the tensors that real FP8 layers are given)."""
        rounded = x.to(torch.bfloat16)
        scale = self.scale_for(rounded)
        values = round_to_format_(rounded.to(torch.float32).mul_(scale), self.info)
        self.count += 1
        return Quantized(values, scale.reciprocal())

    def end_pass(self) -> None:
        """Called after each forward-backward pass; stateful scalers take what they recorded into their history."""


class CurrentScaler(Scaler):
    """Scale from the tensor itself (Transformer Engine's Float8CurrentScaling)."""

    def scale_for(self, x: Tensor) -> Tensor:
        amax = x.abs().amax().to(torch.float32)
        usable = (amax > 0) & torch.isfinite(amax)
        scale = _ratio(self.info.max_finite, amax).clamp(max=FLOAT32_MAX)
        return torch.where(usable, scale, torch.ones_like(scale))


class FixedScaler(Scaler):
    """One constant for every tensor."""

    constant: Tensor

    def __init__(self, info: FormatInfo, scale: float) -> None:
        super().__init__(info)
        self.register_buffer("constant", torch.tensor(scale, dtype=torch.float32), persistent=False)

    def scale_for(self, x: Tensor) -> Tensor:
        return self.constant


class DelayedScaler(Scaler):
    """Scale from the maxima of earlier passes (Transformer Engine's DelayedScaling).

    amax_history[0] collects the pass that is under way; `end_pass` computes the next scale and rolls the history. A cold
    scaler has scale 1, as Transformer Engine's.
    """

    amax_history: Tensor
    scale: Tensor

    def __init__(self, info: FormatInfo, recipe: DelayedRecipe) -> None:
        super().__init__(info)
        self.recipe = recipe
        self.recorded = False
        self.register_buffer("amax_history", torch.zeros(recipe.amax_history_len, dtype=torch.float32))
        self.register_buffer("scale", torch.ones((), dtype=torch.float32))

    def scale_for(self, x: Tensor) -> Tensor:
        if self.recording:
            amax = x.abs().amax().to(torch.float32)
            self.amax_history[0] = torch.maximum(self.amax_history[0], amax)
            self.recorded = True
        return self.scale.clone()

    def end_pass(self) -> None:
        if not self.recorded:
            return
        history = self.amax_history
        amax = history.amax() if self.recipe.amax_compute == "max" else history[0]
        usable = (amax > 0) & torch.isfinite(amax)
        scale = (_ratio(self.info.max_finite, amax) / 2.0**self.recipe.margin).clamp(max=FLOAT32_MAX)
        self.scale.copy_(torch.where(usable, scale, self.scale))
        history.copy_(history.roll(-1))
        history[0] = 0.0
        self.recorded = False


def _ratio(number: float, tensor: Tensor) -> Tensor:
    """number / tensor, rounded once. torch's own number / tensor is number · (1 / tensor), rounded twice: ties then break."""
    return torch.full_like(tensor, number) / tensor


def scaler_factory(recipe: DelayedRecipe | CurrentRecipe | FixedRecipe) -> Callable[[FormatInfo], Scaler]:
    """How to make the scaler of one operand under a recipe."""
    if isinstance(recipe, DelayedRecipe):
        return lambda info: DelayedScaler(info, recipe)
    if isinstance(recipe, FixedRecipe):
        return lambda info: FixedScaler(info, recipe.scale)
    return CurrentScaler
