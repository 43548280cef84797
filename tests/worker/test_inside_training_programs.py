"""Emulated layers inside what training programs do: autocast, recompute, torch.compile, DDP, FSDP2, accumulation, resume."""

import copy
import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import (
    MIGRATION_RECIPES,
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseRecipe,
)
from fp8migrate.worker.backends.converted import exchange
from fp8migrate.worker.backends.emulated import EmulatedLinear
from fp8migrate.worker.quantizers import end_pass, quantizers

RECIPES = tuple(DelayedRecipe(amax_history_len=3) if recipe.kind == "delayed" else recipe for recipe in MIGRATION_RECIPES)
every_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
TOKENS, WIDTH, STEPS = 32, 64, 3
Step = Callable[[nn.Module, Tensor], Tensor]


class Net(nn.Module):
    """Two linear layers with biases, as a user's model has them."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(WIDTH, 96), nn.Linear(96, WIDTH)
        for name in ("up", "down"):
            exchange(self, name, EmulatedLinear, dict.fromkeys(GEMMS, recipe))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(torch.relu(self.up(x)))
        return y


def batch(step: int, rank: int = 0) -> Tensor:
    return torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def plain(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x.detach().requires_grad_()).square().mean()
    loss.backward()
    return loss.detach()


def train(model: nn.Module, step: Step = plain, passes: int = STEPS) -> list[Tensor]:
    """SGD; the loss and the gradients of each step, then the weights and the scaling state."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    seen = []
    for number in range(passes):
        seen.append(step(model, batch(number)))
        end_pass(model)
        seen += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return seen + [parameter.detach() for parameter in model.parameters()] + state(model)


def state(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for quantizer in quantizers(model) for buffer in quantizer.buffers()]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    assert [i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if not torch.equal(a, b)] == []


@every_recipe
def test_recomputed_activations_change_no_bit(recipe: Recipe) -> None:
    """The second forward pass of a recompute meets the scales and the chances of the first."""

    def recomputed(model: nn.Module, x: Tensor) -> Tensor:
        loss: Tensor = checkpoint(model, x.requires_grad_(), use_reentrant=False).square().mean()
        loss.backward()
        return loss.detach()

    assert_same(train(Net(recipe), recomputed), train(Net(recipe)))


# Dynamo makes an instance of each autograd function, against torch's own advice.
dynamo = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@dynamo
@every_recipe
def test_compiled_layers_are_the_eager_ones(recipe: Recipe) -> None:
    """One graph, forward and backward, histories included; what inductor makes of it is a slow test."""
    model = Net(recipe)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    try:
        assert_same(train(model, lambda _, x: plain(compiled, x)), train(Net(recipe)))
    finally:
        torch._dynamo.reset()


@pytest.mark.slow
@dynamo
@every_recipe
def test_inductor_rounds_as_eager_does(recipe: Recipe) -> None:
    """Its fused kernels drop casts to BF16 and back, and divide approximately on a GPU; the layers do not rely on either."""
    model = Net(recipe)
    compiled = torch.compile(model, backend="inductor", fullgraph=True)
    try:
        found, expected = train(model, lambda _, x: plain(compiled, x)), train(Net(recipe))
    finally:
        torch._dynamo.reset()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


@every_recipe
def test_autocast_gives_its_own_dtype_and_the_same_numbers(recipe: Recipe) -> None:
    x, model = batch(0), Net(recipe)
    expected = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Net(recipe)(x)
    assert found.dtype == torch.bfloat16
    # relu between the layers sees BF16 values either way: the layers round what they return.
    assert torch.equal(found.float(), expected)
    found.float().square().mean().backward()


def test_a_bf16_model_keeps_its_dtype() -> None:
    model = Net(CurrentRecipe()).to(torch.bfloat16)
    y = model(batch(0).to(torch.bfloat16))
    y.square().mean().backward()
    assert y.dtype == torch.bfloat16
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.bfloat16}


@pytest.mark.parametrize("recipe", [CurrentRecipe(), BlockRecipe(), RowwiseRecipe()], ids=lambda recipe: recipe.kind)
def test_a_weight_is_quantised_once_for_each_value_and_use(recipe: Recipe) -> None:
    model = Net(recipe)
    for _ in range(3):
        plain(model, batch(0))
        end_pass(model)
    counts = {name: each.tally.quantized for name, each in model.named_modules() if name.startswith("up.quantizers.weight")}
    assert set(counts.values()) == {1}
    with torch.no_grad():
        model.get_parameter("up.weight").mul_(2)
    plain(model, batch(0))
    assert {each.tally.quantized for name, each in model.named_modules() if name.startswith("up.quantizers.weight")} == {2}


