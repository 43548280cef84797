"""AdamW by each way that runs on a CPU, beside torch's fused one: bits, clipping, states, and ways that fail."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fp8migrate.plan.schema import Training
from fp8migrate.worker import adamw, levers
from fp8migrate.worker.adamw import Coefficients, FastAdamW, KernelShape, Way, gradient_norm, update_in_torch
from fp8migrate.worker.levers import best_way, optimizer_levers

TRAINING = Training(
    num_steps=10, sequence_length=16, micro_batch_size=2, global_batch_size=2, learning_rate=1e-2, warmup_steps=1
)
SHAPES = ((48, 32), (32, 48), (32,))


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way `compiled` as it is written: what the compiler makes of it is not tested here."""
    monkeypatch.setattr(adamw, "_compiled", lambda: update_in_torch)


def model(dtype: torch.dtype = torch.bfloat16) -> nn.ParameterList:
    generator = torch.Generator().manual_seed(1)
    return nn.ParameterList(nn.Parameter((torch.randn(shape, generator=generator) * 0.1).to(dtype)) for shape in SHAPES)


def give_gradients(found: nn.Module, seed: int, size: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in found.parameters():
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * size).to(parameter.dtype)


def exact(found: nn.Module) -> torch.optim.AdamW:
    """torch's own fused AdamW with the plan's settings: decay on matrices alone."""
    parameters = list(found.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": TRAINING.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (TRAINING.beta1, TRAINING.beta2)
    return torch.optim.AdamW(groups, lr=TRAINING.learning_rate, betas=betas, eps=TRAINING.epsilon, fused=True)


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """BF16 values between two BF16 tensors."""

    def ordered(x: Tensor) -> Tensor:
        bits = x.detach().view(torch.int16).int()
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return (ordered(a) - ordered(b)).abs()


@pytest.mark.parametrize("way", ["torch", "compiled"])
def test_each_way_is_torchs_fused_update(way: Way) -> None:
    """BF16 in and out, FP32 inside: one last place apart, where a sum fell near a tie."""
    ours, theirs = model(), model()
    optimizer, expected = FastAdamW(ours, TRAINING, way), exact(theirs)
    for seed in range(5):
        for each in (ours, theirs):
            give_gradients(each, seed)
        optimizer.step()
        expected.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        for x, y in ((a, b), *((optimizer.state[a][key], expected.state[b][key]) for key in ("exp_avg", "exp_avg_sq"))):
            apart = ulps(x, y)
            # What is next to zero has many values around it: there the distance itself counts.
            assert ((apart <= 1) | ((x - y).abs() <= 2**-8 * y.abs().mean())).all()
            assert (apart > 0).float().mean() <= 0.02
        assert float(optimizer.state[a]["step"]) == 5


def test_one_update_worked_out() -> None:
    """Weight 2, gradient 1, rate 0.5, decay 0.25, betas 0.5 and 0.75, epsilon 0."""
    group = {"lr": 0.5, "weight_decay": 0.25, "betas": (0.5, 0.75), "eps": 0.0}
    coefficients = Coefficients.of(group, step=1)
    assert coefficients == (0.125, 0.5, 0.25, 1.0, 0.5, 0.0)
    w, m, s = torch.tensor([2.0]), torch.zeros(1), torch.zeros(1)
    update_in_torch(w, torch.ones(1), m, s, torch.tensor(1.0), torch.tensor(coefficients))
    # Mean 0.5, square 0.25: the update is the rate itself, 0.5, after the decay to 1.75.
    assert (float(m), float(s), float(w)) == (0.5, 0.25, 1.25)


@pytest.mark.parametrize("way", ["torch", "compiled"])
@pytest.mark.parametrize("size", [1.0, 1e-5], ids=["clips", "does not clip"])
def test_clipping_on_the_way_is_clipping_and_then_a_step(way: Way, size: float) -> None:
    ours, theirs = model(torch.float32), model(torch.float32)
    optimizer, expected = FastAdamW(ours, TRAINING, way), exact(theirs)
    for seed in range(3):
        for each in (ours, theirs):
            give_gradients(each, seed, size)
        norm = optimizer.clipped_step(1.0)
        assert norm == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)), rel=1e-6)
        assert (norm > 1.0) == (size == 1.0)
        expected.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_way_but_torchs_leaves_the_gradients_as_they_are_and_tells_autograd() -> None:
    found = model()
    optimizer = FastAdamW(found, TRAINING, "compiled")
    give_gradients(found, 1)
    before = [(p.grad.clone(), p._version) for p in found.parameters() if p.grad is not None]
    optimizer.clipped_step(1e-3)
    for parameter, (gradient, version) in zip(found.parameters(), before, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
        assert parameter._version > version


def test_the_norm_is_summed_in_fp32() -> None:
    """4096 gradients of 1 in BF16: a BF16 sum of their squares would stop at 256."""
    parameter = nn.Parameter(torch.zeros(4096, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    norm = gradient_norm([parameter])
    assert (norm.dtype, float(norm)) == (torch.float32, 64.0)


def test_ways_can_be_changed_on_the_run_and_states_go_on() -> None:
    found, straight = model(torch.float32), model(torch.float32)
    optimizer, expected = FastAdamW(found, TRAINING, "torch"), exact(straight)
    ways: tuple[Way, ...] = ("torch", "compiled", "compiled", "torch", "compiled")
    for seed, way in enumerate(ways):
        for each in (found, straight):
            give_gradients(each, seed)
        optimizer.way = way
        optimizer.step()
        expected.step()
    for a, b in zip(found.parameters(), straight.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        assert float(optimizer.state[a]["step"]) == 5


def test_restarting_forgets_what_was_taken() -> None:
    found, fresh = model(), model()
    optimizer, other = FastAdamW(found, TRAINING, "compiled"), FastAdamW(fresh, TRAINING, "compiled")
    give_gradients(found, 1)
    optimizer.step()
    optimizer.restart()
    with torch.no_grad():
        for a, b in zip(found.parameters(), fresh.parameters(), strict=True):
            a.copy_(b)
    for each, taking in ((found, optimizer), (fresh, other)):
        give_gradients(each, 2)
        taking.step()
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), fresh.parameters(), strict=True))


def _run_once(run: Callable[[], object], **_: int) -> float:
    run()
    return 0.25


def timed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levers, "seconds", _run_once)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def test_a_way_without_its_library_is_listed_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fp8migrate.worker.adamw_kernel", raising=False)
    timed_on_the_cpu(monkeypatch)
    found = model()
    weights = [parameter.detach().clone() for parameter in found.parameters()]
    optimizer = FastAdamW(found, TRAINING, "torch")
    rows = list(optimizer_levers(optimizer, 1.0))
    values = sum(parameter.numel() for parameter in found.parameters())
    assert rows[0] == {"way": "norm alone, torch", "norm_s": 0.25, "bytes": 2 * values}
    assert (rows[1]["way"], "triton" in str(rows[1]["error"])) == ("norm alone, triton", True)
    by_way: dict[object, list[dict[str, Any]]] = {}
    for row in rows[2:]:
        by_way.setdefault(row["way"], []).append(row)
        assert row["bytes"] == 14 * values  # weight, mean and square read and written, the gradient read: 7 of 2 bytes
    assert all("triton" in str(row["error"]) for row in by_way["triton"] + by_way["stochastic"])
    assert [row["step_s"] for row in by_way["torch"] + by_way["compiled"]] == [0.25, 0.25]
    assert best_way(rows)[0] in ("torch", "compiled")
    # Nothing of the timing stays: weights, rates, gradients, states.
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), weights, strict=True))
    assert {group["lr"] for group in optimizer.param_groups} == {TRAINING.learning_rate}
    assert [parameter.grad for parameter in found.parameters()] == [None] * len(SHAPES)
    assert all(not tensor.any() for state in optimizer.state.values() for tensor in state.values())


def test_the_best_way_is_the_fastest_that_rounds_to_nearest() -> None:
    rows: list[dict[str, object]] = [
        {"way": "norm alone, torch", "norm_s": 0.001},
        {"way": "torch", "block": 2048, "warps": 8, "step_s": 0.08},
        {"way": "triton", "block": 1024, "warps": 4, "step_s": 0.03},
        {"way": "triton", "block": 4096, "warps": 8, "step_s": 0.04},
        {"way": "stochastic", "block": 2048, "warps": 8, "step_s": 0.01},
        {"way": "compiled", "block": 2048, "warps": 8, "error": "no compiler"},
    ]
    assert best_way(rows) == ("triton", KernelShape(1024, 4))
    assert best_way(rows[:1] + rows[4:]) == ("torch", KernelShape())
