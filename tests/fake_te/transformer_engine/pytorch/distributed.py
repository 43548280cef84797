"""Activation recompute: scales of the first forward pass wait in a queue for each module until its second takes them."""

from collections import deque
from contextlib import ExitStack, contextmanager

import torch.utils.checkpoint
from torch import nn

from transformer_engine.pytorch.quantization import FP8GlobalStateManager, ScalingState, autocast


class Phase:
    region = False
    second = False


@contextmanager
def activation_recompute_forward(second):
    Phase.region, Phase.second = True, second
    try:
        yield
    finally:
        Phase.region = Phase.second = False


@contextmanager
def scales_of_the_first_pass(module):
    """A module's forward: the first keeps its scales, the second runs by those and leaves no trace."""
    state = module.fp8_meta.get("scaling_fwd")
    if not (Phase.region and module.fp8 and isinstance(state, ScalingState)):
        yield
        return
    kept = FP8GlobalStateManager.quantization_state.fp8_tensors_recompute_buffer
    if not Phase.second:
        if "position" not in module.fp8_meta:
            module.fp8_meta["position"] = len(kept)
            kept.append(deque())
        kept[module.fp8_meta["position"]].append(state.copies())
        yield
        return
    now = state.copies()
    state.take(kept[module.fp8_meta["position"]].popleft())
    yield
    state.take(now)


def checkpoint(function, *args, use_reentrant=True, context_fn=None, **kwargs):
    from transformer_engine.pytorch.modules import Base

    assert not use_reentrant
    run = torch.utils.checkpoint.checkpoint
    if isinstance(function, nn.Module) and not any(isinstance(module, Base) for module in function.modules()):
        return run(function, *args, use_reentrant=False, context_fn=context_fn, **kwargs)
    enabled, recipe = FP8GlobalStateManager.enabled, FP8GlobalStateManager.recipe
    first, second = context_fn()

    @contextmanager
    def within(user, is_second):
        with ExitStack() as stack:
            stack.enter_context(activation_recompute_forward(is_second))
            stack.enter_context(user)
            if is_second:
                stack.enter_context(autocast(enabled=enabled, recipe=recipe))
            yield

    # Nothing is recomputed but to the end of the function: an exception on the way would leave the scales exchanged.
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        return run(function, *args, use_reentrant=False, context_fn=lambda: (within(first, False), within(second, True)))
