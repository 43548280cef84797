"""What a measurement of linear layers is asked for and what it finds: each shape's time in BF16 and in FP8, casts included."""

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import Field

from fp8migrate.facts.operands import Gemm
from fp8migrate.jobs import MeasuredArm, Precision
from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.settings import Settings
from fp8migrate.sizing.units import Layout

# What DepthTime calls the model in BF16.
BF16_ARM = "bf16"
# backward: both gradients in one pass, as training runs them. One gradient alone has its own casts, so the two add up to more.
Part = Literal["forward", "backward", "data_gradient", "weight_gradient"]


class LinearShape(Settings):
    """y [tokens, out] = x [tokens, in] · wᵀ."""

    tokens: int = Field(ge=1)
    out_features: int = Field(ge=1)
    in_features: int = Field(ge=1)

    @property
    def weights(self) -> int:
        return self.out_features * self.in_features

    @property
    def in_words(self) -> str:
        return f"{self.tokens} × {self.in_features} → {self.out_features}"


class BreakEvenRequest(Settings):
    """Which layers to time. Of the precisions backend and recipes count, not which layers they keep."""

    model: LlamaModel
    training: Training
    precisions: tuple[Precision, ...] = Field(min_length=1)
    layout: Layout = "linear"
    arms: tuple[MeasuredArm, ...] = Field((), description="also timed: shallow models of these, beside BF16")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    extra_shapes: tuple[LinearShape, ...] = Field((), description="also timed: to find the size from which on FP8 pays")
    seconds: float = Field(180, gt=0, description="no further shape is begun after so long")


class PartTime(Settings):
    """One part of a linear layer's work in one pass. Microseconds of the device, and of the host that hands the work to it.

    matrices: the model's that have the shape, by pattern. count: how many those are in one pass; 0: asked for besides.
    """

    shape: LinearShape
    matrices: tuple[str, ...]
    count: int = Field(ge=0)
    backend: str
    recipe: str
    part: Part
    bf16_us: float = Field(gt=0)
    fp8_us: float = Field(gt=0)
    bf16_host_us: float = Field(ge=0)
    fp8_host_us: float = Field(ge=0)

    @property
    def gain_us(self) -> float:
        """What FP8 saves in one pass of one matrix."""
        return self.bf16_us - self.fp8_us

    @property
    def waits_for_host(self) -> bool:
        """Whether the host takes longer to hand out the FP8 work than the device to do it."""
        return self.fp8_host_us > self.fp8_us


class RawGemm(Settings):
    """One product without casts, microseconds; FP8 by `torch._scaled_mm` with per-tensor scales, fast or exact sums."""

    shape: LinearShape
    gemm: Gemm
    bf16_us: float = Field(gt=0)
    fp8_fast_us: float | None = Field(None, gt=0)
    fp8_exact_us: float | None = Field(None, gt=0)

    @property
    def fp8_us(self) -> float | None:
        """As recipes sum: fast forward, exact for gradients."""
        return self.fp8_fast_us if self.gemm == "forward" else self.fp8_exact_us


class DepthTime(Settings):
    """Forward and backward, with embedding, head and loss, of a model of `depth` decoder layers: seconds of one pass, each with
    the policy that layer `like` has in the whole model. Median of turns of lasting work, BF16 and FP8 by turns.
    """

    arm: str
    like: int = Field(ge=0)
    depth: int = Field(ge=1)
    seconds: float = Field(gt=0)


class BreakEven(Settings):
    """All that was measured. failed: what could not be, and why."""

    device: str
    layout: Layout
    times: tuple[PartTime, ...]
    raw: tuple[RawGemm, ...] = ()
    depths: tuple[DepthTime, ...] = ()
    failed: tuple[str, ...] = ()

    def recipes(self) -> tuple[tuple[str, str], ...]:
        """(backend, recipe) pairs, in the order in which they were measured."""
        return tuple(dict.fromkeys((time.backend, time.recipe) for time in self.times))


Key = tuple[LinearShape, Part]


def by_shape_and_part(times: Iterable[PartTime], backend: str, recipe: str) -> Mapping[Key, PartTime]:
    return {(time.shape, time.part): time for time in times if (time.backend, time.recipe) == (backend, recipe)}


def whole_gain_us(times: Mapping[Key, PartTime], shape: LinearShape) -> float | None:
    """Forward and backward together; None where either was not measured."""
    forward, backward = times.get((shape, "forward")), times.get((shape, "backward"))
    return None if forward is None or backward is None else forward.gain_us + backward.gain_us
