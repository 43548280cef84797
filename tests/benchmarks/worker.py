"""What emulation costs: one whole training step of each arm against the same model's BF16 step, in one process, interleaved."""

import time
from collections.abc import Iterator

import numpy as np
import torch

from fp8migrate.facts.recipes import (
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.worker.runtime import choose_device, make_deterministic
from fp8migrate.worker.tasks.train import build, update
from tests.benchmarks.rounds import beside

_STEPS, _WARM_UP = 12, 3
ARMS = {
    "bf16": Precision(),
    "control": Precision(backend="emulated"),
    "current": Precision(backend="emulated", recipe=CurrentRecipe()),
    "delayed": Precision(backend="emulated", recipe=DelayedRecipe(amax_history_len=16)),
}
FINER_ARMS = {
    recipe.kind: Precision(backend="emulated", recipe=recipe)
    for recipe in (BlockRecipe(), RowwiseRecipe(), RowwiseHighPrecisionRecipe(), Mxfp8Recipe(), Nvfp4Recipe())
}
MODELS = {
    "hidden 48, 3 layers, 8 x 64 tokens": (
        LlamaModel(num_layers=3, hidden_size=48, num_heads=3, num_kv_heads=3, ffn_hidden_size=128),
        64,
        ARMS,
    ),
    "hidden 512, 2 layers, 8 x 128 tokens": (
        LlamaModel(num_layers=2, hidden_size=512, num_heads=8, num_kv_heads=4, ffn_hidden_size=1408),
        128,
        ARMS | FINER_ARMS,
    ),
}


def run() -> Iterator[tuple[str, str]]:
    make_deterministic(torch.get_num_threads())
    device = choose_device("auto")
    yield "device, threads", f"{device}, {torch.get_num_threads()}"
    for name, (model, sequence, arms) in MODELS.items():
        training = Training(
            num_steps=100, sequence_length=sequence, micro_batch_size=8, global_batch_size=8, learning_rate=1e-3, warmup_steps=1
        )
        tokens = np.random.default_rng(0).integers(0, 256, (8, sequence + 1), dtype=np.uint8)
        states = {arm: build(model, training, precision, device) for arm, precision in arms.items()}
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        for _ in range(_STEPS):
            for arm, state in states.items():
                started = time.perf_counter()
                update(state, training, tokens, 1e-4)
                seconds[arm].append(time.perf_counter() - started)
        for arm, values in seconds.items():
            yield f"{name}: {arm}", beside(values[_WARM_UP:], seconds["bf16"][_WARM_UP:], "ms a step")
