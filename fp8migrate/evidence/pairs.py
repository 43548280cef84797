"""Records of one design → a Comparison: pairs, endpoints, curves, the audit, and how every planned run ended."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np

from fp8migrate.evidence.endpoints import ENDPOINTS, Pair, cell
from fp8migrate.evidence.runs import run_fact
from fp8migrate.evidence.schema import Cell, Comparison, Endpoint, PairCurves
from fp8migrate.jobs import Arm, DesignName, Job, Precision, Train
from fp8migrate.plan.audit import AuditRow, audit, merge
from fp8migrate.plan.schema import Candidate, Plan
from fp8migrate.records.schema import Conversion, Record
from fp8migrate.sizing.keep import Kept, advised_names

COMPARED_ARMS: tuple[Arm, ...] = ("candidate", "control", "floor", "sensitivity")

# Facts of a run that name its inputs; the others are measurements (memory, speed) and may differ.
IDENTITY_FACTS = ("data_sha256", "initial_weights_sha256", "parameters")

# Nine significant digits tell any two float32 values apart: a loss that carries them has full precision.
FULL_DIGITS = 9
_DIGIT_SAMPLES = 64

PairKey = tuple[Arm, float | None]


def compare(plan: Plan, design: DesignName, jobs: Sequence[Job], records: Mapping[str, Record]) -> Comparison:
    """Pair the runs of `design`. records: by job digest; one record may serve several roles.

    Nothing is dropped: a run that is missing, cut or not finite stands in `runs`, and where an endpoint does not exist there
    is no delta.
    """
    runs = [(job, records.get(job.digest)) for job in jobs if job.role.design == design and isinstance(job.task, Train)]
    chosen, left = [job for job, _ in runs], [record for _, record in runs if record]
    fractions = _fractions(plan, design, chosen)
    pairs = _pairs(runs, fractions)
    candidates = [pair for (arm, _), found in pairs.items() if arm == "candidate" for pair in found]
    first, last, tokens = _extent(chosen)
    return Comparison(
        design=design,
        margin=plan.parity.margin_fraction,
        serve=plan.parity.serve,
        serve_margin=plan.parity.serve_margin_fraction,
        require_fp8=plan.parity.require_fp8,
        planned_pairs=planned_pairs(plan, design),
        planned_sensitivity=any(job.role.arm == "sensitivity" for job in chosen),
        fractions=fractions,
        cells=_cells(pairs),
        curves=tuple(curves for found in pairs.values() for pair in found if (curves := _curves(pair))),
        runs=tuple(run_fact(job, record) for job, record in runs),
        audit=merge([audit_pair(pair) for pair in candidates]),
        conversion=_least_converted([pair.other for pair in candidates]),
        environment=left[0].environment if left else None,
        emulated=any(precision_of(job).backend == "emulated" for job in chosen if job.role.arm == "candidate"),
        identical_pairs=sum(_identical(pair) for pair in candidates),
        data_passes=max((float(record.facts.get("data_passes", 1.0)) for record in left), default=1.0),
        step_digits=_digits(candidates),
        recipe=describe_recipe(plan, next((precision_of(job).kept for job in chosen if job.role.arm == "candidate"), ())),
        model=describe_model(plan, left),
        tokens=tokens,
        decayed=all(_decays(job) for job in chosen if job.role.arm in ("baseline", "candidate")),
        primary=_primary(plan, chosen),
        uniform_loss=log(plan.model.vocab_size),
        first_step=first,
        last_step=last,
    )


def planned_pairs(plan: Plan, design: DesignName) -> int:
    """Pairs per fraction that the plan asks for."""
    if design in ("screen", "long_screen"):
        return plan.design.screen.data_orders if plan.design.screen else 0
    chosen = plan.design.branch if design == "branch" else plan.design.scratch
    return chosen.pairs if chosen else 0


def _fractions(plan: Plan, design: DesignName, jobs: Sequence[Job]) -> tuple[float | None, ...]:
    """The design's starts. A screen's come from the plan, so that a fraction without jobs is missed."""
    screen = plan.design.screen
    if screen and design in ("screen", "long_screen"):
        return screen.fractions if design == "screen" else (screen.long_fraction,)
    found = {job.role.fraction for job in jobs}
    return tuple(sorted(found, key=lambda fraction: fraction or 0.0)) or (None,)


def _pairs(runs: Sequence[tuple[Job, Record | None]], fractions: Sequence[float | None]) -> dict[PairKey, list[Pair]]:
    """Pairs of which both runs left a record, by arm and fraction, in the order of their numbers."""
    baselines = {(job.role.fraction, job.role.pair): record for job, record in runs if job.role.arm == "baseline"}
    pairs: dict[PairKey, list[Pair]] = {(arm, fraction): [] for arm in COMPARED_ARMS for fraction in fractions}
    for job, record in sorted(runs, key=lambda run: run[0].role.pair):
        role = job.role
        baseline = baselines.get((role.fraction, role.pair))
        if record and baseline and (role.arm, role.fraction) in pairs:
            pairs[role.arm, role.fraction].append(Pair(job, baseline, record))
    return pairs


def _cells(pairs: Mapping[PairKey, Sequence[Pair]]) -> tuple[Cell, ...]:
    """Every arm, fraction and endpoint that has at least one delta."""
    cells = (cell(arm, endpoint, fraction, found) for (arm, fraction), found in pairs.items() for endpoint in ENDPOINTS)
    return tuple(found for found in cells if found.deltas)


def _curves(pair: Pair) -> PairCurves | None:
    baseline, other = pair.baseline.series.get("loss"), pair.other.series.get("loss")
    if baseline is None or other is None:
        return None
    role = pair.job.role
    return PairCurves(role.arm, role.pair, role.fraction, baseline, other, _train(pair.job).first_step)


def audit_pair(pair: Pair) -> tuple[AuditRow, ...]:
    """Baseline against candidate: the task, where it started, its inputs as hashed by the run, and the environment.

    An A/A candidate starts one ulp away from its baseline, so its initial weights are meant to differ.
    """
    recipe = precision_of(pair.job).recipe
    aa_test = recipe is None or recipe.kind == "bf16"
    return audit(
        _settings(pair.baseline, pair),
        _settings(pair.other, pair),
        required=(*(f"facts.{name}" for name in IDENTITY_FACTS), "validation.documents_sha256"),
        expected=("task.one_ulp", "facts.initial_weights_sha256") if aa_test else (),
    )


def _settings(record: Record, pair: Pair) -> dict[str, Any]:
    """All that is known of one side. A variable that only the other side has set is known: it is not set."""
    last = _train(pair.job).last_step
    documents = sorted({e.documents_sha256 for e in record.evaluations if e.step == last})
    unset = dict.fromkeys([*pair.baseline.environment.variables, *pair.other.environment.variables], "not set")
    environment = record.environment.model_dump(mode="json")
    return {
        **record.job.model_dump(mode="json", exclude={"label", "role"}),
        "environment": environment | {"variables": unset | environment["variables"]},
        "facts": {name: record.facts[name] for name in IDENTITY_FACTS if name in record.facts},
        "validation": {"documents_sha256": ", ".join(documents)} if documents else {},
    }


def _least_converted(records: Sequence[Record]) -> Conversion | None:
    """The conversion of the candidate run that proves least FP8; None where any of them left none."""
    found = [record.conversion for record in records]
    known = [conversion for conversion in found if conversion is not None]
    if not known or len(known) < len(found):
        return None
    return min(known, key=lambda conversion: conversion.proof)


def _identical(pair: Pair) -> bool:
    """Training losses equal bit for bit at every step."""
    baseline, other = pair.baseline.series.get("loss"), pair.other.series.get("loss")
    if baseline is None or other is None or baseline.steps.size == 0:
        return False
    return np.array_equal(baseline.steps, other.steps) and np.array_equal(baseline.values, other.values, equal_nan=True)


def _digits(pairs: Sequence[Pair]) -> int | None:
    """Significant digits that the losses of the pairs carry at most, in the run with fewest; None for full precision."""
    samples = []
    for record in (record for pair in pairs for record in (pair.baseline, pair.other)):
        samples.append([e.loss for e in record.evaluations[-1:]])
        if loss := record.series.get("loss"):
            samples.append(loss.values[-_DIGIT_SAMPLES:].tolist())
    least = min((significant_digits(values) for values in samples if values), default=FULL_DIGITS)
    return None if least >= FULL_DIGITS else least


def significant_digits(values: Sequence[float]) -> int:
    """Fewest significant digits that write all the values exactly, up to FULL_DIGITS."""
    finite = [value for value in values if np.isfinite(value)]
    for digits in range(1, FULL_DIGITS):
        if all(float(f"{value:.{digits}g}") == value for value in finite):
            return digits if finite else FULL_DIGITS
    return FULL_DIGITS


def _decays(job: Job) -> bool:
    """Whether the learning rate has come to the end of its schedule at the run's last step."""
    task = _train(job)
    if task.cooldown:
        return task.cooldown.start + task.cooldown.num_steps <= task.last_step
    return job.role.design not in ("screen", "long_screen") and task.last_step >= task.training.num_steps