@every_recipe
def test_a_resumed_run_goes_on_to_the_same_bits(recipe: Recipe) -> None:
    """Through the module's own state_dict: histories, scales and the counter of stochastic rounding are in it."""
    straight, first = Net(recipe), Net(recipe)
    expected = train(straight, passes=2)
    train(first, passes=1)
    resumed = Net(recipe)
    resumed.load_state_dict(copy.deepcopy(first.state_dict()))
    optimizer = torch.optim.SGD(resumed.parameters(), lr=0.5)
    plain(resumed, batch(1))
    end_pass(resumed)
    optimizer.step()
    found = [parameter.detach() for parameter in resumed.parameters()] + state(resumed)
    assert_same(found, expected[-len(found) :])


def test_stochastic_rounding_draws_anew_in_each_pass() -> None:
    model = Net(Nvfp4Recipe())
    grads = []
    for _ in range(2):
        model.zero_grad()
        plain(model, batch(0))
        grads.append(model.get_parameter("up.weight").grad.clone())  # type: ignore[union-attr]
    assert not torch.equal(*grads)


@pytest.fixture
def meeting_point(tmp_path: Path) -> str:
    return f"file://{tmp_path}/ranks"


def start(rank: int, place: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=timedelta(seconds=60))


def finish() -> None:
    """Together, and without the interpreter's shutdown, in which a rank has been seen to wait for ever."""
    dist.barrier()
    time.sleep(0.5)  # a rank that leaves early takes its connections away under the other
    os._exit(0)


def in_two_processes(ranks: Callable[[int, str], None], place: str) -> None:
    """A check that fails in a rank fails here; ranks that do not end are killed, and that fails too."""
    context = mp.spawn(ranks, (place,), nprocs=2, join=False)
    deadline = time.monotonic() + 120
    while not context.join(timeout=5):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail("the ranks did not end within two minutes")


def _ddp(rank: int, place: str) -> None:
    """Two ranks on halves of a batch: the same weights and histories on both, and the histories of the larger half."""
    start(rank, place)
    model = Net(DelayedRecipe(amax_history_len=3))
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    alone = [Net(DelayedRecipe(amax_history_len=3)) for _ in range(2)]
    for number in range(STEPS):
        for micro in range(2):  # no no_sync(): DDP sends rank 0's buffers to all before each forward
            plain(wrapped, batch(10 * number + micro, rank) * (1 + rank))
        end_pass(wrapped)
        if number == 0:
            for each, one in enumerate(alone):
                for micro in range(2):
                    plain(one, batch(micro, each) * (1 + each))
            seen = [[float(quantizer.pass_amax) for quantizer in quantizers(one)] for one in alone]
            history = [float(quantizer.get_buffer("amax_history")[-1]) for quantizer in quantizers(model)]
            inputs = next(i for i, (name, _) in enumerate(named(model)) if name == "up.quantizers.input")
            assert history[inputs] == max(seen[0][inputs], seen[1][inputs]) == seen[1][inputs]
        optimizer.step()
        optimizer.zero_grad()
    mine = torch.cat([tensor.flatten() for tensor in (*model.parameters(), *state(model))])
    both = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(both, mine.detach())
    assert torch.equal(*both)
    finish()


def named(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if module in set(quantizers(model))]


def test_under_ddp_all_ranks_share_scales_of_the_largest_amax(meeting_point: str) -> None:
    in_two_processes(_ddp, meeting_point)


def _fsdp(rank: int, place: str) -> None:
    start(rank, place)
    for recipe in (CurrentRecipe(), RowwiseRecipe(), DelayedRecipe(amax_history_len=3)):
        _train_sharded(recipe)
    finish()


def _train_sharded(recipe: Recipe) -> None:
    """Both ranks see the same data, so sharded training is plain training: stale copies of gathered weights would show."""
    expected, model = train(Net(recipe)), Net(recipe)
    for layer in (model.up, model.down):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for number in range(STEPS):
        losses.append(plain(model, batch(number)))
        end_pass(model)
        optimizer.step()
        optimizer.zero_grad()
    per_step = 1 + len(list(model.parameters()))
    assert_same(losses, expected[: STEPS * per_step : per_step])
    whole = [parameter.full_tensor().detach() for parameter in model.parameters()]  # type: ignore[attr-defined]
    ends = expected[STEPS * per_step :]
    for found, wanted in zip(whole, ends, strict=False):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    assert_same(state(model), ends[len(whole) :])
    assert isinstance(model.up, EmulatedLinear)
    assert not model.up._weights  # nothing of a gathered weight is kept


