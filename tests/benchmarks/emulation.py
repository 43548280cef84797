"""What emulation costs in somebody's own model: forward and backward beside BF16 and torchao's emulation, and what is kept.

Medians of interleaved passes, weights new to the quantisers in each, as after an optimizer's step. Compile time is left out of
the passes and shown by itself.
"""

import copy
import gc
import logging
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import increment_version, saved_tensors_hooks

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import MIGRATION_RECIPES, DelayedRecipe, Recipe
from fp8migrate.worker.backends.converted import exchange
from fp8migrate.worker.backends.emulated import EmulatedLinear
from fp8migrate.worker.gemm import gemm_for
from fp8migrate.worker.linear import Prepared
from fp8migrate.worker.quantizers import end_pass
from fp8migrate.worker.runtime import choose_device
from tests.benchmarks.rounds import beside

_RECIPES = tuple(DelayedRecipe(amax_history_len=16) if recipe.kind == "delayed" else recipe for recipe in MIGRATION_RECIPES)
# In groups, each beside BF16 and the peer: a group has to be compiled before any of it is timed.
_COMPILED = (("current", "delayed"), ("block", "rowwise"))
_PASSES, _WARM_UP = 9, 2
# As many passes as fit, at least three: BF16 without matrix units is slow.
_SECONDS_PER_MODEL = 60.0
_HEAD_SIZE = 128
Rows = Iterator[tuple[str, str]]
Arms = dict[str, nn.Module]


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, of torch's own linear layers."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.query, self.key, self.value, self.output = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(hidden, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        q, k, v = (layer(h).view(2, -1, h.shape[-1] // _HEAD_SIZE, _HEAD_SIZE).transpose(1, 2) for layer in self.qkv)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        h = self.second(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))  # type: ignore[no-any-return]

    @property
    def qkv(self) -> tuple[nn.Module, ...]:
        return self.query, self.key, self.value


def mlp(repeats: int, hidden: int, inner: int) -> nn.Module:
    layers = [
        layer
        for _ in range(repeats)
        for layer in (nn.Linear(hidden, inner, bias=False), nn.ReLU(), nn.Linear(inner, hidden, bias=False))
    ]
    return nn.Sequential(*layers)


def models(device: torch.device) -> dict[str, tuple[Callable[[], nn.Module], int, int]]:
    """Name to model, tokens, hidden size."""
    if device.type == "cuda":
        return {
            "MLP 2 x (4096 -> 14336 -> 4096), 8192 tokens": (lambda: mlp(2, 4096, 14336), 8192, 4096),
            "block of hidden 4096, 2 x 4096 tokens": (lambda: Block(4096, 14336), 8192, 4096),
        }
    return {"MLP 4 x (512 -> 2048 -> 512), 2048 tokens": (lambda: mlp(4, 512, 2048), 2048, 512)}


def peer_dtype(device: torch.device) -> torch.dtype:
    """BF16; on a CPU without BF16 units float32, where torch's BF16 GEMM is twenty times slower and no peer."""
    return gemm_for(device).dtype


def emulated(model: nn.Module, recipe: Recipe) -> nn.Module:
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            exchange(model, name, EmulatedLinear, dict.fromkeys(GEMMS, recipe))
    return model


