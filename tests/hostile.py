# ruff: noqa: E501 - sample lines are as long as the programs write them
"""Whatever bytes a log has: refused in words, or judged, and never a PASS. For the tests and for the long fuzzing of the bench."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from fp8migrate.engine.compare import judge
from fp8migrate.errors import UserError
from fp8migrate.plan.policy import Logs, Policy
from fp8migrate.verdict import decide
from tests.logs import curve, group, write

Answer = Literal["refused", "PASS", "FAIL", "INCONCLUSIVE", "SCREENED"]

_LOSSES = [9.0 - 0.05 * step for step in range(80)]
# A short whole log of each kind that is text: what mutations start from.
SEEDS: dict[str, bytes] = {
    "jsonl": b"".join(b'{"step": %d, "loss": %.4f, "lr": 1e-4}\n' % (s, x) for s, x in enumerate(_LOSSES)),
    "csv": b"step,train/loss,val/loss\n" + b"".join(b"%d,%.4f,\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "megatron": b"".join(
        b" iteration %8d/      80 | consumed samples: %d | lm loss: %.6E | loss scale: 1.0 | grad norm: 1.192 |"
        b" number of skipped iterations:   0 | number of nan iterations:   0 |\n" % (s, 256 * s, x)
        for s, x in enumerate(_LOSSES)
    ),
    "torchtitan": b"".join(b"[rank0]:[titan] 2025-05-14 - root - INFO - step: %2d  loss: %.4f  tps: 117,679\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "torchtitan golden": b"".join(b"%d %.7f\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "nanogpt": b"".join(b"iter %d: loss %.4f, time 12.30ms, mfu 1.00%%\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "modded-nanogpt": b"".join(b"step:%d/80 val_loss:%.4f train_time:%dms step_avg:31.31ms\n" % (s, x, 31 * s) for s, x in enumerate(_LOSSES)),
    "nanochat": b"".join(b"step %05d/00080 (0.20%%) | loss: %.6f | tok/sec: 806,400\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "llm.c": b"".join(b"s:%d trl:%.4f lr:0.000001 norm:15.00\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "nemo": b"".join(b"Training epoch 0, iteration %d/80 | lr: 3e-05 | global_step: %d | reduced_train_loss: %.4f | val_loss: 4.106\n" % (s, s, x) for s, x in enumerate(_LOSSES)),
    "hf stdout": b"".join(b"{'loss': %.4f, 'grad_norm': 1.0, 'learning_rate': 4e-05, 'epoch': %.2f}\n" % (x, s / 80) for s, x in enumerate(_LOSSES)),
    "hf state": b'{"log_history": [' + b", ".join(b'{"epoch": %.2f, "loss": %.4f, "step": %d}' % (s / 80, x, s) for s, x in enumerate(_LOSSES)) + b'], "max_steps": 79}',
    "megatron golden": b'{"lm loss": {"start_step": 0, "end_step": 80, "step_interval": 1, "values": {' + b", ".join(b'"%d": %.5f' % (s + 1, x) for s, x in enumerate(_LOSSES)) + b"}}}",
    "mlperf": b"".join(b':::MLLOG {"key": "train_loss", "value": %.4f, "metadata": {"samples_count": %d}}\n' % (x, 8 * s) for s, x in enumerate(_LOSSES)),
    "olmo": b"".join(b"2024 INFO [olmo.train:816, rank=0] [step=%d/80]\n    train/CrossEntropyLoss=%.3f\n" % (s, x) for s, x in enumerate(_LOSSES)),
    "nanotron": b"".join(b"iteration: %d / 80 | consumed_tokens: %dK | lm_loss: %.3f |\n" % (s, s, x) for s, x in enumerate(_LOSSES)),
    "litgpt": b"".join(b"Epoch 1 | iter %d step %d | loss train: %.3f, val: n/a |\n" % (s, s, x) for s, x in enumerate(_LOSSES)),
    "mlflow": b"".join(b"%d %.4f %d\n" % (1_700_000_000_000 + s, x, s) for s, x in enumerate(_LOSSES)),
    "deepspeed": b"".join(b"[Rank 0] step=%d, skipped=0, lr=[1e-4], mom=[[0.9, 0.99]]\n" % s for s in range(80)),
}  # fmt: skip


def answer(content: bytes, folder: Path, baseline: Path, name: str = "log") -> Answer:
    """What `compare` says of a log of these bytes against healthy runs. Anything but a refusal in words is let through."""
    path = folder / name
    path.write_bytes(content)
    policy = Policy(baseline=Logs(logs=(str(baseline),)), candidate=Logs(logs=(str(path),)))
    try:
        return decide(judge(policy).results).name
    except UserError as error:
        return "refused" if str(error).strip() else "PASS"  # a refusal without a word is as bad


def healthy(folder: Path) -> Path:
    """BF16 runs to be set against."""
    return group(folder / "healthy", 4, data=3)


def among_others(damage: Callable[[bytes], bytes], folder: Path) -> tuple[Answer, int, int]:
    """Five candidates that would pass, one of them damaged: the answer, and its loss points before and after."""
    from fp8migrate.records.readers import read_log
    from fp8migrate.records.source import Source

    baseline, candidates = healthy(folder), folder / "candidates"
    for run in range(4):
        write(candidates / f"run{run}.jsonl", curve(50 + run, data=3))
    whole = write(folder / "whole.jsonl", curve(54, data=3)).read_bytes()
    damaged = candidates / "run4.jsonl"
    damaged.write_bytes(damage(whole))
    policy = Policy(baseline=Logs(logs=(str(baseline),)), candidate=Logs(logs=(str(candidates),)))
    try:
        said: Answer = decide(judge(policy).results).name
        left = read_log(Source(str(damaged), damaged))[0].series["training_loss"].steps.size
    except UserError:
        return "refused", whole.count(b"\n"), 0
    return said, whole.count(b"\n"), int(left)