def test_under_fsdp2_gathered_weights_are_quantised_anew(meeting_point: str) -> None:
    in_two_processes(_fsdp, meeting_point)


def fresh_output(model: nn.Module, x: Tensor) -> Tensor:
    """Of a model that never held a copy of other weights."""
    other = Net(CurrentRecipe())
    other.load_state_dict(model.state_dict())
    y: Tensor = other(x).detach()
    return y


@pytest.mark.parametrize(
    "optimizer",
    [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad],
    ids=lambda optimizer: optimizer.__name__,
)
@pytest.mark.parametrize("how", ["fused", "foreach", "plain"])
def test_no_optimizer_leaves_a_stale_copy(optimizer: type[torch.optim.Optimizer], how: str) -> None:
    model = Net(CurrentRecipe())
    settings = {} if how == "plain" else {how: True}
    stepping = optimizer(model.parameters(), lr=0.1, **settings)  # type: ignore[arg-type]
    for number in range(2):
        plain(model, batch(number))
        stepping.step()
        assert torch.equal(model(batch(9)).detach(), fresh_output(model, batch(9)))


def test_a_copied_or_pickled_model_has_no_stale_copy() -> None:
    """An average of weights: copied at some version, then changed until its own versions meet that one."""
    model = Net(CurrentRecipe())
    with torch.no_grad():
        for _ in range(3):
            for parameter in model.parameters():
                parameter.mul_(1.0)
        model(batch(0))
        copied = copy.deepcopy(model)
        for _ in range(3):
            for parameter in copied.parameters():
                parameter.mul_(1.5)
            assert torch.equal(copied(batch(0)), fresh_output(copied, batch(0)))


def test_new_storage_and_parametrizations_are_seen() -> None:
    model = Net(CurrentRecipe())
    model(batch(0))
    up = model.up
    up.weight.data = up.weight.data * 2
    assert torch.equal(model(batch(0)).detach(), fresh_output(model, batch(0)))
    nn.utils.parametrizations.weight_norm(model.down)
    before = model(batch(0)).detach()
    with torch.no_grad():
        model.down.parametrizations.weight.original0.mul_(3)
    assert not torch.equal(model(batch(0)).detach(), before)


@every_recipe
def test_inference_mode_then_training(recipe: Recipe) -> None:
    model = Net(recipe)
    with torch.inference_mode():
        model(batch(0))
    plain(model, batch(0))


@every_recipe
def test_a_batch_without_tokens_has_zero_gradients(recipe: Recipe) -> None:
    model = Net(recipe)
    y = model(torch.zeros(0, WIDTH))
    y.sum().backward()
    assert y.shape == (0, WIDTH)
    assert all(float(parameter.grad.abs().sum()) == 0 for parameter in model.parameters() if parameter.grad is not None)
    plain(model, batch(0))


def test_a_second_derivative_is_refused() -> None:
    """Through rounding there is none; a wrong one would pass for right."""
    x = batch(0).requires_grad_()
    loss = Net(CurrentRecipe())(x).square().sum()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, x, create_graph=True)


@dynamo
@pytest.mark.parametrize("recipe", [DelayedRecipe(amax_history_len=3), CurrentRecipe()], ids=lambda recipe: recipe.kind)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_layers_on_sequences_in_either_dtype(recipe: Recipe, dtype: torch.dtype) -> None:
    """A cast that does nothing on the way out once made every compiled gradient zero."""
    found = []
    for backend in (None, "aot_eager"):
        model = Net(recipe).to(dtype)
        run = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
        x = batch(0).view(2, TOKENS // 2, WIDTH).to(dtype).requires_grad_()
        y = run(x)
        y.float().square().mean().backward()
        assert x.grad is not None
        found.append([y.detach(), x.grad, *(parameter.grad for parameter in model.parameters())])
        assert all(float(gradient.abs().sum()) > 0 for gradient in found[-1])
    torch._dynamo.reset()
    assert_same(found[1], found[0])
