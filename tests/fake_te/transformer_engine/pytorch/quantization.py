"""Which recipe is in force, and the scales that move on when the outermost autocast is left."""

from contextlib import contextmanager
from types import SimpleNamespace
from typing import ClassVar

import torch


class FP8GlobalStateManager:
    enabled = False
    recipe = None
    depth = 0
    first = False
    states: ClassVar[list] = []
    quantization_state = SimpleNamespace(fp8_tensors_recompute_buffer=[])

    @classmethod
    def is_fp8_enabled(cls):
        return cls.enabled

    @classmethod
    def get_fp8_recipe(cls):
        return cls.recipe

    @classmethod
    def is_first_fp8_module(cls):
        found, cls.first = cls.first, False
        return found


@contextmanager
def autocast(enabled=True, calibrating=False, recipe=None, amax_reduction_group=None, _graph=False):
    manager = FP8GlobalStateManager
    before = (manager.enabled, manager.recipe, manager.first)
    if manager.depth == 0:
        manager.first = True
    manager.enabled, manager.recipe = enabled, recipe
    manager.depth += 1
    try:
        yield
    finally:
        manager.enabled, manager.recipe, manager.first = before
        manager.depth -= 1
        if enabled and manager.depth == 0 and torch.is_grad_enabled():
            for state in manager.states:
                state.update()


class ScalingState:
    """Delayed scaling of some tensors."""

    def __init__(self, count, length):
        self.scale = torch.ones(count)
        self.amax_history = torch.zeros(length, count)
        FP8GlobalStateManager.states.append(self)

    def update(self):
        """As the fused kernel: what saw an amax of zero stays as it is."""
        saw, largest = self.amax_history[0] != 0, self.amax_history.amax(0)
        self.scale.copy_(torch.where(saw, 448.0 / largest, self.scale))
        rolled = torch.roll(self.amax_history, 1, 0)
        rolled[0] = 0.0
        self.amax_history.copy_(torch.where(saw, rolled, self.amax_history))

    def copies(self):
        return self.scale.clone(), self.amax_history.clone()

    def take(self, copies):
        self.scale.copy_(copies[0])
        self.amax_history.copy_(copies[1])
