"""How each logged run ended, and what it lacks."""

from collections.abc import Sequence

import numpy as np

from fp8migrate.evidence.schema import Obstacle, RunFact
from fp8migrate.jobs import Arm
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from fp8migrate.records.schema import Cause, Outcome

# Of the distances between points, the share that must be the same before one that is missing can be told.
REGULAR_SHARE = 0.9
# A resume logs the same steps again; where the loss had been this far above, the run was rolled back to be rid of it.
ROLLED_BACK = 0.05
# A schedule has decayed when its last rate is at most this share of its highest.
DECAYED_SHARE = 0.5


def unique_names(records: Sequence[LogRecord]) -> tuple[str, ...]:
    """Names without the folders that all have in common; numbered where two are the same."""
    parts = [record.name.split("/") for record in records]
    common = 0
    while all(len(part) > common + 1 and part[common] == parts[0][common] for part in parts):
        common += 1
    short = ["/".join(part[common:]) for part in parts]
    seen: dict[str, int] = {}
    found = []
    for name in short:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return tuple(found)


def reading_notes(record: LogRecord, name: str) -> list[str]:
    """What reading one log took that a reader of the verdict should know: resumes, lines and values that were no use."""
    found = []
    for series in record.losses:
        for overlap in series.overlaps[:3]:
            where = f"resumed at {step_words(overlap.first)}"
            found.append(f"{name}: {where}, {overlap.points} points of the {series.label} logged again, the later count")
        if series.disordered:
            found.append(f"{name}: steps of the {series.label} out of order, sorted")
    if record.not_understood:
        found.append(f"{name}: {record.not_understood} lines not understood")
    return [*found, *(f"{name}: {note}" for note in record.notes)]


def log_fact(
    record: LogRecord,
    arm: Arm,
    place: int,
    name: str,
    curve: Quantity,
    primary: Sequence[Quantity],
    extent: tuple[float, float],
    shift: float,
    final_loss: float | None,
) -> RunFact:
    """One run. curve: the loss whose points tell how far it came. extent: first and last step of any run of the comparison,
    all counting alike; shift: what this one's steps lack for that.
    """
    longest = extent[1]
    loss = record.series.get(curve)
    common = (arm, place, None, name, name)
    if loss is None or not loss.steps.size:
        return RunFact(*common, None, round(longest), record.source, fault=f"has no {curve.replace('_', ' ')}")
    last, expected = float(loss.steps[-1]), max(longest, record.expected_last_step or 0.0)
    outcome = Outcome(status="completed", last_step=int(last))
    fault = _fault(record, loss, primary, (extent[0] - shift, longest - shift))
    # A traceback after the last step is a program that ended badly, not a run that did.
    if failure := record.failure or (record.crash if fault else ""):
        outcome = Outcome(status="failed", cause=_cause(failure), detail=failure, last_step=int(last))
    grad_norm = record.series.get("grad_norm")
    return RunFact(
        *common,
        outcome,
        round(expected),
        record.source,
        non_finite_at=_first_non_finite(record),
        constant_loss=bool(loss.values.size > 1 and (loss.values == loss.values[0]).all()),
        zero_gradients=bool(grad_norm is not None and grad_norm.values.size and (grad_norm.values == 0).all()),
        final_loss=final_loss,
        fault=fault,
    )


def _cause(failure: str) -> Cause:
    return "out_of_memory" if "memory" in failure.lower() else "error"


def _first_non_finite(record: LogRecord) -> int | None:
    """First step of a NaN or Inf in a loss or the gradient norm, also one that a resume wrote over: a run that was rolled back
    went NaN all the same. An Inf gradient norm of a skipped step counts as well.
    """
    found: list[float] = [
        overlap.non_finite for series in record.series.values() for overlap in series.overlaps if overlap.non_finite is not None
    ]
    watched: tuple[Quantity, ...] = ("training_loss", "validation_loss", "grad_norm")
    for quantity in watched:
        if (series := record.series.get(quantity)) is not None:
            found += series.steps[~np.isfinite(series.values)][:1].tolist()
    return int(min(found)) if found else None


