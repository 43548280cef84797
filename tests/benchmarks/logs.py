"""Logs of other programs of a size as long runs leave them, and how a user's own script would read the same."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

MEGATRON_LINES = 2_560_000
TABLE_ROWS = 1_000_000
_ROUGH = "[node:3]: "
_WARNING = "[node:3]: layers.py:290: UserWarning: an option of this iteration is deprecated\n[node:3]:   warnings.warn(\n"
_STEP = re.compile(r"iteration\s+(\d+)/")
_FIELDS = {
    name: re.compile(rf"{name}: ([\d.E+-]+)")
    for name in ("lm loss", "grad norm", "learning rate", "elapsed time per iteration \\(ms\\)")
}


def _line(draw: random.Random, step: int, nan: bool, prefix: str) -> str:
    loss = "" if nan else f" lm loss: {2 + 8 / (1 + step / 2e4) + draw.gauss(0, 0.02):.6E} |"
    return (
        f"{prefix} [2026-01-02 03:04:05] iteration {step:8d}/{MEGATRON_LINES:8d} | consumed samples: {step * 256:12d} | "
        f"elapsed time per iteration (ms): {draw.gauss(9800, 400):.1f} | throughput per GPU (TFLOP/s/GPU): 412.3 | "
        f"learning rate: {1.5e-4 * (1 - step / MEGATRON_LINES):.6E} | global batch size:   256 |{loss} loss scale: 1.0 | "
        f"grad norm: {1 + abs(draw.gauss(0, 3)):.3f} | num zeros: 0 | params norm: {134 + step / 1e6:.3f} | "
        f"number of skipped iterations:   0 | number of nan iterations: {int(nan):3d} |\n"
    )


def write_megatron(path: Path) -> None:
    """One line a step, as Megatron-LM prints them; 1 GB."""
    draw = random.Random(1)
    with path.open("w") as file:
        file.writelines(_line(draw, step, False, "") for step in range(1, MEGATRON_LINES + 1))


def write_rough_megatron(path: Path) -> None:
    """The same with a launcher's prefix, validations, warnings between the lines, and steps whose loss is NaN."""
    with path.open("w") as file:
        file.writelines(_rough_lines())


def _rough_lines() -> Iterator[str]:
    draw = random.Random(1)
    for step in range(1, MEGATRON_LINES + 1):
        yield _line(draw, step, draw.random() < 0.001, _ROUGH)
        if step % 100 == 0:
            loss = 2 + 8 / (1 + step / 2e4)
            yield f"{_ROUGH} validation loss at iteration {step} | lm loss value: {loss:.6E} | lm loss PPL: 1.1E+01 |\n"
        if draw.random() < 0.02:
            yield _WARNING


def megatron_by_regex(path: Path) -> dict[str, list[float]]:
    """The loop of a user's own script: each line searched for each field."""
    found: dict[str, list[float]] = {name: [] for name in ("step", *_FIELDS)}
    with path.open() as file:
        for line in file:
            if match := _STEP.search(line):
                found["step"].append(float(match[1]))
                for name, pattern in _FIELDS.items():
                    value = pattern.search(line)
                    found[name].append(float(value[1]) if value else float("nan"))
    return found


def write_table(path: Path) -> None:
    draw = random.Random(1)
    rows = (f"{step},{3 + draw.random():.6f},{draw.random():.4f},1e-4,a,1,2,3\n" for step in range(TABLE_ROWS))
    with path.open("w") as file:
        file.write("step,loss,grad_norm,lr,note,x1,x2,x3\n")
        file.writelines(rows)


def write_json_lines(path: Path) -> None:
    draw = random.Random(1)
    with path.open("w") as file:
        for step in range(TABLE_ROWS):
            file.write(f'{{"step": {step}, "loss": {3 + draw.random()!r}, "grad_norm": {draw.random()!r}, "lr": 0.0001}}\n')


def table_by_pandas(path: Path) -> pd.DataFrame:
    return pd.read_csv(path)


def json_lines_by_pandas(path: Path) -> pd.DataFrame:
    return pd.read_json(path, lines=True)
