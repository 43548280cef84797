"""The backends that run FP8 themselves, on a Hopper GPU: beside our emulation, saved and loaded, in micro-batches."""

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

import numpy as np  # noqa: E402 - after the skips
from torch import Tensor  # noqa: E402
from torch.autograd.graph import increment_version  # noqa: E402

from fp8migrate.facts.operands import GEMMS  # noqa: E402
from fp8migrate.facts.recipes import (  # noqa: E402
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision  # noqa: E402
from fp8migrate.plan.schema import LlamaModel, PolicyRule, Training  # noqa: E402
from fp8migrate.worker import checkpoint  # noqa: E402
from fp8migrate.worker.backends.converted import (  # noqa: E402
    begin_microbatch,
    converted_layers,
    forward_mode,
    tensors_quantized,
)
from fp8migrate.worker.models.llama import token_losses  # noqa: E402
from fp8migrate.worker.quantizers import end_pass  # noqa: E402
from fp8migrate.worker.tasks.kernel_check import step_kernels  # noqa: E402
from fp8migrate.worker.tasks.train import TrainingState, build, forward_backward, update  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

MODEL = LlamaModel(num_layers=2, hidden_size=256, num_heads=4, num_kv_heads=2, ffn_hidden_size=512)
TRAINING = Training(
    num_steps=100, sequence_length=128, micro_batch_size=4, global_batch_size=8, learning_rate=1e-3, warmup_steps=5
)
CASES: dict[str, tuple[str, Recipe]] = {
    "delayed": ("transformer_engine", DelayedRecipe(amax_history_len=4)),
    "current": ("transformer_engine", CurrentRecipe()),
    "current powers of two": ("transformer_engine", CurrentRecipe(use_power_2_scales=True)),
    "block": ("transformer_engine", BlockRecipe()),
    "delayed, fused modules": ("transformer_engine fused", DelayedRecipe(amax_history_len=4)),
    "current, fused modules": ("transformer_engine fused", CurrentRecipe()),
    "block, fused modules": ("transformer_engine fused", BlockRecipe()),
    "tensorwise": ("torchao", TensorwiseRecipe()),
    "rowwise": ("torchao", RowwiseRecipe()),
    "rowwise_with_gw_hp": ("torchao", RowwiseHighPrecisionRecipe()),
}
every_case = pytest.mark.parametrize(("backend", "recipe"), CASES.values(), ids=CASES.keys())
te_case = pytest.mark.parametrize(
    ("backend", "recipe"),
    [case for case in CASES.values() if case[0] != "torchao"],
    ids=lambda value: str(value)[:24],
)


def fresh(backend: str, recipe: Recipe | None, **precision: object) -> TrainingState:
    """backend: with the modules that it trains in, where those are not linear layers."""
    name, _, modules = backend.partition(" ")
    if name == "transformer_engine":
        pytest.importorskip("transformer_engine", reason="Transformer Engine is not installed")
    settings = {"modules": modules or "linear", "keep_bf16": ("lm_head",)} | precision
    asked = Precision(backend=name, recipe=recipe, **settings)  # type: ignore[arg-type]
    return build(MODEL, TRAINING, asked, torch.device("cuda"))


def batch(number: int = 0) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (8, 129), dtype=np.uint8)


def gradients(state: TrainingState, number: int = 0) -> dict[str, Tensor]:
    forward_backward(state.model, batch(number), TRAINING.micro_batch_size)
    found = {name: p.grad.clone() for name, p in state.model.named_parameters() if p.grad is not None}
    state.optimizer.zero_grad(set_to_none=True)
    return found


@every_case
def test_gradients_are_those_of_the_emulation(backend: str, recipe: Recipe) -> None:
    """Nearer to the emulation's than those are to BF16's: the same roundings, up to accumulation and ties."""
    real, emulated, plain = fresh(backend, recipe), fresh("emulated", recipe), fresh("bf16", None)
    for number in range(3):  # the first passes of delayed scaling have no scales yet
        found = [gradients(state, number) for state in (real, emulated, plain)]
        increment_version(list(emulated.model.parameters()))  # as after an update: weights are quantised anew
    theirs, ours, exact = (torch.cat([each[name].flatten() for name in sorted(each)]) for each in found)
    apart, effect = (theirs - ours).norm(), (ours - exact).norm()
    print(f"\n{recipe.kind}: from the emulation {apart / exact.norm():.3g}, emulation from BF16 {effect / exact.norm():.3g}")
    if "fused" in backend:
        # A fused module quantises what its norm gives in FP32, so roundings are others of the same size.
        own = (theirs - torch.cat([each.flatten() for _, each in sorted(gradients(fresh(backend, None), 2).items())])).norm()
        print(f"FP8 from FP8 off in the same modules {own / exact.norm():.3g}")
        assert 0.75 < own / effect < 1.33
    else:
        assert apart < effect
    assert tensors_quantized(real.model) > 0


