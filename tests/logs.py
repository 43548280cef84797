"""Logs of made-up runs, as files: a falling loss with the noise of its batches, and what can go wrong with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

STEPS = 1000
# PARITY.md 1: the noise of a batch, and the persistent offset by which two equal runs end apart, each run's share of it.
BATCH_NOISE, OFFSET = 0.105, 0.0017 / 2**0.5


def curve(seed: int, *, data: int | None = None, gap: float = 0.0, steps: int = STEPS) -> NDArray[np.float64]:
    """Training loss of one run from 10.8 to about 3.3 nats. data: seed of the data order; none: its own."""
    own, batches = np.random.default_rng(seed), np.random.default_rng(10_000 + (seed if data is None else data))
    trend = 3.2 + 7.6 * np.exp(-np.arange(steps) / (steps / 12))
    noise = BATCH_NOISE * batches.standard_normal(steps) + 0.003 * own.standard_normal(steps) * (np.arange(steps) > 0)
    # Runs of a pair begin with the same loss and part from there.
    late = np.clip(np.arange(steps) / (0.2 * steps), 0, 1)
    return np.asarray((trend + noise) * (1 + late * (gap + OFFSET * own.standard_normal())), dtype=np.float64)


def write(path: Path, losses: NDArray[np.float64], **columns: Any) -> Path:
    """JSON lines: step (from 1), loss with full precision, and further columns, each a value for every step or a single one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, loss in enumerate(losses.tolist()):
        more = {name: values if np.isscalar(values) else values[index] for name, values in columns.items()}
        lines.append(json.dumps({"step": index + 1, "loss": loss, **more}))
    path.write_text("\n".join(lines) + "\n")
    return path


def group(folder: Path, runs: int, *, gap: float = 0.0, first_seed: int = 0, data: int | None = None, **columns: Any) -> Path:
    """A folder of `runs` logs, each on a data order of its own unless `data` names one for all."""
    for run in range(runs):
        seed = first_seed + run
        write(folder / f"run{run}.jsonl", curve(seed, data=data, gap=gap), **columns)
    return folder
