"""Shallow models in BF16 and in FP8, timed by turns: what a whole model is foretold from (see `sizing.shallow`).

Turns last long enough for the GPU's power limit to lower its clock, as it does in training.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from fp8migrate.jobs import MeasuredArm, Precision
from fp8migrate.sizing.break_even import BF16_ARM, BreakEvenRequest, DepthTime
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.shallow import depths_of, layer_kinds, shallow_policy
from fp8migrate.worker.arms import Arm, build_arm
from fp8migrate.worker.backends import policy_of
from fp8migrate.worker.clock import Clock
from fp8migrate.worker.levers import attention_levers, repeating_pays
from fp8migrate.worker.models.packed import PackedLayer, PackedLlama
from fp8migrate.worker.runtime import in_words, release_memory

_TURN_SECONDS, _ROUNDS, _WARM_UP = 0.7, 4, 3
_BASELINE = MeasuredArm(name=BF16_ARM, precision=Precision())


@dataclass(eq=False)
class _Way:
    """An arm over a shallow model whose layers are all like layer `like` of the whole one."""

    arm: Arm
    like: int
    passes: int = 1
    seconds: list[float] = field(default_factory=list)


def shallow_times(request: BreakEvenRequest, device: torch.device, failed: list[str]) -> Iterator[DepthTime]:
    """Of BF16 and of every arm of the request. What fails is said in `failed` and costs no other figure."""
    training = request.training
    repeat_kv = device.type == "cuda" and repeating_pays(
        attention_levers(request.model, training.micro_batch_size, training.sequence_length, device)
    )
    release_memory(device)
    for depth in depths_of(request.model.num_layers):
        try:
            yield from _at(depth, request, repeat_kv, device, failed)
        except Exception as error:  # noqa: BLE001 - as below
            failed.append(f"a model of {depth} layers: {in_words(error)}")
        release_memory(device)


def _at(depth: int, request: BreakEvenRequest, repeat_kv: bool, device: torch.device, failed: list[str]) -> Iterator[DepthTime]:
    training = request.training
    model = request.model.model_copy(update={"num_layers": depth})
    packed = PackedLlama(model, training.sequence_length, device, torch.bfloat16)
    packed.fill(training.seed)
    for layer in packed.layers:
        assert isinstance(layer, PackedLayer)
        layer.repeat_kv = repeat_kv
    shape = (training.micro_batch_size, training.sequence_length + 1)
    tokens = torch.randint(model.vocab_size, shape, generator=torch.Generator().manual_seed(training.seed)).to(device)
    ways = list(_ways(request, packed, tokens, failed))
    for number in range(_ROUNDS):
        # To and fro, so that no arm always comes after the same one.
        for way in ways if number % 2 == 0 else ways[::-1]:
            _passes(way, packed, tokens, 1)
            way.seconds.append(_passes(way, packed, tokens, way.passes))
    for way in ways:
        yield DepthTime(arm=way.arm.name, like=way.like, depth=depth, seconds=median(way.seconds))


def _ways(request: BreakEvenRequest, packed: PackedLlama, tokens: Tensor, failed: list[str]) -> Iterator[_Way]:
    """Warmed up, each with as many passes as make a turn."""
    sequence = request.training.sequence_length
    whole, shallow = gemm_sites(request.model, sequence), gemm_sites(packed.settings, sequence)
    tokens_per_pass = request.training.micro_batch_size * sequence
    for arm in (_BASELINE, *request.arms):
        policy = policy_of(whole, arm.precision, tokens_per_pass)
        likes: Sequence[int] = [0] if arm is _BASELINE else list(layer_kinds(policy))
        for like in likes:
            try:
                way = _Way(build_arm(arm, packed, tokens_per_pass, shallow_policy(policy, like, shallow)), like)
                _passes(way, packed, tokens, _WARM_UP)
                way.passes = max(1, round(_TURN_SECONDS / _passes(way, packed, tokens, _WARM_UP)))
            except Exception as error:  # noqa: BLE001 - one arm that fails must not end the others
                failed.append(f"{arm.name} in {packed.settings.num_layers} layers: {in_words(error)}")
                packed.zero_grad(set_to_none=True)
                release_memory(tokens.device)
                continue
            yield way


def _passes(way: _Way, packed: PackedLlama, tokens: Tensor, count: int) -> float:
    """Seconds of one pass, of several in a row; nothing is waited for in between."""
    clock = Clock(tokens.device)
    clock.mark()
    for _ in range(count):
        way.arm.loss(tokens).backward()  # type: ignore[no-untyped-call]
        packed.zero_grad(set_to_none=True)
    clock.mark()
    return clock.seconds()[0] / count
