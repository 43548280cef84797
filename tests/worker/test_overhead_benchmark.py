"""The benchmark of the tool's own cost compares like with like: its bare loop trains bit for bit as the worker does."""

from pathlib import Path

import pytest
import torch

from fp8migrate.facts.recipes import DelayedRecipe
from fp8migrate.jobs import Precision
from fp8migrate.worker.backends.converted import tensors_quantized
from fp8migrate.worker.runtime import make_deterministic
from tests.benchmarks.overhead import Arm, Size, in_turns, not_counting
from tests.worker.runs import BF16, CPU, MODEL, corpus, rows

SIZE = Size(MODEL, batch=2, sequence=16)


def new_arm(directory: Path, precision: Precision = BF16) -> Arm:
    make_deterministic(1)
    directory.mkdir()
    return Arm(SIZE, precision, corpus(), CPU, directory)


def test_bare_loop_trains_as_the_worker_does(tmp_path: Path) -> None:
    ours, bare = new_arm(tmp_path / "ours"), new_arm(tmp_path / "bare")
    ours.ours(3)
    bare.bare(0, 3)
    pairs = zip(ours.state.model.parameters(), bare.state.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_every_round_times_both_and_ours_alone_logs(tmp_path: Path) -> None:
    arm = new_arm(tmp_path / "run")
    turns = in_turns(arm, rounds=3, turn_seconds=0.0)
    assert (turns.steps, len(turns.ours), len(turns.bare)) == (1, 3, 3)
    assert min(*turns.ours, *turns.bare) > 0
    assert "x bare" in turns.in_words(SIZE.batch * SIZE.sequence)
    assert len(rows(tmp_path / "run", "metrics.jsonl")) == arm.state.step == 3 + 3 + 3


@pytest.mark.usefixtures("transformer_engine_stub")
def test_bare_loop_counts_no_passes(tmp_path: Path) -> None:
    delayed = Precision(backend="transformer_engine", recipe=DelayedRecipe(amax_history_len=16), keep_bf16=("lm_head",))
    arm = new_arm(tmp_path / "run", delayed)
    with not_counting(arm.state.model):
        arm.bare(0, 1)
    assert tensors_quantized(arm.state.model) == 0
    arm.ours(1)
    assert tensors_quantized(arm.state.model) > 0
