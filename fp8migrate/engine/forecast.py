"""What a plan would do, before anything runs: its jobs, what they cost, and how likely its design is to decide."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fp8migrate.engine.odd_shapes import odd_shape_lines
from fp8migrate.errors import UsageError, UserError
from fp8migrate.facts.gpus import GPUS, GpuInfo
from fp8migrate.jobs import DesignName, Job, Train
from fp8migrate.phases import PHASES
from fp8migrate.phases.schema import Findings
from fp8migrate.plan.schema import MIN_PAIRS_TO_PASS, Plan
from fp8migrate.records.schema import Environment
from fp8migrate.sizing.cost import CostEstimate, Speed, Unit, check_budget, estimate, gpu_speed, measured_speed
from fp8migrate.sizing.flops import step_flops_per_token
from fp8migrate.statistics.power import pairs_needed, power_to_pass
from fp8migrate.trainers.schema import Trainer

# SDs of a pair's relative gap, in the order of PARITY.md 1: branches of a trained model (0.04 %), finished small runs from
# scratch (0.03 to 0.12 %), the persistent offset of public 124M pairs (0.17 %), short runs from scratch (0.3 % and more).
PAIR_SDS = (0.0004, 0.0007, 0.0012, 0.0017, 0.003)


@dataclass(frozen=True)
class PhaseForecast:
    """One phase: its distinct jobs and their cost."""

    name: str
    jobs: tuple[Job, ...]
    cost: CostEstimate


@dataclass(frozen=True)
class PowerRow:
    """At pairs that scatter with SD `sd`: the chance of PASS at no gap, and the pairs for 80 % (None: over 64)."""

    sd: float
    pass_probability: float
    pairs_needed: int | None


@dataclass(frozen=True)
class DesignForecast:
    """A design that can acquit. too_few: a PASS is out of reach whatever the pairs show."""

    design: DesignName
    pairs: int
    margin: float
    too_few: bool
    rows: tuple[PowerRow, ...]


@dataclass(frozen=True)
class Forecast:
    """designs: empty where the plan has only screens, which never pass. notes: what the estimate could not know."""

    phases: tuple[PhaseForecast, ...]
    designs: tuple[DesignForecast, ...]
    notes: tuple[str, ...]

    @property
    def hours(self) -> float | None:
        hours = [phase.cost.hours for phase in self.phases]
        return None if any(h is None for h in hours) else sum(h for h in hours if h is not None)


def forecast(plan: Plan, environment: Environment, trainer: Trainer | None, gpu: GpuInfo | None = None) -> Forecast:
    """Jobs and cost on `gpu` where one is named, else at the speed measured here; without a trainer FLOPs alone.

    Raises PlanError where the plan cannot be carried out as written, or costs more than its budget.
    """
    findings = Findings(environment)
    notes: list[str] = []
    phases: list[PhaseForecast] = []
    for phase in PHASES:
        jobs = tuple({job.digest: job for job in phase.planned(plan, findings)}.values())
        speed = gpu_speed(gpu) if gpu else _measured(jobs, phases, environment, trainer, notes)
        phases.append(PhaseForecast(phase.name, jobs, estimate(jobs, speed)))
    if plan.budget.gpu_hours is not None and gpu is None and environment.device == "cpu":
        notes.append("budget.gpu_hours bounds GPUs only: nothing is refused on this CPU")
    check_budget([phase.cost for phase in phases], plan.budget.gpu_hours)
    return Forecast(tuple(phases), _designs(plan), tuple(notes))


def find_gpu(name: str) -> GpuInfo:
    """A GPU of the table of facts, by name, case and punctuation aside. Raises UsageError with the known names."""
    wanted = _plain(name)
    for gpu in GPUS:
        if _plain(gpu.name) == wanted:
            return gpu
    known = ", ".join(gpu.name for gpu in GPUS)
    raise UsageError(f"unknown GPU {name!r}", where="--gpu", next_step=f"Known: {known}.")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _measured(
    jobs: Sequence[Job],
    before: Sequence[PhaseForecast],
    environment: Environment,
    trainer: Trainer | None,
    notes: list[str],
) -> Speed | None:
    """The speed of the phase's BF16 run, measured; a phase that trains nothing goes by the phase before it."""
    if trainer is None:
        return None
    job = next((job for job in jobs if isinstance(job.task, Train) and job.role.arm == "baseline"), None)
    if job is None:
        return before[-1].cost.speed if before else None
    assert isinstance(job.task, Train)
    training = job.task.training
    try:
        seconds = trainer.seconds_per_step(job)
    except UserError as error:
        notes.append(f"the speed could not be measured: {error.what}")
        return None
    flops = step_flops_per_token(job.task.model, training) * training.tokens_per_step
    unit: Unit = "GPU-hours" if environment.device == "cuda" else "CPU-hours"
    model = job.task.model
    basis = f"{environment.device_name}, {model.num_layers} layers of hidden size {model.hidden_size}"
    return measured_speed(flops, seconds, unit, basis)


