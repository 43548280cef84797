"""Parts of a training step by themselves, each way of doing it timed: optimizers, attention, the memory itself."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

from fp8migrate.plan.schema import LlamaModel
from fp8migrate.worker.adamw import FastAdamW, KernelShape, Way
from fp8migrate.worker.gemm_rates import seconds
from fp8migrate.worker.models.packed import attend

Row = dict[str, object]

_WAYS: tuple[tuple[Way, KernelShape], ...] = (
    ("torch", KernelShape()),
    ("triton", KernelShape(1024, 4)),
    ("triton", KernelShape(2048, 8)),
    ("triton", KernelShape(4096, 8)),
    ("triton", KernelShape(8192, 8)),
    ("stochastic", KernelShape(2048, 8)),
    ("compiled", KernelShape()),
)


@torch.no_grad()
def optimizer_levers(optimizer: FastAdamW, max_norm: float) -> Iterator[Row]:
    """Time every way to update on random gradients, at a rate of 0: weights stay. States are zeroed afterwards.

    norm_s: of the gradients' norm alone; step_s: norm, clipping and update. bytes: what the update must move.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter).mul_(1e-3)
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    moved = sum(parameter.numel() * parameter.element_size() * 7 for parameter in parameters)
    yield from _norms(optimizer, moved // 7)
    for way, shape in _WAYS:
        row: Row = {"way": way, "block": shape.block, "warps": shape.warps, "bytes": moved}
        optimizer.way, optimizer.shape = way, shape
        try:
            began = time.perf_counter()
            optimizer.clipped_step(max_norm)
            torch.cuda.synchronize()
            row["first_s"] = time.perf_counter() - began
            row["step_s"] = seconds(lambda: optimizer.clipped_step(max_norm), warm_up=1, repeats=4)
            row["update_s"] = seconds(optimizer.step, warm_up=0, repeats=4)
        except Exception as error:  # noqa: BLE001 - a way that fails must not end the others
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        yield row
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()
    optimizer.restart()


def _norms(optimizer: FastAdamW, moved: int) -> Iterator[Row]:
    ways: tuple[Way, ...] = ("torch", "triton")
    for way in ways:
        optimizer.way = way
        row: Row = {"way": f"norm alone, {way}", "bytes": moved}
        try:
            row["norm_s"] = seconds(optimizer.norm)
        except Exception as error:  # noqa: BLE001 - a way that fails must not end the others
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        yield row


def best_way(rows: list[Row]) -> tuple[Way, KernelShape]:
    """The fastest that rounds to nearest, as torch's."""
    exact = [row for row in rows if row.get("step_s") is not None and row["way"] != "stochastic"]
    if not exact:
        return "torch", KernelShape()
    best = min(exact, key=lambda row: float(str(row["step_s"])))
    return best["way"], KernelShape(int(str(best["block"])), int(str(best["warps"])))  # type: ignore[return-value]


def attention_levers(model: LlamaModel, sequences: int, positions: int, device: torch.device) -> Iterator[Row]:
    """Forward and backward of one layer's attention, by each kernel that takes its shape."""
    h, g, e = model.num_heads, model.num_kv_heads, model.head_size
    q, k, v = (
        torch.randn(sequences, positions, heads, e, device=device, dtype=torch.bfloat16, requires_grad=True)
        for heads in (h, g, g)
    )
    dy = torch.randn_like(q)
    for name, around, run in _attentions(model):
        row: Row = {"way": name}
        try:
            with around():
                row["seconds"] = seconds(partial(_there_and_back, run, (q, k, v), dy))
        except Exception as error:  # noqa: BLE001 - as above
            row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
        yield row


def repeating_pays(rows: Iterable[Row]) -> bool:
    """Whether torch's attention is faster, by 3 % and more, with the key-value heads repeated."""
    by_way = {row["way"]: float(str(row["seconds"])) for row in rows if "seconds" in row}
    return by_way.get("torch, key-value heads repeated", 1e9) < 0.97 * by_way.get("torch", 1e9)


def _there_and_back(run: "Attention", qkv: tuple[Tensor, Tensor, Tensor], dy: Tensor) -> None:
    torch.autograd.grad(run(*qkv).reshape(dy.shape), qkv, dy)


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Around = Callable[[], AbstractContextManager[object]]


def _attentions(model: LlamaModel) -> Iterator[tuple[str, Around, Attention]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def repeated(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, True)

    yield "torch", nullcontext, attend
    yield "torch, key-value heads repeated", nullcontext, repeated
    yield "torch, cuDNN", lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), attend
    yield "torch, flash", lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION), attend
    yield "transformer_engine", nullcontext, _transformer_engine_attention(model)


def _transformer_engine_attention(model: LlamaModel) -> Attention:
    made: list[Attention] = []

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not made:
            from fp8migrate.worker.backends.te_modules import import_transformer_engine

            te = import_transformer_engine()
            made.append(
                te.DotProductAttention(
                    num_attention_heads=model.num_heads,
                    kv_channels=model.head_size,
                    num_gqa_groups=model.num_kv_heads,
                    qkv_format="bshd",
                    attn_mask_type="causal",
                )
            )
        return made[0](q, k, v)

    return run


def copy_bandwidth(device: torch.device, size: int = 4 * 2**30) -> float:
    """Bytes per second that a copy on the device reads and writes together."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds(lambda: target.copy_(source))
