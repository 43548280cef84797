"""What jobs cost before they run: GEMM FLOPs, and hours at a stated speed. An estimate, with what it assumes beside it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fp8migrate.errors import PlanError
from fp8migrate.facts.gpus import GpuInfo
from fp8migrate.jobs import ForwardCheck, Job, OneStep, Precision, Train
from fp8migrate.sizing.flops import forward_flops_per_token, step_flops_per_token

# Share of the BF16 peak that a training step reaches. Llama-3-8B on one H200: 562 of 989 TFLOP/s, 0.57 (measured); small
# models and short sequences reach less.
ACHIEVED_OF_PEAK = 0.4

# Passes over one global batch, forward and backward, of the checks of the integration phase: scales are warmed by four for each
# fresh model, and one step is taken apart six times over.
FORWARD_CHECK_PASSES = 4
FORWARD_CHECK_TOKENS = 8192
ONE_STEP_PASSES = 33

Unit = Literal["GPU-hours", "CPU-hours"]


@dataclass(frozen=True)
class Speed:
    """GEMM FLOP/s that one job reaches in BF16, and where that figure comes from."""

    flops_per_second: float
    unit: Unit
    basis: str


@dataclass(frozen=True)
class Work:
    """GEMM FLOPs in BF16, and those that emulate FP8 (counted as the BF16 GEMMs that they are).

    emulation_flops: BF16 FLOPs that take as long as the emulated ones, with all that emulation does besides.
    """

    bf16_flops: float = 0.0
    emulated_flops: float = 0.0
    emulation_flops: float = 0.0

    @property
    def flops(self) -> float:
        return self.bf16_flops + self.emulated_flops

    def __add__(self, other: "Work") -> "Work":
        return Work(
            self.bf16_flops + other.bf16_flops,
            self.emulated_flops + other.emulated_flops,
            self.emulation_flops + other.emulation_flops,
        )

    def hours(self, speed: Speed) -> float:
        """On one device, or on one job's threads."""
        return (self.bf16_flops + self.emulation_flops) / speed.flops_per_second / 3600


@dataclass(frozen=True)
class CostEstimate:
    """The cost of distinct jobs: a job that stands in several comparisons is counted once.

    `hours` are summed over jobs, as one device would need; None where no speed is known. `by_arm` sums FLOPs.
    """

    num_jobs: int
    work: Work
    by_arm: Mapping[str, Work]
    speed: Speed | None
    assumptions: tuple[str, ...]

    @property
    def hours(self) -> float | None:
        return self.work.hours(self.speed) if self.speed else None

    def wall_hours(self, parallel: int) -> float | None:
        """With `parallel` jobs side by side, none slowed by another. A lower bound: some jobs wait for others' checkpoints."""
        return None if self.hours is None else self.hours / parallel


def gpu_speed(gpu: GpuInfo, achieved: float = ACHIEVED_OF_PEAK) -> Speed:
    """The speed of a GPU from its table of facts, at an achieved share of its dense BF16 peak."""
    basis = f"{gpu.name}: {achieved:.0%} of {gpu.bf16_tflops:g} TFLOP/s (dense BF16 peak)"
    return Speed(gpu.bf16_tflops * 1e12 * achieved, "GPU-hours", basis)


def measured_speed(flops: float, seconds: float, unit: Unit, basis: str) -> Speed:
    """A speed from a measurement on this machine: GEMM FLOPs of the steps that took `seconds`."""
    return Speed(flops / seconds, unit, f"{basis}: {flops / seconds / 1e9:.3g} GFLOP/s measured")


def estimate(jobs: Iterable[Job], speed: Speed | None) -> CostEstimate:
    """Add up what distinct jobs cost. Without a speed (an unknown GPU, nothing measured) there are FLOPs and no hours."""
    distinct = {job.digest: job for job in jobs}
    by_arm: dict[str, Work] = {}
    for job in distinct.values():
        by_arm[job.role.arm] = by_arm.get(job.role.arm, Work()) + job_work(job)
    work = sum(by_arm.values(), Work())
    return CostEstimate(len(distinct), work, by_arm, speed, _assumptions(work, speed))


def job_work(job: Job) -> Work:
    """GEMM FLOPs of one job, validation and warming passes included."""
    task = job.task
    if isinstance(task, Train):
        return _train_work(task)
    per_batch = step_flops_per_token(task.model, task.training) * task.training.tokens_per_step
    if isinstance(task, OneStep):
        return _in_precision(task.precision, ONE_STEP_PASSES * per_batch)
    return _in_precision(task.precision, FORWARD_CHECK_PASSES * per_batch) + _forward_check_work(task)


def check_budget(estimates: Sequence[CostEstimate], gpu_hours: float | None) -> None:
    """PlanError where the estimates together are above the plan's budget of GPU-hours. CPU-hours are not bounded by it."""
    on_gpus = [(e.hours, e.speed) for e in estimates if e.hours is not None and e.speed and e.speed.unit == "GPU-hours"]
    if gpu_hours is None or not on_gpus:
        return
    hours = sum(hours for hours, _ in on_gpus)
    if hours > gpu_hours:
        raise PlanError(
            f"estimated at {hours:.3g} GPU-hours, above the budget of {gpu_hours:g} ({on_gpus[0][1].basis})",
            where="budget.gpu_hours",
            next_step="Raise the budget, or run less: fewer pairs, fewer steps, a smaller model.",
        )


def _train_work(task: Train) -> Work:
    sequence = task.training.sequence_length
    steps = task.last_step - task.first_step + task.warm_amax_batches
    work = _in_precision(
        task.precision, steps * task.training.tokens_per_step * step_flops_per_token(task.model, task.training)
    )
    per_validation = task.data.validation_tokens * forward_flops_per_token(task.model, sequence)
    for forward in task.validate_forwards:
        precision = Precision() if forward == "bf16" else task.precision
        work += _in_precision(precision, len(task.validate_at) * per_validation)
    return work


def _forward_check_work(task: ForwardCheck) -> Work:
    tokens = min(FORWARD_CHECK_TOKENS, task.data.validation_tokens)
    flops = tokens * forward_flops_per_token(task.model, task.training.sequence_length)
    return Work(bf16_flops=flops) + _in_precision(task.precision, flops)


def _in_precision(precision: Precision, flops: float) -> Work:
    """All of a run's FLOPs count as emulated, those of layers kept in BF16 too: the estimate is not to be too low.

    FP8 that a GPU runs itself counts as BF16: at small sizes it is no faster.
    """
    recipes = precision.low_precision_recipes
    if not recipes or precision.backend != "emulated":
        return Work(bf16_flops=flops)
    return Work(emulated_flops=flops, emulation_flops=flops * max(recipe.emulated_step for recipe in recipes))


def _assumptions(work: Work, speed: Speed | None) -> tuple[str, ...]:
    said = ["GEMM FLOPs only, attention over the full square; start-up, data and evaluation of logs are not counted"]
    if speed is None:
        return (*said, "no hours: the speed of this machine is not known")
    said.append(speed.basis)
    if work.emulated_flops:
        said.append(f"emulated FP8 takes {work.emulation_flops / work.emulated_flops:.2g} times as long as BF16")
    return tuple(said)
