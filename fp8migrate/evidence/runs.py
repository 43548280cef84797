"""How each planned run ended, and what can be read off it alone."""

import numpy as np

from fp8migrate.evidence.schema import RunFact
from fp8migrate.jobs import Job, Train
from fp8migrate.records.schema import Record, Series
from fp8migrate.statistics.robust import final_window, robust_mean


def run_fact(job: Job, record: Record | None) -> RunFact:
    """One planned run; `record` is None where it left nothing."""
    task, role = job.task, job.role
    common = (role.arm, role.pair, role.fraction, job.label)
    last = task.last_step if isinstance(task, Train) else 0
    if record is None:
        return RunFact(*common, job.digest, None, last, "")
    loss = record.series.get("loss")
    return RunFact(
        *common,
        record.key,
        record.outcome,
        last,
        record.directory,
        non_finite_at=first_non_finite(record),
        missing_steps=missing_steps(loss, task.first_step, record.outcome.last_step) if isinstance(task, Train) else 0,
        constant_loss=_is_constant(loss),
        zero_gradients=_is_zero(record.series.get("grad_norm")),
        final_loss=final_loss(loss),
        validated=tuple(e.forward for e in record.evaluations if e.step == last),
    )


def first_non_finite(record: Record) -> int | None:
    """First step with a NaN or Inf in the training loss, the gradient norm or a validation loss."""
    steps = [e.step for e in record.evaluations if not np.isfinite(e.loss)]
    for name in ("loss", "grad_norm"):
        if series := record.series.get(name):
            steps += series.steps[~np.isfinite(series.values)][:1].tolist()
    return min(steps) if steps else None


def missing_steps(loss: Series | None, first_step: int, last_step: int) -> int:
    """Points that the loss lacks between first_step (exclusive) and last_step, at the spacing it was logged with."""
    length = last_step - first_step
    if loss is None or loss.steps.size == 0:
        return length
    spacing = int(np.diff(loss.steps).min()) if loss.steps.size > 1 else 1
    return max(0, length // spacing - int(loss.steps.size))


def final_loss(loss: Series | None) -> float | None:
    """Robust mean of the final window of the training loss; None without a finite one."""
    if loss is None or loss.values.size == 0:
        return None
    value = robust_mean(loss.values[final_window(loss.values.size)])
    return value if np.isfinite(value) else None


def _is_constant(loss: Series | None) -> bool:
    return loss is not None and loss.values.size > 1 and bool((loss.values == loss.values[0]).all())


def _is_zero(grad_norm: Series | None) -> bool:
    return grad_norm is not None and grad_norm.values.size > 0 and bool((grad_norm.values == 0).all())