def _designs(plan: Plan) -> tuple[DesignForecast, ...]:
    wanted: Mapping[DesignName, int] = {
        "branch": plan.design.branch.pairs if plan.design.branch else 0,
        "scratch": plan.design.scratch.pairs if plan.design.scratch else 0,
    }
    margin = plan.parity.margin_fraction
    return tuple(
        DesignForecast(
            design=design,
            pairs=pairs,
            margin=margin,
            too_few=pairs < MIN_PAIRS_TO_PASS,
            rows=tuple(PowerRow(sd, power_to_pass(pairs, sd, margin), pairs_needed(sd, margin)) for sd in PAIR_SDS),
        )
        for design, pairs in wanted.items()
        if pairs
    )


def forecast_plan(plan: Plan, gpu_name: str = "") -> Forecast:
    """The forecast for a GPU by name, or for this machine. Raises UserError."""
    from fp8migrate.trainers import trainer_for

    trainer = trainer_for(plan)
    if gpu_name:
        gpu = find_gpu(gpu_name)
        return forecast(plan, _stand_in(gpu), None, gpu)
    try:
        environment = trainer.environment(plan)
    except UsageError as error:
        # A laptop without torch can still plan: jobs, FLOPs and power do not depend on the machine.
        found = forecast(plan, _stand_in(), None)
        return Forecast(found.phases, found.designs, (*found.notes, f"no hours: {error.what}"))
    return forecast(plan, environment, trainer)


def _stand_in(gpu: GpuInfo | None = None) -> Environment:
    """An environment for listing jobs where none can be probed. It names no run.

    On a GPU by name the libraries are taken to be there; without one FP8 is emulated.
    """
    capability = gpu.compute_capability if gpu else None
    libraries = "" if gpu and capability else None
    return Environment(
        fp8migrate="",
        source_sha256="",
        python="",
        torch="",
        device="cuda" if gpu else "cpu",
        device_name="" if gpu is None else gpu.name,
        compute_capability=None if capability is None else "{}.{}".format(*capability),
        transformer_engine=libraries,
        torchao=libraries,
        cpu_capability="",
        bf16_gemm="",
        data_sha256="",
        data_tokens=0,
    )


def describe(plan: Plan, found: Forecast) -> list[str]:
    """The forecast as lines for a terminal."""
    lines = [
        f"{plan.name}: margin {100 * plan.parity.margin_fraction:g} % of the loss, served in {plan.parity.serve.upper()}",
        "",
    ]
    lines.append(f"{'phase':<13}{'jobs':>5}{'PFLOPs':>12}{'hours':>10}   arms")
    for phase in found.phases:
        arms = ", ".join(f"{_count(phase.jobs, arm)} {arm}" for arm in phase.cost.by_arm)
        flops = f"{phase.cost.work.flops / 1e15:.3g}"
        lines.append(f"{phase.name:<13}{phase.cost.num_jobs:>5}{flops:>12}{_hours(phase.cost.hours):>10}   {arms}")
    lines.append(f"{'together':<13}{sum(p.cost.num_jobs for p in found.phases):>5}{'':>12}{_hours(found.hours):>10}")
    lines += ["", *(f"  {assumption}" for assumption in dict.fromkeys(a for p in found.phases for a in p.cost.assumptions))]
    lines += [f"  {note}" for note in (*found.notes, *odd_shape_lines(plan))]
    for design in found.designs:
        lines += ["", *_describe_design(design)]
    if not found.designs:
        lines += ["", "Only screens are planned: they can convict, never pass. Add design.branch or design.scratch for a PASS."]
    return lines


def _describe_design(design: DesignForecast) -> list[str]:
    lines = [f"{design.design}: {design.pairs} pairs. If FP8 is truly as good, and pairs scatter with an SD of"]
    for row in design.rows:
        chance = "never passes" if design.too_few else f"passes with {row.pass_probability:.0%}"
        need = f"{row.pairs_needed} pairs" if row.pairs_needed else "more than 64 pairs"
        lines.append(f"  {100 * row.sd:.2f} %   {chance}; 80 % needs {need}")
    if design.too_few:
        lines.append(f"  A PASS needs at least {MIN_PAIRS_TO_PASS} pairs: this design can only fail or stay inconclusive.")
    return [
        *lines,
        "  Seen so far: 0.04 % in branches of a trained model, 0.03 to 0.12 % in finished small runs, 0.17 % at 124M.",
    ]


def _count(jobs: Sequence[Job], arm: str) -> int:
    return sum(job.role.arm == arm for job in jobs)


def _hours(hours: float | None) -> str:
    return "?" if hours is None else f"{hours:.2g}"
