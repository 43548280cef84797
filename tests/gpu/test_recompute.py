"""Activation recompute where a GPU runs FP8 itself: the same bits, less memory, FP8 in the second pass too."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

import numpy as np  # noqa: E402 - after the skips
from torch import Tensor  # noqa: E402

from fp8migrate.facts.recipes import (  # noqa: E402
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Recipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision  # noqa: E402
from fp8migrate.plan.schema import LlamaModel, PolicyRule, Training  # noqa: E402
from fp8migrate.worker.backends.converted import tensors_quantized  # noqa: E402
from fp8migrate.worker.models.llama import token_losses  # noqa: E402
from fp8migrate.worker.tasks.kernel_check import step_kernels  # noqa: E402
from fp8migrate.worker.tasks.train import TrainingState, build, forward_backward  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

MODEL = LlamaModel(num_layers=3, hidden_size=256, num_heads=4, num_kv_heads=2, ffn_hidden_size=512)
PLAIN = Training(
    num_steps=100, sequence_length=128, micro_batch_size=4, global_batch_size=8, learning_rate=1e-3, warmup_steps=5
)
RECOMPUTED = PLAIN.model_copy(update={"recompute": True})
MIXED = (PolicyRule(layers="layers.*.mlp.*", recipe=CurrentRecipe()),)
CASES: dict[str, tuple[str, Recipe | None, tuple[PolicyRule, ...]]] = {
    "bf16": ("bf16", None, ()),
    "delayed": ("transformer_engine", DelayedRecipe(amax_history_len=4), ()),
    "delayed, the most recent": ("transformer_engine", DelayedRecipe(amax_history_len=4, amax_compute="most_recent"), ()),
    "delayed with current": ("transformer_engine", DelayedRecipe(amax_history_len=4), MIXED),
    "current": ("transformer_engine", CurrentRecipe(), ()),
    "block": ("transformer_engine", BlockRecipe(), ()),
    "fp8 off": ("transformer_engine", None, ()),
    "tensorwise": ("torchao", TensorwiseRecipe(), ()),
    "rowwise": ("torchao", RowwiseRecipe(), ()),
    "emulated": ("emulated", DelayedRecipe(amax_history_len=4), ()),
}
every_case = pytest.mark.parametrize(("backend", "recipe", "rules"), CASES.values(), ids=CASES.keys())


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a job trains: else attention's backward adds up in any order."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode(before)


def fresh(backend: str, recipe: Recipe | None, rules: tuple[PolicyRule, ...], training: Training) -> TrainingState:
    if backend == "transformer_engine":
        pytest.importorskip("transformer_engine", reason="Transformer Engine is not installed")
    if backend == "torchao":
        pytest.importorskip("torchao", reason="torchao is not installed")
    precision = Precision(backend=backend, recipe=recipe, keep_bf16=("lm_head",), policy=rules)  # type: ignore[arg-type]
    return build(MODEL, training, precision, torch.device("cuda"))


def batch(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (8, 129), dtype=np.uint8)


def steps(state: TrainingState, count: int = 3) -> list[dict[str, Tensor]]:
    """By step: the loss, every gradient, and the buffers after the update; weights after the last."""
    seen = []
    for number in range(count):
        found = {"loss": forward_backward(state.model, batch(number), PLAIN.micro_batch_size)}
        found |= {f"gradient of {name}": p.grad.clone() for name, p in state.model.named_parameters() if p.grad is not None}
        for group in state.optimizer.param_groups:
            group["lr"] = 1e-3
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        found |= {f"buffer {name}": buffer.clone() for name, buffer in state.model.named_buffers()}
        seen.append(found)
    return [*seen, {name: p.detach() for name, p in state.model.named_parameters()}]


@every_case
def test_the_same_bits_with_and_without(backend: str, recipe: Recipe | None, rules: tuple[PolicyRule, ...]) -> None:
    plain, recomputed = (fresh(backend, recipe, rules, training) for training in (PLAIN, RECOMPUTED))
    expected, found = steps(plain), steps(recomputed)
    for step, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.keys() == b.keys()
        apart = {name: float((a[name].double() - b[name].double()).norm()) for name in b if not torch.equal(a[name], b[name])}
        assert apart == {}, f"step {step}: |difference| {apart}"
    assert tensors_quantized(recomputed.model) == tensors_quantized(plain.model)


@every_case
def test_activations_are_not_kept(backend: str, recipe: Recipe | None, rules: tuple[PolicyRule, ...]) -> None:
    held = []
    for training in (PLAIN, RECOMPUTED):
        state = fresh(backend, recipe, rules, training)
        steps(state, 1)
        tokens = torch.from_numpy(batch(0).astype(np.int64)).cuda()
        before = torch.cuda.memory_allocated()
        loss = token_losses(state.model, tokens).mean()
        held.append(torch.cuda.memory_allocated() - before)
        loss.backward()
    assert held[1] < 0.6 * held[0], held


@pytest.mark.parametrize("case", ["current", "delayed", "rowwise"])
def test_the_second_pass_runs_in_fp8(case: str) -> None:
    """Three GEMMs of each layer, and the forward once more, in both micro-batches."""
    state = fresh(*CASES[case], RECOMPUTED)
    steps(state, 1)
    rows = step_kernels(lambda: forward_backward(state.model, batch(1), PLAIN.micro_batch_size))
    calls = sum(int(str(row["calls"])) for row in rows if row["kind"] == "fp8_gemm")
    assert calls == 2 * 4 * 7 * MODEL.num_layers