@every_case
def test_fp8_off_is_bf16(backend: str, recipe: Recipe) -> None:
    off, plain, control = fresh(backend, recipe), fresh("bf16", None), fresh(backend, None)
    tokens = torch.from_numpy(batch().astype(np.int64)).cuda()
    with torch.no_grad(), forward_mode(off.model, fp8=False):
        found = token_losses(off.model, tokens).mean()
        assert torch.allclose(found, token_losses(plain.model, tokens).mean(), rtol=2e-4)
        assert torch.allclose(token_losses(control.model, tokens).mean(), found, rtol=2e-4)
    ours, exact = gradients(control), gradients(plain)
    for name in exact:
        assert (ours[name] - exact[name]).norm() <= 2e-2 * exact[name].norm(), name
    assert tensors_quantized(control.model) == 0


@every_case
def test_an_evaluation_leaves_no_trace(backend: str, recipe: Recipe) -> None:
    tokens = torch.from_numpy(batch(9).astype(np.int64)).cuda()
    states = [fresh(backend, recipe) for _ in range(2)]
    for look in (False, True):
        state = states[look]
        for number in range(3):
            update(state, TRAINING, batch(number), 1e-3)
            if look:
                with torch.no_grad(), forward_mode(state.model, fp8=number % 2 == 0):
                    token_losses(state.model, tokens * 0 + 7)
    for (name, a), (_, b) in zip(*(sorted(state.model.state_dict().items()) for state in states), strict=True):
        assert torch.equal(a, b), name


@every_case
def test_save_and_load_go_on_to_the_same_bits(backend: str, recipe: Recipe, tmp_path) -> None:  # type: ignore[no-untyped-def]
    straight = fresh(backend, recipe)
    for number in range(2):
        update(straight, TRAINING, batch(number), 1e-3)
    path = tmp_path / "step.safetensors"
    checkpoint.save(path, checkpoint.training_state(straight.model, straight.optimizer), 2, "", 0)
    resumed = fresh(backend, recipe)
    checkpoint.restore(resumed.model, resumed.optimizer, checkpoint.load(path), same_run=True)
    losses = [update(state, TRAINING, batch(2), 1e-3) for state in (straight, resumed)]
    assert losses[0] == losses[1]
    expected, found = (checkpoint.training_state(s.model, s.optimizer) for s in (straight, resumed))
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []


@te_case
def test_weights_are_quantised_once_for_all_micro_batches(backend: str, recipe: Recipe) -> None:
    """With a first micro-batch and others the copy is kept: gradients are those without keeping it."""
    kept, anew = fresh(backend, recipe), fresh(backend, recipe)
    for state in (kept, anew):
        for number in range(4):  # delayed scaling starts cold
            gradients(state, 10 + number)
    for number in range(2):
        update(kept, TRAINING, batch(number), 1e-3)
    for number in range(2):
        for part in np.split(batch(number), 2):
            begin_microbatch(anew.model, 0, 1)
            loss = token_losses(anew.model, torch.from_numpy(part.astype(np.int64)).cuda()).mean() / 2
            loss.backward()  # type: ignore[no-untyped-call]
            end_pass(anew.model)
        torch.nn.utils.clip_grad_norm_(anew.model.parameters(), TRAINING.grad_clip_norm)
        for group in anew.optimizer.param_groups:
            group["lr"] = 1e-3
        anew.optimizer.step()
        anew.optimizer.zero_grad()
    for (name, a), (_, b) in zip(kept.model.named_parameters(), anew.model.named_parameters(), strict=True):
        # Delayed scaling sees a kept copy's amax once a step, another one's in each micro-batch.
        assert (a - b).norm() <= (2e-2 if recipe.kind == "delayed" else 1e-3) * a.norm(), name


@every_case
def test_a_step_runs_as_many_fp8_gemms_as_were_asked_for(backend: str, recipe: Recipe) -> None:
    state = fresh(backend, recipe)
    update(state, TRAINING, batch(0), 1e-3)
    rows = step_kernels(lambda: update(state, TRAINING, batch(1), 1e-3))
    calls = {kind: sum(int(str(row["calls"])) for row in rows if row["kind"] == kind) for kind in ("fp8_gemm", "unknown_gemm")}
    # Two micro-batches; query, key, value and gate, up are one matrix each in fused modules.
    wanted = sum(layer.matrices * len(layer.low_precision_gemms) for layer in converted_layers(state.model))
    assert wanted == 2 * (4 if "fused" in backend else 7) * len(converted_layers(state.model)[0].low_precision_gemms)
    assert calls == {"fp8_gemm": 2 * wanted, "unknown_gemm": 0}


def test_a_layer_with_another_recipe_has_it_and_histories_move_on_once() -> None:
    rule = PolicyRule(layers="layers.*.mlp.*", recipe=CurrentRecipe())
    mixed = fresh("transformer_engine", DelayedRecipe(amax_history_len=8), policy=(rule,))
    for number in range(3):
        gradients(mixed, number)
    query = mixed.model.get_submodule("layers.0.attention.query")
    states = dict(query.named_buffers())
    # Two micro-batches a pass, three passes: six entries, the one of the pass to come is zero.
    for part in ("scaling_fwd", "scaling_bwd"):
        history = states[f"{part}_amax_history"][:, 0]
        assert (history != 0).sum() == 6, (part, history)
    assert not list(mixed.model.get_submodule("layers.0.mlp.down").buffers())


def test_every_layer_says_what_it_is() -> None:
    state = fresh("transformer_engine", CurrentRecipe())
    assert len(converted_layers(state.model)) == 14
    assert all(layer.low_precision_gemms == set(GEMMS) for layer in converted_layers(state.model))