def _primary(plan: Plan, jobs: Sequence[Job]) -> tuple[Endpoint, ...]:
    """Validation where every run of the two arms was asked for it at its last step, else the training loss (PARITY.md 3)."""
    tasks = [_train(job) for job in jobs if job.role.arm in ("baseline", "candidate")]
    if not all(task.last_step in task.validate_at for task in tasks):
        return ("training_loss",)
    return ("validation_loss", "validation_loss_fp8") if plan.parity.serve == "fp8" else ("validation_loss",)


def _extent(jobs: Sequence[Job]) -> tuple[int, int, int]:
    """First step, last step and tokens of the run that starts last."""
    tasks = [_train(job) for job in jobs]
    if not tasks:
        return 0, 0, 0
    task = max(tasks, key=lambda task: task.first_step)
    return task.first_step, task.last_step, (task.last_step - task.first_step) * task.training.tokens_per_step


def describe_recipe(plan: Plan, named: Kept = ()) -> str:
    """`delayed (format hybrid, amax_history_len 16, …); kept in BF16: lm_head`. named: layers kept for size or on advice."""
    candidate = plan.candidate
    settings = candidate.recipe.model_dump(exclude={"kind"})
    details = ", ".join(f"{name} {value}" for name, value in settings.items())
    kept = (
        f"; kept in BF16: {', '.join(candidate.keep_bf16)}" if candidate.keep_bf16 and candidate.recipe.kind != "bf16" else ""
    )
    rules = "".join(f"; {rule.in_words}" for rule in candidate.policy) + _choices(candidate, named)
    return f"{candidate.recipe.kind} ({details}){kept}{rules}" if details else f"{candidate.recipe.kind}{kept}{rules}"


def _choices(candidate: Candidate, named: Kept) -> str:
    """`; under 65536 weights: BF16; advised: BF16 for layers.0.mlp.down; odd shapes padded`"""
    words = []
    if candidate.keep_smaller_than is not None:
        words.append(f"under {candidate.keep_smaller_than} weights: BF16")
    if candidate.keep_advised:
        names = advised_names(named)
        words.append(f"advised: BF16 for {', '.join(names)}" if names else "advised: nothing to keep in BF16")
    if candidate.odd_shapes == "pad":
        words.append("odd shapes padded")
    return "".join(f"; {each}" for each in words)


def describe_model(plan: Plan, records: Sequence[Record]) -> str:
    """Kind, size and shape of the model that ran; its size where the runs told it."""
    tasks = [record.job.task for record in records]
    model = tasks[0].model if tasks else plan.model
    sizes = {record.facts["parameters"] for record in records if "parameters" in record.facts}
    size = f" with {int(max(sizes)):,} parameters" if sizes else ""
    return f"{model.kind}{size} ({model.num_layers} layers, hidden size {model.hidden_size})"


def precision_of(job: Job) -> Precision:
    return job.task.precision


def _train(job: Job) -> Train:
    assert isinstance(job.task, Train)
    return job.task