def torchaos(model: nn.Module) -> nn.Module | None:
    """torchao's own emulation of its tensorwise recipe; None where torchao is not installed."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        converted: nn.Module = convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
    except ImportError:
        return None
    finally:
        logging.disable(logging.NOTSET)
    return converted


def arms_of(model: nn.Module, recipes: tuple[Recipe, ...]) -> Arms:
    """The same weights in each; BF16 first."""
    arms: Arms = {"BF16 nn.Linear": model}
    arms |= {f"emulated {recipe.kind}": emulated(copy.deepcopy(model), recipe) for recipe in recipes}
    theirs = torchaos(copy.deepcopy(model))
    return arms if theirs is None else arms | {"peer: torchao, emulate=True, tensorwise": theirs}


def one_pass(model: nn.Module, x: Tensor, dy: Tensor) -> float:
    """Seconds of a forward and a backward pass."""
    increment_version(list(model.parameters()))
    model.zero_grad(set_to_none=True)
    x = x.detach().requires_grad_()
    synchronize(x.device)
    started = time.perf_counter()
    model(x).backward(dy)
    end_pass(model)
    synchronize(x.device)
    return time.perf_counter() - started


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def inputs(tokens: int, hidden: int, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(tokens, hidden, generator=generator) for _ in range(2))
    return x.to(device, peer_dtype(device)), (dy * 1e-3).to(device, peer_dtype(device))


def side_by_side(name: str, arms: Arms, x: Tensor, dy: Tensor) -> Rows:
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    started = time.perf_counter()
    for number in range(_PASSES):
        for arm, model in arms.items():
            seconds[arm].append(one_pass(model, x, dy))
        if number > _WARM_UP and time.perf_counter() - started > _SECONDS_PER_MODEL:
            break
    for arm, values in seconds.items():
        yield f"{name}: {arm}", beside(values[_WARM_UP:], seconds["BF16 nn.Linear"][_WARM_UP:])


def heading(device: torch.device) -> tuple[str, str]:
    kept = "" if peer_dtype(device) == torch.bfloat16 else ", BF16 values in float32 (no BF16 units)"
    return "device, threads, dtype", f"{device}, {torch.get_num_threads()}, {peer_dtype(device)}{kept}"


def run() -> Rows:
    device = choose_device("auto")
    yield heading(device)
    for name, (make, tokens, hidden) in models(device).items():
        torch.manual_seed(0)
        arms = arms_of(make().to(device, peer_dtype(device)), _RECIPES)
        yield from side_by_side(name, arms, *inputs(tokens, hidden, device))
        del arms
        free(device)


def run_compiled() -> Rows:
    """The block under torch.compile, on CUDA: on a CPU it does not pay (it takes longer to start than a small run lasts)."""
    device = choose_device("auto")
    if device.type != "cuda":
        yield "under torch.compile", "skipped: needs a CUDA GPU"
        return
    yield heading(device)
    name, (make, tokens, hidden) = list(models(device).items())[-1]
    for kinds in _COMPILED:
        torch.manual_seed(0)
        x, dy = inputs(tokens, hidden, device)
        recipes = tuple(recipe for recipe in _RECIPES if recipe.kind in kinds)
        arms = arms_of(make().to(device, peer_dtype(device)), recipes)
        for arm, model in arms.items():
            model.compile()
            started = time.perf_counter()
            for _ in range(_WARM_UP):
                one_pass(model, x, dy)
            yield f"{name}: {arm}, first passes, compiling", f"{time.perf_counter() - started:.0f} s"
        yield from side_by_side(f"compiled {name}", arms, x, dy)
        del arms
        torch.compiler.reset()
        free(device)


def free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def run_memory() -> Rows:
    """One linear layer: bytes kept beside parameters while backward waits, and on CUDA the peak of a pass.

    The yardstick: what BF16 keeps (x) and the operands that the backward pass needs, x and w, at the operand's own width.
    """
    device = choose_device("auto")
    yield heading(device)
    tokens, k, n = (8192, 4096, 14336) if device.type == "cuda" else (2048, 512, 2048)
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(tokens, size, generator=generator).to(device, peer_dtype(device)) for size in (k, n))
    torch.manual_seed(0)
    source = nn.Linear(k, n, bias=False).to(device, peer_dtype(device))
    layers: Arms = {"BF16 nn.Linear": source}
    for recipe in _RECIPES:
        layers[f"emulated {recipe.kind}"] = EmulatedLinear(copy.deepcopy(source), dict.fromkeys(GEMMS, recipe))
    bf16 = kept_bytes(source, x)
    for name, layer in layers.items():
        kept = kept_bytes(layer, x)
        one_pass(layer, x, dy)
        if isinstance(layer, EmulatedLinear):
            yardstick = bf16 + (tokens * k + n * k) * peer_dtype(device).itemsize
            in_fp8 = bf16 + tokens * k + n * k
            beside = f", {kept / yardstick:.2f} x (BF16's + x and w as GEMM operands), {kept / in_fp8:.2f} x (… in FP8)"
        else:
            beside = ""
        peak = f", peak of a pass {mib(peak_bytes(layer, x, dy))}" if device.type == "cuda" else ""
        yield f"{tokens} tokens, {k} -> {n}: {name}", f"kept {mib(kept)}{beside}{peak}"


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """Of the storages that a forward pass saves for backward or keeps as copies of the weight, each once; no parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    copies: dict[str, tuple[object, Prepared]] = getattr(layer, "_weights", {})
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        y = layer(x.detach().requires_grad_())
    for _, prepared in copies.values():
        pack(prepared.values)
    del y
    return sum(found.values())


def peak_bytes(layer: nn.Module, x: Tensor, dy: Tensor) -> int:
    """Above what is allocated before the pass."""
    layer.zero_grad(set_to_none=True)
    free(x.device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    one_pass(layer, x, dy)
    return torch.cuda.max_memory_allocated() - before


def mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
