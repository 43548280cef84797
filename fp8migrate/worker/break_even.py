"""Each linear shape of a model in BF16 and in FP8, by the backend's own layer: casts, maxima and transposes included.

A shape, a recipe or a library that fails is told and costs no other figure.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import Recipe
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import OddShapes
from fp8migrate.sizing.break_even import BreakEven, BreakEvenRequest, LinearShape, Part, PartTime, RawGemm
from fp8migrate.sizing.flops import GemmSite, gemm_sites
from fp8migrate.sizing.policy import SitePolicy, resolve_policy
from fp8migrate.sizing.units import units
from fp8migrate.worker import gemm_rates
from fp8migrate.worker.backends import BACKENDS, Backend
from fp8migrate.worker.backends.converted import MakeLayer
from fp8migrate.worker.backends.padded import padded
from fp8migrate.worker.burst import Around, Bursts, Work, nothing_around
from fp8migrate.worker.runtime import in_words, release_memory
from fp8migrate.worker.shallow import shallow_times

# Which gradients a pass has, and what its parts are called; None: already known from the whole.
_MODES: tuple[tuple[tuple[bool, bool], tuple[Part | None, Part]], ...] = (
    ((True, True), ("forward", "backward")),
    ((True, False), (None, "data_gradient")),
    ((False, True), (None, "weight_gradient")),
)
_WEIGHT_STD, _GRADIENT_STD = 0.02, 1e-3


@dataclass(frozen=True)
class ShapeUse:
    """A shape, the matrices of the model that have it, by pattern, and how many those are."""

    shape: LinearShape
    matrices: tuple[str, ...]
    count: int


def shapes_of(request: BreakEvenRequest) -> tuple[ShapeUse, ...]:
    """Distinct shapes in the order of the model, then those asked for besides."""
    training = request.training
    tokens = training.micro_batch_size * training.sequence_length
    found: dict[LinearShape, list[str]] = {}
    for unit in units(gemm_sites(request.model, training.sequence_length), request.layout):
        shape = LinearShape(tokens=tokens, out_features=unit.out_features, in_features=unit.in_features)
        found.setdefault(shape, []).append(unit.pattern)
    extra = {shape: ShapeUse(shape, (), 0) for shape in request.extra_shapes if shape not in found}
    uses = [ShapeUse(shape, tuple(dict.fromkeys(patterns)), len(patterns)) for shape, patterns in found.items()]
    return (*uses, *extra.values())


def measure_break_even(request: BreakEvenRequest, device: torch.device) -> BreakEven:
    """Time every shape under every recipe of the request. Raises nothing that concerns a single figure: see `failed`."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    times: list[PartTime] = []
    raw: list[RawGemm] = []
    failed: list[str] = []
    began = time.perf_counter()
    ways = _ways(request, failed)
    bursts = Bursts(device)
    for use in shapes_of(request):
        if time.perf_counter() - began > request.seconds:
            failed.append(f"{use.shape.in_words}: the time given was over")
            continue
        if device.type == "cuda":
            raw += _raw(use.shape, device, failed)
        for way in ways:
            times += _times(use, way, bursts, device, failed)
            release_memory(device)
    del bursts
    depths = tuple(shallow_times(request, device, failed)) if request.arms else ()
    return BreakEven(
        device=name, layout=request.layout, times=tuple(times), raw=tuple(raw), depths=depths, failed=tuple(failed)
    )


@dataclass(frozen=True, eq=False)
class _Way:
    """A recipe on its backend, and what is done with shapes that it does not take."""

    backend: Backend
    recipe: Recipe
    odd_shapes: OddShapes


def _ways(request: BreakEvenRequest, failed: list[str]) -> list[_Way]:
    """One backend for each recipe, as a model in that recipe alone would have it."""
    wanted = [(each.backend, recipe, each.odd_shapes) for each in request.precisions for recipe in each.low_precision_recipes]
    found = []
    for name, recipe, odd_shapes in dict.fromkeys(wanted):
        if name not in BACKENDS:
            continue
        try:
            found.append(_Way(BACKENDS[name](Precision(backend=name, recipe=recipe)), recipe, odd_shapes))
        except Exception as error:  # noqa: BLE001 - a library that is missing must not end the others
            failed.append(f"{name}, {recipe.in_words}: {in_words(error)}")
    return found


