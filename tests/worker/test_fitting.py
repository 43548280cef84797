"""What would fit after a run was out of memory: tried, not estimated."""

from typing import Any

import pytest
import torch

from fp8migrate.facts.recipes import CurrentRecipe
from fp8migrate.jobs import DataOrder, Precision, TensorStats, Train
from fp8migrate.plan.schema import LlamaModel, PythonSourceData, Training
from fp8migrate.worker import fitting, tensor_watch
from fp8migrate.worker.quantize import largest

TASK = Train(
    model=LlamaModel(num_layers=1, hidden_size=16, num_heads=2, num_kv_heads=1, ffn_hidden_size=16),
    data=PythonSourceData(),
    training=Training(
        num_steps=10, sequence_length=8, micro_batch_size=12, global_batch_size=12, learning_rate=1e-3, warmup_steps=1
    ),
    precision=Precision(),
    data_order=DataOrder(seed=1),
    last_step=10,
)


@pytest.mark.parametrize(
    ("most", "with_recompute", "said", "tried"),
    [
        (
            6,
            12,
            "micro_batch_size: 6 fits, with the same global batch; recompute: true fits with micro_batch_size: 12",
            [6, -12],
        ),
        (5, 11, "micro_batch_size: 3 fits, with the same global batch; recompute: true fits with", [6, 3, -12, -6]),
        (2, 2, "micro_batch_size: 1 fits, with the same global batch", [6, 3, 1, -12, -6, -3]),
        (0, 4, "recompute: true fits with micro_batch_size: 3, for up to a third more", [6, 3, 1, -12, -6, -3]),
        (0, 0, "not even micro_batch_size: 1 fits", [6, 3, 1, -12, -6, -3, -1]),
    ],
)
def test_the_largest_part_of_the_micro_batch_that_fits(
    monkeypatch: pytest.MonkeyPatch, most: int, with_recompute: int, said: str, tried: list[int]
) -> None:
    """tried: negative with recompute, and that only where it may be more than fits without."""
    sizes = limited(monkeypatch, most, with_recompute)
    found = fitting.what_would_fit(TASK, torch.device("cpu"))
    assert found.startswith(said)
    assert ("recompute" in found) == (with_recompute > most)
    assert sizes == tried


@pytest.mark.parametrize("where", ["see", "validation"])
def test_what_a_run_does_beside_its_steps_has_to_fit_too(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The advisor's look at a step, and a validation batch, take memory of their own."""
    stats = TensorStats(recipes=(CurrentRecipe(),), steps=(3,), max_tokens=8)
    task, limited_to = TASK.model_copy(update={"tensor_stats": stats}), 6

    def full(x: torch.Tensor) -> torch.Tensor:
        if x.ndim == 3 and x.shape[0] > limited_to:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return largest(x)

    def no_room(model: Any, tokens: torch.Tensor) -> torch.Tensor:
        assert tokens.shape == (8192 // 8, 9)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    if where == "see":
        monkeypatch.setattr(tensor_watch, "largest", full)
        assert fitting.what_would_fit(task, torch.device("cpu")).startswith("micro_batch_size: 6 fits, with the same")
        assert fitting.what_would_fit(TASK, torch.device("cpu")).startswith("micro_batch_size: 6 fits, with the same")
        limited_to = 3
        assert fitting.what_would_fit(task, torch.device("cpu")).startswith("micro_batch_size: 3 fits, with the same")
    else:
        monkeypatch.setattr(fitting, "token_losses", no_room)
        assert fitting.what_would_fit(task, torch.device("cpu")).startswith("not even micro_batch_size: 1 fits")


def test_recompute_is_no_way_where_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASK.model_copy(update={"training": TASK.training.model_copy(update={"recompute": True})})
    sizes = limited(monkeypatch, 0, 6)
    assert fitting.what_would_fit(task, torch.device("cpu")) == "micro_batch_size: 6 fits, with the same global batch"
    assert sizes == [-6]


def limited(monkeypatch: pytest.MonkeyPatch, most: int, with_recompute: int) -> list[int]:
    """Memory for micro-batches of `most`; the sizes tried, negative with recompute."""
    real, tried = fitting.update, []

    def update(state: Any, training: Training, tokens: Any, rate: float) -> Any:
        size = training.micro_batch_size
        assert state.model.recompute == training.recompute
        tried.append(-size if training.recompute else size)
        if size > (with_recompute if training.recompute else most):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(state, training, tokens, rate)

    monkeypatch.setattr(fitting, "update", update)
    return tried