def _fault(record: LogRecord, loss: LogSeries, primary: Sequence[Quantity], extent: tuple[float, float]) -> str:
    """What the log lacks, in words; empty where it is whole. extent: as the log itself counts."""
    earliest, longest = extent
    interval = loss.interval or 1.0
    last, own_end = float(loss.steps[-1]), record.expected_last_step or 0.0
    # A log that counts from 0 ends one step before the number of steps.
    from_zero = 1.0 if loss.steps[0] == 0 else 0.0
    if own_end - last >= interval + from_zero:
        return f"cut short at {step_words(last + interval)} of {step_words(own_end)} (its last loss is at {step_words(last)})"
    if longest - last >= interval * (1 - 1e-9):
        return f"runs of unequal length: ends at {step_words(last)}, the longest at {step_words(longest)}"
    if float(loss.steps[0]) - earliest >= interval * (1 - 1e-9):
        return f"begins at {step_words(float(loss.steps[0]))}, where others begin at {step_words(earliest)}"
    if (missing := _missing_between(loss)) > 0:
        return f"{missing} points without a loss in between"
    return _spoilt(loss) or _lacking(record, last, primary)


def _spoilt(loss: LogSeries) -> str:
    """What is in a loss and cannot be, or was taken out of it by going back."""
    if (below := np.flatnonzero(loss.values <= 0)).size:
        return f"a loss of {loss.values[below[0]]:g} at {step_words(float(loss.steps[below[0]]))}, which no loss can be"
    for overlap in loss.overlaps:
        if overlap.excess is not None and overlap.excess > ROLLED_BACK:
            where = f"from {step_words(overlap.last)} to {step_words(overlap.first)}"
            return f"rolled back {where}, where its loss was {100 * overlap.excess:.0f} % above what counts now"
    return ""


def _lacking(record: LogRecord, last: float, primary: Sequence[Quantity]) -> str:
    """An endpoint that is missing, or older than it should be."""
    for quantity in primary:
        series = record.series.get(quantity)
        if series is None or not series.steps.size:
            return f"has no {quantity.replace('_', ' ')}"
        if quantity == "validation_loss" and last - float(series.steps[-1]) >= (series.interval or np.inf):
            return f"last validated at {step_words(float(series.steps[-1]))} of {step_words(last)}"
    return ""


def step_words(step: float) -> str:
    """1444.0 as `1444`, 0.91 (an epoch) as it is."""
    return f"{step:.0f}" if step.is_integer() else f"{step:g}"


def _missing_between(loss: LogSeries) -> int:
    """Points that lack at the log's own interval; 0 where it has no regular one."""
    if loss.steps.size < 3 or loss.axis == "epochs":
        return 0
    distances = np.diff(loss.steps)
    regular = np.abs(distances - (loss.interval or 1.0)) < 0.01 * (loss.interval or 1.0)
    return loss.gaps if regular.mean() >= REGULAR_SHARE else 0


def schedule_obstacle(records: Sequence[LogRecord], names: Sequence[str]) -> Obstacle | None:
    """A run whose learning rate has not come down: the loss of such a run still falls when it does."""
    for record, name in zip(records, names, strict=False):
        rate = record.series.get("learning_rate")
        if rate is None or rate.values.size < 2 or not np.isfinite(rate.values).all() or rate.values.max() <= 0:
            continue
        share = float(rate.values[-1] / rate.values.max())
        if share > DECAYED_SHARE:
            what = (
                f"the learning rate of {name} ends at {100 * share:.0f} % of its highest: not the end of a schedule "
                "(--attest schedule='WHO: why' where it is meant so)"
            )
            return Obstacle("TRUNCATED", what)
    return None