def _times(use: ShapeUse, way: _Way, bursts: Bursts, device: torch.device, failed: list[str]) -> Iterator[PartTime]:
    shape, words = use.shape, use.shape.in_words
    site = GemmSite(words, shape.out_features, shape.in_features, 0, 0, 0)
    chosen = resolve_policy([site], way.recipe, (), (), shape.tokens, odd_shapes=way.odd_shapes).sites[words]
    if not chosen.recipes:
        failed.append(f"{words}, {way.recipe.in_words}: {chosen.reason}")
        return
    # A compiled layer is compiled anew for each choice of gradients: ten seconds a shape for what plans seldom need.
    modes = _MODES[:1] if way.backend.name == "torchao" and device.type == "cuda" else _MODES
    for gradients, parts in modes:
        try:
            yield from _pass_times(use, way, chosen, gradients, parts, bursts, device)
        except Exception as error:  # noqa: BLE001 - one figure that fails must not end the others
            failed.append(f"{words}, {way.backend.name} {way.recipe.in_words}, {parts[-1]}: {in_words(error)}")


def _pass_times(
    use: ShapeUse,
    way: _Way,
    chosen: SitePolicy,
    gradients: tuple[bool, bool],
    parts: tuple[Part | None, Part],
    bursts: Bursts,
    device: torch.device,
) -> list[PartTime]:
    """One pass with these gradients (of the input, of the weight), in BF16 and in FP8 by turns."""
    tensors, backend = _Tensors.make(use.shape, device, gradients), way.backend
    make: MakeLayer = padded(backend.layer, chosen.padding) if chosen.padding else backend.layer
    layer = make(tensors.source, chosen.recipes, use.shape.in_words)

    def around() -> AbstractContextManager[object]:
        return backend.around_pass()

    works: list[tuple[Work, Around]] = [(tensors.work(tensors.source), nothing_around), (tensors.work(layer), around)]
    bf16, fp8 = bursts.compare(works)
    if device.type == "cuda" and not layer.tensors_quantized:
        raise RuntimeError("the backend's layer ran without FP8")
    return [
        PartTime(
            shape=use.shape,
            matrices=use.matrices,
            count=use.count,
            backend=backend.name,
            recipe=way.recipe.in_words,
            part=part,
            bf16_us=bf16[number][0] * 1e6,
            fp8_us=fp8[number][0] * 1e6,
            bf16_host_us=bf16[number][1] * 1e6,
            fp8_host_us=fp8[number][1] * 1e6,
        )
        for number, part in enumerate(parts)
        if part is not None
    ]


@dataclass(frozen=True, eq=False)
class _Tensors:
    """A BF16 layer, its input [tokens, in] and the gradient of its output [tokens, out], with the spread of real ones."""

    source: nn.Linear
    x: Tensor
    dy: Tensor

    @classmethod
    def make(cls, shape: LinearShape, device: torch.device, gradients: tuple[bool, bool]) -> "_Tensors":
        generator = torch.Generator(device).manual_seed(0)

        def normal(rows: int, columns: int, std: float) -> Tensor:
            # Products of zeros draw less power, and the clock stays higher.
            values = torch.empty(rows, columns, device=device, dtype=torch.bfloat16)
            return values.normal_(std=std, generator=generator)

        source = nn.Linear(shape.in_features, shape.out_features, bias=False, device="meta")
        weight = normal(shape.out_features, shape.in_features, _WEIGHT_STD)
        source.weight = nn.Parameter(weight, requires_grad=gradients[1])
        x = normal(shape.tokens, shape.in_features, 1.0).requires_grad_(gradients[0])
        return cls(source, x, normal(shape.tokens, shape.out_features, _GRADIENT_STD))

    def work(self, layer: nn.Module) -> Work:
        """A pass through a layer over the source's weight: forward, then the gradients that are asked for."""
        wanted = [tensor for tensor in (self.x, self.source.weight) if tensor.requires_grad]

        def run() -> Iterator[None]:
            y = layer(self.x)
            yield
            torch.autograd.grad(y, wanted, self.dy)
            yield

        return run


def _raw(shape: LinearShape, device: torch.device, failed: list[str]) -> Iterator[RawGemm]:
    t, n, k = shape.tokens, shape.out_features, shape.in_features
    for gemm, (rows, columns, along) in zip(GEMMS, ((t, n, k), (t, k, n), (n, k, t)), strict=True):
        try:
            row = gemm_rates.measure(gemm_rates.GemmShape("", gemm, rows, columns, along, 1), device)
            micro = {key: None if row[key] is None else float(str(row[key])) * 1e6 for key in ("fp8_fast", "fp8_exact")}
            bf16_us = float(str(row["bf16"])) * 1e6
            yield RawGemm(
                shape=shape, gemm=gemm, bf16_us=bf16_us, fp8_fast_us=micro["fp8_fast"], fp8_exact_us=micro["fp8_exact"]
            )
        except Exception as error:  # noqa: BLE001 - as above
            failed.append(f"{shape.in_words}, {gemm} without casts: {in_words(error)}")
    release_memory(device)
