"""Arms of a speed measurement: different ways to run one step over the same parameters, the same objects."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.jobs import MeasuredArm
from fp8migrate.sizing.flops import flops_shares, gemm_sites
from fp8migrate.sizing.units import PACKED
from fp8migrate.worker.backends import policy_of
from fp8migrate.worker.models.fused import MODULES, FusedLlama, NonGemm, fused_modules
from fp8migrate.worker.models.packed import PackedLlama, head_loss, mean_loss

# Linear layers of a packed layer, by their names there, and the sites that each holds.
_LINEARS = {name.rpartition(".")[2]: sites for name, sites in PACKED.items()}


@dataclass(frozen=True, eq=False)
class Arm:
    """loss: from tokens [b, t + 1] to their mean next-token loss, with a graph behind it.

    fp8_share: of the step's GEMM FLOPs, attention's included. fp8_weights: values of which FP8 copies are made in a pass.
    """

    name: str
    loss: Callable[[Tensor], Tensor]
    fp8_share: float
    fp8_weights: int
    quantized: Callable[[], int | None]


def build_arm(arm: MeasuredArm, packed: PackedLlama, tokens_per_pass: int) -> Arm:
    """Raises UsageError where the arm's library is missing or cannot express its policy."""
    precision = arm.precision
    sites = gemm_sites(packed.settings, packed.sequence_length)
    policy = policy_of(sites, precision, tokens_per_pass)
    if precision.backend == "bf16":
        return Arm(arm.name, _compiled_loss(packed, list(packed.layers)), 0.0, 0, lambda: None)
    if precision.backend == "torchao":
        share = policy.low_precision_share(sites)
        layers, weights = _torchao_layers(arm, packed, policy.sites)
        return Arm(arm.name, _compiled_loss(packed, layers), share, weights, lambda: None)
    if precision.backend != "transformer_engine":
        raise UsageError(f"{arm.name}: {precision.backend} has no speed to measure", where="candidate.backend")
    return _fused_arm(arm, packed, policy)


def _fused_arm(arm: MeasuredArm, packed: PackedLlama, policy: Any) -> Arm:
    from fp8migrate.worker.backends.fused import fuse, module_recipes
    from fp8migrate.worker.backends.transformer_engine import TransformerEngine

    recipes = module_recipes(policy, packed.settings)
    fp8_head = bool(recipes["lm_head"])
    non_gemm = NonGemm(arm.attention, arm.rotation)
    backend = TransformerEngine(arm.precision)
    # A head in BF16 is compiled together with the loss, as the baseline's is.
    model = fuse(packed, backend, recipes, fuse_head=fp8_head, non_gemm=non_gemm, fast_accumulation=arm.fast_accumulation)
    low = {name for name, each in recipes.items() if each}
    return Arm(
        arm.name,
        _fused_loss(model),
        sum(share for name, share in _module_shares(packed).items() if name in low),
        sum(size for name, size in _module_sizes(packed).items() if name in low),
        lambda: sum(module.tensors_quantized for module in fused_modules(model)),
    )


def _fused_loss(model: FusedLlama) -> Callable[[Tensor], Tensor]:
    def loss(tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
        with model.around_pass():
            x_btd = model.hidden(inputs)
            if model.fused_head is None:
                return _head_loss()(x_btd, model.norm, model.lm_head.weight, targets, model.settings.norm_epsilon)
            return _mean_loss()(model.fused_head(x_btd), targets)

    return loss


def _compiled_loss(packed: PackedLlama, layers: list[nn.Module]) -> Callable[[Tensor], Tensor]:
    run_layer = _run_layer()

    def loss(tokens: Tensor) -> Tensor:
        x_btd = packed.embedding(tokens[:, :-1])
        for layer in layers:
            x_btd = run_layer(layer, x_btd, packed.cos_te, packed.sin_te)
        targets = tokens[:, 1:].contiguous()
        return _head_loss()(x_btd, packed.norm, packed.lm_head.weight, targets, packed.settings.norm_epsilon)

    return loss


def _torchao_layers(arm: MeasuredArm, packed: PackedLlama, sites: Any) -> tuple[list[nn.Module], int]:
    """The packed layers with Float8Linear over the same weights, and how many values those have."""
    from fp8migrate.worker.backends.torchao import Torchao, import_quietly

    backend = Torchao(arm.precision)
    library = import_quietly("torchao.float8.float8_linear")
    layers: list[nn.Module] = []
    weights = 0
    for number, source in enumerate(packed.layers):
        layer = copy.copy(source)
        layer._modules = dict(source._modules)
        for name, members in _LINEARS.items():
            recipes = [sites[f"layers.{number}.{member}"].recipes for member in members]
            if all(recipes) and all(each == recipes[0] for each in recipes):
                linear = source.get_submodule(name)
                config = backend.config(recipes[0], name, emulate=not _has_fp8(packed.norm.device))
                setattr(layer, name, library.Float8Linear.from_float(linear, config))
                weights += linear.weight.numel()  # type: ignore[operator]
        layers.append(layer)
    return layers, weights


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def _module_shares(packed: PackedLlama) -> dict[str, float]:
    """Of the step's GEMM FLOPs, by fused module."""
    shares = flops_shares(gemm_sites(packed.settings, packed.sequence_length))
    return {name: sum(shares[site] for site in sites) for name, sites in _members(packed).items()}


def _module_sizes(packed: PackedLlama) -> dict[str, int]:
    sizes = {site.name: site.out_features * site.in_features for site in gemm_sites(packed.settings, packed.sequence_length)}
    return {name: sum(sizes[site] for site in sites) for name, sites in _members(packed).items()}


def _members(packed: PackedLlama) -> dict[str, list[str]]:
    found = {
        f"layers.{number}.{module}": [f"layers.{number}.{site}" for site in sites]
        for number in range(packed.settings.num_layers)
        for module, sites in MODULES.items()
    }
    return found | {"lm_head": ["lm_head"]}


def _layer(layer: nn.Module, x_btd: Tensor, cos_te: Tensor, sin_te: Tensor) -> Tensor:
    found: Tensor = layer(x_btd, cos_te, sin_te)
    return found


# Compiled once a process, whatever number of arms and layers run them.
@cache
def _run_layer() -> Callable[..., Tensor]:
    return torch.compile(_layer, fullgraph=True, dynamic=False)


@cache
def _head_loss() -> Callable[..., Tensor]:
    return torch.compile(head_loss, fullgraph=True, dynamic=False)


@cache
def _mean_loss() -> Callable[..., Tensor]:
    return torch.compile(mean_loss, fullgraph=True, dynamic=False)
