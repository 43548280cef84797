"""Arms of a speed measurement: different ways to run one step over the same parameters, the same objects."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.operands import GEMMS
from fp8migrate.jobs import MeasuredArm
from fp8migrate.sizing.flops import GemmSite, flops_shares, gemm_sites
from fp8migrate.sizing.fused import module_recipes
from fp8migrate.sizing.policy import Policy
from fp8migrate.sizing.speedup import recipes_of_unit
from fp8migrate.sizing.units import Layout, units
from fp8migrate.worker.backends import policy_of
from fp8migrate.worker.models.fused import FusedLlama, NonGemm, fused_modules
from fp8migrate.worker.models.packed import PackedLlama, head_loss, mean_loss


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


def build_arm(arm: MeasuredArm, packed: PackedLlama, tokens_per_pass: int, policy: Policy | None = None) -> Arm:
    """policy: None for that of the arm's precision.

    Raises UsageError where the arm's library is missing or cannot express its policy.
    """
    precision = arm.precision
    if precision.backend == "bf16":
        return Arm(arm.name, _compiled_loss(packed, list(packed.layers)), 0.0, 0, lambda: None)
    sites = gemm_sites(packed.settings, packed.sequence_length)
    policy = policy or policy_of(sites, precision, tokens_per_pass)
    if precision.backend == "torchao":
        return _torchao_arm(arm, packed, policy, sites)
    if precision.backend == "transformer_engine":
        return _fused_arm(arm, packed, policy, sites)
    raise UsageError(f"{arm.name}: {precision.backend} has no speed to measure", where="candidate.backend")


def _fused_arm(arm: MeasuredArm, packed: PackedLlama, policy: Policy, sites: Sequence[GemmSite]) -> Arm:
    from fp8migrate.worker.backends.fused import fuse
    from fp8migrate.worker.backends.transformer_engine import TransformerEngine

    recipes = module_recipes(policy)
    fp8_head = bool(recipes["lm_head"])
    non_gemm = NonGemm(arm.attention, arm.rotation)
    backend = TransformerEngine(arm.precision)
    # A head in BF16 is compiled together with the loss, as the baseline's is.
    model = fuse(packed, backend, recipes, fuse_head=fp8_head, non_gemm=non_gemm)
    share, weights = _converted(policy, sites, "fused")
    return Arm(
        arm.name,
        _fused_loss(model),
        share,
        weights,
        lambda: sum(module.tensors_quantized for module in fused_modules(model)),
    )


def _converted(policy: Policy, sites: Sequence[GemmSite], layout: Layout) -> tuple[float, int]:
    """Of the matrices that are in FP8: their share of the step's GEMM FLOPs, and their weights."""
    shares = flops_shares(sites)
    share, weights = 0.0, 0
    for unit in units(sites, layout):
        if recipes := recipes_of_unit(unit, policy):
            share += sum(shares[site] for site in unit.sites) * len(recipes) / len(GEMMS)
            weights += unit.out_features * unit.in_features
    return share, weights


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


def _torchao_arm(arm: MeasuredArm, packed: PackedLlama, policy: Policy, sites: Sequence[GemmSite]) -> Arm:
    """The packed layers with Float8Linear over the same weights. The head is compiled together with the loss, in BF16."""
    if not _has_fp8(packed.norm.device):
        raise UsageError(f"{arm.name}: there is no FP8 hardware here, and what torchao emulates says nothing of speed")
    if odd := [name for name, site in policy.sites.items() if site.padding]:
        raise UsageError(
            f"{arm.name}: {', '.join(odd)} would have to be padded, which is not timed", where="candidate.odd_shapes"
        )
    if policy.sites["lm_head"].recipes:
        raise UsageError(
            f"{arm.name}: torchao's arm has lm_head in BF16, and the plan has it in FP8",
            where="candidate.keep_bf16",
            next_step="Add head to candidate.keep_bf16.",
        )
    share, weights = _converted(policy, sites, "packed")
    return Arm(arm.name, _compiled_loss(packed, _torchao_layers(arm, packed, policy, sites)), share, weights, lambda: None)


def _torchao_layers(arm: MeasuredArm, packed: PackedLlama, policy: Policy, sites: Sequence[GemmSite]) -> list[nn.Module]:
    from fp8migrate.worker.backends.torchao import Torchao, import_quietly

    backend = Torchao(arm.precision)
    library = import_quietly("torchao.float8.float8_linear")
    layers: list[nn.Module] = []
    for source in packed.layers:
        layer = copy.copy(source)
        layer._modules = dict(source._modules)
        layers.append(layer)
    for unit in units(sites, "packed"):
        recipes, (group, *rest) = recipes_of_unit(unit, policy), unit.name.split(".")
        if not recipes or group != "layers":
            continue
        number, leaf = int(rest[0]), rest[-1]
        config = backend.config(recipes, unit.name)
        setattr(layers[number], leaf, library.Float8Linear.from_float(packed.layers[number].get_submodule(leaf), config))
    return layers


def _has_fp8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


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
