"""Synthetic runs from a noise model with known truth: what the judging must get right is put in by hand.

The model (PARITY.md 1): both arms of a pair share the data noise of every step; what separates them is white noise per
step, a persistent offset per pair (SD `tau`, heavier early in the run) and whatever truth the scenario sets. `simulate`
returns the plan, the jobs of one design and the records that they would have left.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.growth import with_growth
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import Comparison
from fp8migrate.facts.operands import GEMMS
from fp8migrate.jobs import (
    Arm,
    CheckpointRef,
    Cooldown,
    DataOrder,
    DesignName,
    ForwardCheck,
    Job,
    OneStep,
    Precision,
    Role,
    Train,
)
from fp8migrate.plan.schema import LONG_SCREEN_FACTOR, Plan
from fp8migrate.records.schema import Cause, Conversion, Environment, Evaluation, LayerConversion, Outcome, Record, Series

TRUNK = CheckpointRef(job="0" * 64, step=0)
DOCUMENTS = 64
DOCUMENT_TOKENS = np.full(DOCUMENTS, 1024, dtype=np.int64)
PARAMETERS = 25_000_000

# One run of a design: (arm, pair, fraction). A None in the place of fraction stands for every fraction.
RunName = tuple[Arm, int, float | None]


@dataclass(frozen=True)
class Scenario:
    """The truth. Gaps, tau and penalties are relative (0.0025 = 0.25 %); steps count from the start of the run.

    candidate_tau_factor: FP8 noise is injected at every step and may spread the pairs more than the floor does.
    diverges_at: share of the run from which the candidate drifts away, one tenth of its loss per tenth of the run.
    drift_per_e_fold: growth of the candidate's gap per e-fold of steps, through the whole run.
    long_gap: what is added to the candidate's gap where a screen runs 4K.
    non_finite: the run's loss is NaN from that step on and it stops. silent_nan: NaN at that step, and "completed".
    cut: the run ends at that step, for that cause. missing: no record at all.
    """

    gap: float = 0.0
    tau: float = 0.0007
    candidate_tau_factor: float = 1.0
    early_factor: float = 4.0
    step_sd_nats: float = 0.003
    data_sd_nats: float = 0.1
    penalty: float = 0.0024
    control_gap: float = 0.0
    sensitivity_gap: float = 0.02
    document_sd: float = 0.0005
    diverges_at: float | None = None
    drift_per_e_fold: float = 0.0
    long_gap: float = 0.0
    candidate_spikes: int = 0
    shared_spikes: int = 0
    identical: bool = False
    different_data: bool = False
    different_documents: bool = False
    other_torch: bool = False
    flat_baseline: bool = False
    zero_gradients: bool = False
    quantized_tensors: int | None = 1000
    coverage: float = 0.9
    digits: int | None = None
    data_passes: float = 1.0
    non_finite: tuple[tuple[RunName, int], ...] = ()
    silent_nan: tuple[tuple[RunName, int], ...] = ()
    cut: tuple[tuple[RunName, int, Cause], ...] = ()
    missing: tuple[RunName, ...] = ()


@dataclass(frozen=True, eq=False)
class Experiment:
    """A plan, the jobs of one design and what they left, by digest."""

    plan: Plan
    design: DesignName
    jobs: tuple[Job, ...]
    records: dict[str, Record]


def simulate(scenario: Scenario | None = None, design: DesignName = "branch", seed: int = 0, **plan_changes: Any) -> Experiment:
    """All runs of one design under `scenario`. The same seed gives the same runs."""
    plan = make_plan(design, **plan_changes)
    jobs = make_jobs(plan, design)
    return Experiment(plan, design, jobs, make_records(jobs, scenario or Scenario(), seed))


def simulate_screens(
    scenario: Scenario | None = None, longer: Scenario | None = None, seed: int = 0, **plan_changes: Any
) -> tuple[Comparison, Comparison]:
    """A screen and its long screen, compared. longer: what is true of the 4K runs, where it is something else."""
    short = simulate(scenario, "screen", seed, **plan_changes)
    long = simulate(longer or scenario, "long_screen", seed, **plan_changes)
    screen = compare(short.plan, "screen", short.jobs, short.records)
    return screen, with_growth(compare(long.plan, "long_screen", long.jobs, long.records), screen)


def make_plan(
    design: DesignName = "branch",
    *,
    pairs: int = 4,
    num_steps: int = 600,
    screen_steps: int = 150,
    fractions: tuple[float, ...] = (0.3, 0.6, 0.9),
    recipe: dict[str, Any] | None = None,
    floor_pairs: int = 4,
    **parity: Any,
) -> Plan:
    """A plan with one design. Steps of a branch run from half of `num_steps` to its end."""
    screen = {"screen": {"fractions": fractions, "num_steps": screen_steps, "data_orders": pairs}}
    designs: dict[str, Any] = {
        "screen": screen,
        "long_screen": screen,
        "branch": {"branch": {"pairs": pairs}},
    }
    return Plan.model_validate(
        {
            "name": f"simulated-{design}",
            "model": {"num_layers": 8, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 4, "ffn_hidden_size": 1408},
            "training": {
                "num_steps": num_steps,
                "sequence_length": 256,
                "micro_batch_size": 8,
                "global_batch_size": 32,
                "learning_rate": 1e-3,
                "warmup_steps": num_steps // 10,
            },
            "candidate": {"backend": "emulated", "recipe": recipe or {"kind": "delayed", "amax_history_len": 16}},
            "design": {**designs.get(design, {"scratch": {"pairs": pairs}}), "floor_pairs": floor_pairs},
            "parity": parity,
        }
    )


def make_jobs(plan: Plan, design: DesignName) -> tuple[Job, ...]:
    """The jobs of one design: baseline, candidate and sensitivity in every pair, and the plan's floor and control pairs."""
    if design == "baseline":
        arms = {"baseline": 1, "floor": plan.design.floor_pairs}
    elif design == "integration":
        return _integration_jobs(plan)
    elif design == "long_screen":
        arms = dict.fromkeys(("baseline", "candidate"), _pairs(plan, design))
    else:
        pairs = _pairs(plan, design)
        arms = {
            "baseline": pairs,
            "candidate": pairs,
            "sensitivity": pairs,
            "floor": min(pairs, plan.design.floor_pairs),
            "control": min(pairs, plan.design.control_pairs),
        }
    fractions: tuple[float | None, ...] = (None,)
    if design == "screen" and plan.design.screen:
        fractions = plan.design.screen.fractions
    if design == "long_screen" and plan.design.screen:
        fractions = (plan.design.screen.long_fraction,)
    return tuple(
        _train_job(plan, design, arm, pair, fraction)  # type: ignore[arg-type]
        for fraction in fractions
        for arm, number in arms.items()
        for pair in range(number)
    )


