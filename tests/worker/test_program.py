"""The worker as a program: what it refuses before it trains, and how it records that memory ran out."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fp8migrate.facts.recipes import CurrentRecipe
from fp8migrate.jobs import TensorStats
from fp8migrate.records.schema import Outcome
from fp8migrate.records.writer import load_run_file, save_run_file
from fp8migrate.worker import __main__ as program
from fp8migrate.worker.__main__ import main
from fp8migrate.worker.models import llama
from fp8migrate.worker.tasks import TASKS, TaskContext
from tests.worker.runs import BF16, Stop, make_run, train_task


@pytest.fixture(autouse=True)
def signals_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's handlers would stay with this process, and Ctrl-C would no longer end the tests."""
    monkeypatch.setattr(program, "StopSignal", Stop)


@pytest.mark.parametrize(("what", "words"), [("source_sha256", "training code"), ("torch", "torch")])
def test_a_run_planned_under_other_code_is_not_trained_with_this(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str, words: str
) -> None:
    """An upgrade in the middle of a plan would else mix two programs under one name."""
    directory = make_run(tmp_path / "run", train_task(BF16))
    run = load_run_file(directory)
    save_run_file(directory, run.model_copy(update={"environment": run.environment.model_copy(update={what: "other"})}))
    assert main(["run", str(directory)]) == 5
    assert f"{words} changed while the plan was running" in capsys.readouterr().err
    assert load_run_file(directory).outcome == Outcome(status="running")
    assert not (directory / "metrics.jsonl").exists()


def test_out_of_memory_is_recorded_as_the_arms_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An outcome, so exit code 0: asked again, the same arm would run out of memory again."""

    def too_large(context: TaskContext) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90.00 GiB.\nGPU 0 has 80 GiB")

    monkeypatch.setitem(TASKS, "train", too_large)
    task = train_task(BF16)
    directory = make_run(tmp_path / "run", task)
    assert main(["run", str(directory)]) == 0
    outcome = load_run_file(directory).outcome
    assert (outcome.status, outcome.cause, outcome.exit_code) == ("failed", "out_of_memory", 0)
    size = task.training.micro_batch_size
    fits = f"micro_batch_size: {size // 2} fits, with the same global batch; recompute: true fits with micro_batch_size: {size}"
    assert outcome.detail.startswith(f"CUDA out of memory. Tried to allocate 90.00 GiB.; {fits}")
    assert "GPU 0 has 80 GiB" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, for looking at every object
@pytest.mark.parametrize("where", ["forward", "backward", "update"])
def test_what_would_fit_is_tried_in_the_memory_that_the_failed_step_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also where the advisor watched that step: not one of its weights, activations or states may stay."""

    def tensors() -> list[Tensor]:
        gc.collect()
        return [each for each in gc.get_objects() if isinstance(each, Tensor)]

    def out_of_memory(*values: Any, **more: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def last_layer(model: llama.Llama, *inputs: Any) -> Tensor:
        model.norm.register_forward_hook(out_of_memory)
        return forward(model, *inputs)

    def first_layer(model: llama.Llama, *inputs: Any) -> Tensor:
        model.layers[0].register_forward_hook(lambda layer, given, output: output.register_hook(out_of_memory) and None)
        return forward(model, *inputs)

    forward, left = llama.Llama.forward, -1
    if where == "update":
        monkeypatch.setattr(torch.optim.AdamW, "step", out_of_memory)
    else:
        monkeypatch.setattr(llama.Llama, "forward", last_layer if where == "forward" else first_layer)

    def what_would_fit(*given: Any) -> str:
        nonlocal left
        left = len(tensors()) - len(before)
        return "this would"

    monkeypatch.setattr(program, "what_would_fit", what_would_fit)
    stats = TensorStats(recipes=(CurrentRecipe(),), steps=(1,), max_tokens=8)
    directory = make_run(tmp_path / "run", train_task(BF16, tensor_stats=stats, validate_at=(12,)))
    before = tensors()
    assert main(["run", str(directory)]) == 0
    assert load_run_file(directory).outcome.detail == "CUDA out of memory.; this would"
    assert left == 0
