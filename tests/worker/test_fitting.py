"""What would fit after a run was out of memory: tried, not estimated."""

from typing import Any

import pytest
import torch

from fp8migrate.jobs import DataOrder, Precision, Train
from fp8migrate.plan.schema import LlamaModel, PythonSourceData, Training
from fp8migrate.worker import fitting

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
    ("most", "said"),
    [
        (6, "micro_batch_size: 6 fits"),
        (5, "micro_batch_size: 3 fits"),
        (2, "micro_batch_size: 1 fits"),
        (0, "not even micro_batch_size: 1 fits"),
    ],
)
def test_the_largest_part_of_the_micro_batch_that_fits(monkeypatch: pytest.MonkeyPatch, most: int, said: str) -> None:
    real, tried = fitting.update, []

    def update(state: Any, training: Training, tokens: Any, rate: float) -> Any:
        tried.append(training.micro_batch_size)
        if training.micro_batch_size > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(state, training, tokens, rate)

    monkeypatch.setattr(fitting, "update", update)
    assert said in fitting.what_would_fit(TASK, torch.device("cpu"))
    assert tried == [size for size in (6, 3, 1) if size >= min(tried)]
