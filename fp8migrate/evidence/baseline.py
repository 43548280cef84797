"""The BF16 run as found: its curve, whether it learned, the floor, convergence, speed and memory."""

from collections.abc import Mapping, Sequence
from math import log

import numpy as np

from fp8migrate.evidence.advice import advice
from fp8migrate.evidence.endpoints import Pair, cell
from fp8migrate.evidence.runs import run_fact
from fp8migrate.evidence.schema import BaselineEvidence, Delta
from fp8migrate.jobs import Job, Train
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Record, Series
from fp8migrate.sizing.keep import kept_layers
from fp8migrate.statistics.robust import trailing_mean
from fp8migrate.statistics.spikes import spike_events, spike_steps

# Losses at which convergence is told, as multiples of the final smoothed loss.
CONVERGENCE_LEVELS = (1.5, 1.25, 1.1, 1.05, 1.02)
_SMOOTHING_SHARE, _LEAST_SMOOTHING = 0.01, 10


def baseline_evidence(plan: Plan, jobs: Sequence[Job], records: Mapping[str, Record]) -> BaselineEvidence:
    """What the BF16 runs among `jobs` show. records: by job digest. Curves are the first baseline run's."""
    runs = [(job, records.get(job.digest)) for job in jobs if job.role.design == "baseline" and isinstance(job.task, Train)]
    main = next(((job, record) for job, record in runs if job.role.arm == "baseline" and record), None)
    facts = tuple(run_fact(job, record) for job, record in runs)
    passes = [float(record.facts["data_passes"]) for _, record in runs if record and "data_passes" in record.facts]
    if main is None:
        return BaselineEvidence(facts, None, None, None, None, log(plan.model.vocab_size))
    job, record = main
    loss = record.series.get("loss")
    return BaselineEvidence(
        runs=facts,
        loss=loss,
        grad_norm=record.series.get("grad_norm"),
        final_validation_loss=_validation(job, record, last=True),
        initial_validation_loss=_validation(job, record, last=False),
        uniform_loss=log(plan.model.vocab_size),
        floor=_floor(runs),
        spikes=0 if loss is None else len(spike_events(spike_steps(loss.values))),
        tokens_to_loss=() if loss is None else tokens_to_loss(loss, _tokens_per_step(job)),
        tokens_per_second=_tokens_per_second(job, record),
        peak_memory_bytes=record.facts.get("peak_memory_bytes"),
        data_passes=max(passes, default=1.0),
        margin=plan.parity.margin_fraction,
        advice=advice(job, record, _kept(plan), plan.candidate.recipe, plan.candidate.odd_shapes),
    )


def _kept(plan: Plan) -> tuple[str, ...]:
    """Filters and layers that the plan keeps in BF16 whatever the advisor says."""
    candidate = plan.candidate
    return (*candidate.keep_bf16, *(name for name, _ in kept_layers(candidate, plan.model, plan.model)))


def _validation(job: Job, record: Record, *, last: bool) -> float | None:
    """Held-out loss under a BF16 forward after the last step, or before the first."""
    assert isinstance(job.task, Train)
    found = record.evaluation("bf16", job.task.last_step if last else job.task.first_step)
    return None if found is None else found.loss


def _floor(runs: Sequence[tuple[Job, Record | None]]) -> tuple[Delta, ...]:
    """BF16 + 1 ulp against BF16, at the validation loss. A floor pair without a baseline of its number takes the first."""
    baselines = {job.role.pair: record for job, record in runs if job.role.arm == "baseline" and record}
    if not baselines:
        return ()
    first = baselines[min(baselines)]
    pairs = [
        Pair(job, baselines.get(job.role.pair, first), record) for job, record in runs if job.role.arm == "floor" and record
    ]
    return cell("floor", "validation_loss", None, pairs).deltas


def tokens_to_loss(loss: Series, tokens_per_step: int) -> tuple[tuple[float, int], ...]:
    """(loss, tokens at which the smoothed training loss first fell to it), from the highest loss down.

    Smoothed: mean of the last 1 % of the steps, at least 10.
    """
    values, finite = loss.values, np.isfinite(loss.values)
    if values.size < _LEAST_SMOOTHING or not finite.all():
        return ()
    smooth = trailing_mean(values, max(_LEAST_SMOOTHING, round(_SMOOTHING_SHARE * values.size)))
    found = []
    for level in (round(float(smooth[-1]) * multiple, 2) for multiple in CONVERGENCE_LEVELS):
        reached = np.flatnonzero(smooth <= level)
        if reached.size and reached[0] > 0:
            found.append((level, int(loss.steps[reached[0]]) * tokens_per_step))
    return tuple(found)


def _tokens_per_step(job: Job) -> int:
    assert isinstance(job.task, Train)
    return job.task.training.tokens_per_step


def _tokens_per_second(job: Job, record: Record) -> float | None:
    if "tokens_per_second" in record.facts:
        return float(record.facts["tokens_per_second"])
    seconds = record.series.get("step_seconds")
    if seconds is None or seconds.values.size == 0:
        return None
    return _tokens_per_step(job) / float(np.median(seconds.values))