def _pairs(plan: Plan, design: DesignName) -> int:
    if design in ("screen", "long_screen") and plan.design.screen:
        return plan.design.screen.data_orders
    chosen = plan.design.branch or plan.design.scratch
    assert chosen is not None
    return chosen.pairs


def _train_job(plan: Plan, design: DesignName, arm: Arm, pair: int, fraction: float | None) -> Job:
    first, last, cooldown = _steps(plan, design, fraction)
    training = plan.training
    if design == "scratch":
        training = training.model_copy(update={"seed": training.seed + pair})
    precision = _precision(plan, arm)
    aa_test = arm == "candidate" and plan.candidate.recipe.kind == "bf16"
    is_fp8 = precision.recipe is not None and precision.recipe.kind != "bf16"
    task = Train(
        model=plan.model,
        data=plan.data,
        training=training,
        precision=precision,
        data_order=DataOrder(
            split="trunk" if design in ("scratch", "baseline") else "unseen", seed=0 if design == "baseline" else pair
        ),
        first_step=first,
        last_step=last,
        cooldown=cooldown,
        one_ulp=pair if arm == "floor" or aa_test else None,
        validate_at=(first, (first + last) // 2, last),
        validate_forwards=("bf16", "fp8") if is_fp8 else ("bf16",),
    )
    role = Role(design=design, arm=arm, pair=pair, fraction=fraction)
    start = TRUNK.model_copy(update={"step": first}) if first else None
    at = "" if fraction is None else f"-f{fraction:g}"
    return Job(task=task, start=start, device="cpu", label=f"{design}{at}-p{pair}-{arm}", role=role)


def _steps(plan: Plan, design: DesignName, fraction: float | None) -> tuple[int, int, Cooldown | None]:
    num_steps = plan.training.num_steps
    if design in ("screen", "long_screen") and plan.design.screen and fraction is not None:
        first, length = round(fraction * num_steps), plan.design.screen.num_steps
        length *= LONG_SCREEN_FACTOR if design == "long_screen" else 1
        return first, first + length, Cooldown(start=first, num_steps=length)
    if design == "branch" and plan.design.branch:
        return round(plan.design.branch.at * num_steps), num_steps, None
    return 0, num_steps, None


def _precision(plan: Plan, arm: Arm) -> Precision:
    if arm == "candidate" and plan.candidate.recipe.kind != "bf16":
        return Precision(backend="emulated", recipe=plan.candidate.recipe, keep_bf16=plan.candidate.keep_bf16)
    if arm == "control":
        return Precision(backend="emulated", recipe=None, keep_bf16=plan.candidate.keep_bf16)
    if arm == "sensitivity":
        return Precision(backend="emulated", recipe=plan.design.sensitivity, keep_bf16=plan.candidate.keep_bf16)
    return Precision()


def make_records(jobs: Iterable[Job], scenario: Scenario, seed: int = 0) -> dict[str, Record]:
    """Records by job digest. Runs named in `scenario.missing` leave none."""
    records = {}
    for job in jobs:
        if not _chosen(job, scenario.missing):
            records[job.digest] = record_of(job, scenario, seed)
    return records


def _chosen(job: Job, names: Iterable[RunName]) -> bool:
    role = job.role
    return any((arm, pair) == (role.arm, role.pair) and fraction in (None, role.fraction) for arm, pair, fraction in names)


def _of(job: Job, entries: Iterable[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    return next((entry for entry in entries if _chosen(job, (entry[0],))), None)


def _generator(seed: int, *key: object) -> np.random.Generator:
    digest = hashlib.sha256(repr((seed, *key)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def expected_loss(steps: NDArray[Any]) -> NDArray[np.float64]:
    """The BF16 learning curve, nats per token, from ln 256 down."""
    return np.asarray(1.6 + (np.log(256) - 1.6) * (1 + steps / 15.0) ** -0.6, dtype=np.float64)


def record_of(job: Job, scenario: Scenario, seed: int) -> Record:
    assert isinstance(job.task, Train)
    steps = np.arange(job.task.first_step + 1, job.task.last_step + 1, dtype=np.int64)
    loss = _training_loss(job, scenario, seed, steps)
    outcome = Outcome(status="completed", last_step=job.task.last_step, exit_code=0, wall_seconds=1.0)
    if found := _of(job, scenario.silent_nan):
        loss[found[1] - 1] = np.nan
    if found := _of(job, scenario.non_finite):
        steps, loss = steps[: found[1]], loss[: found[1]].copy()
        loss[-1] = np.nan
        outcome = Outcome(status="failed", cause="non_finite", last_step=int(steps[-1]), exit_code=1)
    if found := _of(job, scenario.cut):
        steps, loss = steps[: found[1]], loss[: found[1]]
        outcome = Outcome(status="failed", cause=found[2], last_step=job.task.first_step + found[1], exit_code=1)
    grad_norm = np.full(steps.size, 0.0 if scenario.zero_gradients else 0.7)
    last = job.task.last_step
    series = {
        "loss": Series("loss", "nats per token", steps, _rounded(loss, scenario.digits), expected_last_step=last),
        "grad_norm": Series("grad_norm", "", steps, grad_norm, expected_last_step=last),
        "step_seconds": Series("step_seconds", "s", steps, np.full(steps.size, 0.25), expected_last_step=last),
    }
    return Record(
        key=job.digest,
        job=job,
        environment=environment(scenario.other_torch and job.role.arm == "candidate"),
        outcome=outcome,
        conversion=conversion_of(job, scenario),
        facts=_facts(job, scenario),
        series=series,
        evaluations=_evaluations(job, scenario, seed, outcome.last_step),
        directory=job.label,
    )


def _order(job: Job) -> int:
    """What both arms of a pair share: the data order."""
    assert isinstance(job.task, Train)
    return job.task.data_order.seed


def _offset(job: Job, scenario: Scenario, seed: int) -> float:
    """The pair's persistent relative offset from its baseline; the baseline itself has none."""
    arm = job.role.arm
    if arm == "baseline":
        return 0.0
    factor = scenario.candidate_tau_factor if arm in ("candidate", "sensitivity") else 1.0
    # A run of 4K is another run than that of K: cooled otherwise from its first step, with an offset of its own.
    what = "long offset" if job.role.design == "long_screen" else "offset"
    return float(_generator(seed, arm, job.role.pair, job.role.fraction, what).normal(0, scenario.tau * factor))


def _true_gap(job: Job, scenario: Scenario, progress: NDArray[np.float64]) -> NDArray[np.float64]:
    """Relative gap of the arm over its run; progress in (0, 1]."""
    arm = job.role.arm
    gaps = {"candidate": scenario.gap, "control": scenario.control_gap, "sensitivity": scenario.sensitivity_gap}
    gap = np.full(progress.shape, gaps.get(arm, 0.0))
    if arm == "candidate":
        gap = gap + (scenario.long_gap if job.role.design == "long_screen" else 0.0)
        gap = gap + scenario.drift_per_e_fold * np.log(progress)
        if scenario.diverges_at is not None:
            gap = gap + np.clip(progress - scenario.diverges_at, 0, None)
    return gap


def _penalty(job: Job, scenario: Scenario) -> float:
    return scenario.penalty if job.role.arm in ("candidate", "sensitivity") and not scenario.identical else 0.0


def _baseline_loss(job: Job, scenario: Scenario, seed: int, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    order = _generator(seed, _order(job), job.role.fraction, "data")
    if scenario.flat_baseline:
        return np.full(steps.size, np.log(256))
    return expected_loss(steps) + order.normal(0, scenario.data_sd_nats, steps.size)


def _training_loss(job: Job, scenario: Scenario, seed: int, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    loss = _baseline_loss(job, scenario, seed, steps)
    progress = np.arange(1, steps.size + 1) / steps.size
    if scenario.shared_spikes:
        loss[_spike_places(steps.size, scenario.shared_spikes)] += 3.0
    if job.role.arm == "baseline" or (scenario.identical and job.role.arm == "candidate"):
        return loss
    early = 1 + (scenario.early_factor - 1) * np.exp(-progress / 0.05)
    relative = _true_gap(job, scenario, progress) + _penalty(job, scenario) + _offset(job, scenario, seed) * early
    white = _generator(seed, job.role.arm, job.role.pair, job.role.fraction, "steps")
    loss = loss * (1 + relative) + white.normal(0, scenario.step_sd_nats, steps.size)
    if job.role.arm == "candidate" and scenario.candidate_spikes:
        loss[_spike_places(steps.size, scenario.candidate_spikes) + 20] += 3.0
    return loss


def _spike_places(num_steps: int, number: int) -> NDArray[np.int64]:
    """Steps (from 0) after the detector's 128 steps of history, at least 55 apart where the run is long enough."""
    return np.linspace(140, num_steps - 25, number).astype(np.int64)


def _rounded(values: NDArray[np.float64], digits: int | None) -> NDArray[np.float64]:
    return values if digits is None else np.array([float(f"{value:.{digits}g}") for value in values])


def _evaluations(job: Job, scenario: Scenario, seed: int, reached: int) -> tuple[Evaluation, ...]:
    assert isinstance(job.task, Train)
    first, length = job.task.first_step, job.task.last_step - job.task.first_step
    found = []
    for step in job.task.validate_at:
        if step > reached:
            continue
        progress = np.array([max((step - first) / length, 0.5 / length)])
        relative = float(_true_gap(job, scenario, progress)[0]) + _offset(job, scenario, seed)
        if step == first or (scenario.identical and job.role.arm == "candidate"):
            relative = 0.0
        for forward in job.task.validate_forwards:
            extra = _penalty(job, scenario) if forward == "fp8" else 0.0
            found.append(_evaluation(job, scenario, seed, step, forward, (1 + relative) * (1 + extra)))
    return tuple(found)


def _evaluation(job: Job, scenario: Scenario, seed: int, step: int, forward: Any, ratio: float) -> Evaluation:
    """Documents of unequal difficulty; the candidate's gap differs between them with SD `document_sd`."""
    level = np.log(256) if scenario.flat_baseline else float(expected_loss(np.array([step]))[0])
    difficulty = _generator(0, "documents").normal(1, 0.1, DOCUMENTS)
    own = 1.0 if scenario.flat_baseline else _generator(seed, _order(job), job.role.fraction, "level").normal(1, 0.003)
    nll = DOCUMENT_TOKENS * level * own * difficulty
    assert isinstance(job.task, Train)
    same = job.role.arm == "baseline" or (scenario.identical and job.role.arm == "candidate")
    if not same and step != job.task.first_step:
        effect = _generator(seed, job.role.arm, job.role.fraction, "documents")
        effect = effect.normal(0, scenario.document_sd, DOCUMENTS)
        nll = nll * ratio * (1 + effect)
    mismatch = scenario.different_documents and job.role.arm == "candidate"
    tokens = int(DOCUMENT_TOKENS.sum())
    loss = float(_rounded(np.array([nll.sum() / tokens]), scenario.digits)[0])
    return Evaluation(step, forward, loss, tokens, nll, DOCUMENT_TOKENS, "other" if mismatch else "documents")


def _facts(job: Job, scenario: Scenario) -> dict[str, Any]:
    task = job.task
    assert isinstance(task, Train)
    order = (task.data_order.split, task.data_order.seed, scenario.different_data and job.role.arm == "candidate")
    return {
        "initial_weights_sha256": hashlib.sha256(repr((task.training.seed, job.start, task.one_ulp)).encode()).hexdigest(),
        "data_sha256": hashlib.sha256(repr(order).encode()).hexdigest(),
        "parameters": PARAMETERS,
        "data_passes": scenario.data_passes,
    }


def conversion_of(job: Job, scenario: Scenario) -> Conversion | None:
    task = job.task
    assert isinstance(task, Train | ForwardCheck | OneStep)
    recipe = task.precision.recipe
    if recipe is None:
        return None
    share = scenario.coverage
    layers = (
        LayerConversion(
            name="layers.0.mlp.up", shape=(1408, 512), flops_share=share, gemms=GEMMS if share > 0 else (), reason=recipe.kind
        ),
        LayerConversion(name="lm_head", shape=(256, 512), flops_share=1 - share, reason="keep_bf16: lm_head"),
    )
    return Conversion(
        requested=recipe.kind,
        effective=recipe.kind if share > 0 else "bf16",
        layers=layers,
        fp8_flops_share=share,
        quantized_tensors=scenario.quantized_tensors,
    )


def environment(other_torch: bool = False) -> Environment:
    """One machine; `other_torch` is the same machine with another torch."""
    return Environment(
        fp8migrate="0.1.0",
        source_sha256="f" * 64,
        python="3.11.9",
        torch="2.12.0" if other_torch else "2.13.0",
        device="cpu",
        device_name="x86 CPU",
        compute_capability=None,
        cpu_capability="AVX512",
        bf16_gemm="float32 over BF16-rounded operands",
        data_sha256="d" * 64,
        data_tokens=20_000_000,
    )


def _integration_jobs(plan: Plan) -> tuple[Job, ...]:
    precision = _precision(plan, "candidate")
    common = {
        "model": plan.model,
        "data": plan.data,
        "training": plan.training,
        "precision": precision,
        "data_order": DataOrder(split="unseen", seed=0),
    }
    start = TRUNK.model_copy(update={"step": plan.training.num_steps})
    tasks = (ForwardCheck(**common), OneStep(**common))
    role = Role(design="integration", arm="candidate")
    return tuple(Job(task=task, start=start, device="cpu", label=f"integration-{task.kind}", role=role) for task in tasks)


SOUND_TABLES: dict[str, tuple[dict[str, Any], ...]] = {
    "logits": ({"kl_nats": 0.004, "top1_agreement": 0.97, "loss_bf16": 2.0, "loss_fp8": 2.005, "tokens": 65536},),
    "outputs": tuple(
        {"name": f"layers.{i}", "sqnr_db": 26.0 - i, "cosine": 0.999, "reference_norm": 10.0, "fp8_norm": 10.0, "finite": True}
        for i in range(4)
    ),
    "gradients": tuple(
        {
            "name": f"layers.{i}.mlp.up.weight",
            "sqnr_db": 18.0 - i,
            "cosine": 0.99,
            "reference_norm": 0.5,
            "fp8_norm": 0.5,
            "finite": True,
        }
        for i in range(4)
    ),
    "layers": tuple(
        {
            "name": f"layers.{i}.mlp.up: {gemm}",
            "layer": f"layers.{i}.mlp.up",
            "gemm": gemm,
            "sqnr_db": 28.0 - i,
            "cosine": 0.999,
            "reference_norm": 2.0,
            "fp8_norm": 2.0,
            "finite": True,
        }
        for i in range(4)
        for gemm in GEMMS
    ),
    "equalities": (
        {"name": "resume", "mismatches": []},
        {"name": "accumulation", "fp8_error": 0.02, "bf16_error": 0.004},
    ),
}


def integration_records(
    plan: Plan, scenario: Scenario | None = None, tables: dict[str, tuple[dict[str, Any], ...]] | None = None
) -> tuple[tuple[Job, ...], dict[str, Record]]:
    """The two integration jobs and their records; `tables` replaces some of the sound tables by name."""
    scenario = scenario or Scenario()
    jobs = make_jobs(plan, "integration")
    left = {**SOUND_TABLES, **(tables or {})}
    by_kind = {"forward_check": ("logits", "outputs"), "one_step": ("gradients", "layers", "equalities")}
    records = {}
    for job in jobs:
        found = {name: left[name] for name in by_kind[job.task.kind] if name in left}
        outcome = Outcome(status="completed", last_step=0, exit_code=0, wall_seconds=1.0)
        if failed := _of(job, scenario.cut):
            found, outcome = {}, Outcome(status="failed", cause=failed[2], exit_code=1)
        records[job.digest] = Record(
            key=job.digest,
            job=job,
            environment=environment(),
            outcome=outcome,
            conversion=conversion_of(job, scenario),
            facts={},
            series={},
            evaluations=(),
            tables=found,
            directory=job.label,
        )
    return jobs, records


def without_table(name: str) -> dict[str, tuple[dict[str, Any], ...]]:
    """For `integration_records`: the job ran but left no such table."""
    return {name: ()}


def changed(scenario: Scenario, **changes: Any) -> Scenario:
    """`dataclasses.replace`, so that tests need one import."""
    return replace(scenario, **changes)
