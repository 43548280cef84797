"""Shallow models timed on a CPU: each way its turns, and what fails said."""

import pytest
import torch

from fp8migrate.facts.recipes import CurrentRecipe, RowwiseRecipe
from fp8migrate.jobs import MeasuredArm, Precision
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.sizing.break_even import BreakEvenRequest, DepthTime
from fp8migrate.worker import arms, shallow
from fp8migrate.worker.models import fused
from fp8migrate.worker.models.packed import head_loss, split_and_rotate
from fp8migrate.worker.shallow import shallow_times

MODEL = LlamaModel(num_layers=6, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
TRAINING = Training(
    num_steps=10, sequence_length=16, micro_batch_size=2, global_batch_size=4, learning_rate=1e-3, warmup_steps=1
)
FP8 = Precision(backend="transformer_engine", recipe=CurrentRecipe(), keep_bf16=("lm_head", "layers.2.mlp.*"))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shallow, "_TURN_SECONDS", 1e-6)
    # The stub says that there is a GPU, for which torch here cannot compile.
    for module, name, eager in (
        (arms, "_run_layer", arms._layer),
        (arms, "_head_loss", head_loss),
        (fused, "_compiled_rotation", split_and_rotate),
    ):
        monkeypatch.setattr(module, name, lambda eager=eager: eager)


def timed(*precisions: Precision) -> tuple[list[DepthTime], list[str]]:
    named = tuple(MeasuredArm(name=f"arm {number}", precision=each) for number, each in enumerate(precisions))
    request = BreakEvenRequest(model=MODEL, training=TRAINING, precisions=precisions, layout="fused", arms=named, device="cpu")
    failed: list[str] = []
    return list(shallow_times(request, torch.device("cpu"), failed)), failed


@pytest.mark.usefixtures("transformer_engine_stub")
def test_bf16_and_each_kind_of_layer_are_timed_at_both_depths() -> None:
    found, failed = timed(FP8)
    assert failed == []
    wanted = [("bf16", 0), ("arm 0", 0), ("arm 0", 2)]
    assert [(each.arm, each.like, each.depth) for each in found] == [(*way, depth) for depth in (1, 5) for way in wanted]
    assert all(each.seconds > 0 for each in found)


@pytest.mark.usefixtures("transformer_engine_stub")
def test_an_arm_that_fails_is_told_and_costs_no_other() -> None:
    found, failed = timed(Precision(backend="torchao", recipe=RowwiseRecipe(), keep_bf16=("lm_head",)), FP8)
    assert [each.arm for each in found if each.depth == 5] == ["bf16", "arm 1", "arm 1"]
    assert [why.split(": ")[0] for why in failed] == ["arm 0 in 1 layers", "arm 0 in 5 layers"]
