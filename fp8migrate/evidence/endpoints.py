"""Endpoints of a pair of runs: the losses that are compared, and their sampling error over held-out documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.schema import Cell, Delta, Endpoint
from fp8migrate.jobs import Arm, Forward, Job, Train
from fp8migrate.records.schema import Evaluation, Record, Series
from fp8migrate.statistics.clustered import clustered_error
from fp8migrate.statistics.robust import final_window, robust_mean

ENDPOINTS: tuple[Endpoint, ...] = ("validation_loss", "validation_loss_fp8", "training_loss", "forward_penalty")

# Forward of the reference and of the other side; the reference of forward_penalty is the other arm's own BF16 forward.
_FORWARDS: dict[Endpoint, tuple[Forward, Forward]] = {
    "validation_loss": ("bf16", "bf16"),
    "validation_loss_fp8": ("bf16", "fp8"),
    "forward_penalty": ("bf16", "fp8"),
}


@dataclass(frozen=True, eq=False)
class Pair:
    """Two records of one start and data order. `other` is the arm under comparison."""

    job: Job
    baseline: Record
    other: Record


def cell(arm: Arm, endpoint: Endpoint, fraction: float | None, pairs: Sequence[Pair]) -> Cell:
    """One endpoint over the pairs of one arm at one fraction. A pair that lacks it has no delta."""
    if endpoint == "training_loss":
        deltas = tuple(delta for pair in pairs if (delta := _training_delta(pair)))
        return Cell(arm, endpoint, fraction, deltas, None)
    found = [(pair.job.role.pair, *both) for pair in pairs if (both := _evaluations(pair, endpoint))]
    deltas = tuple(Delta(number, reference.loss, other.loss) for number, reference, other in found)
    return Cell(arm, endpoint, fraction, deltas, _sampling_error([(r, o) for _, r, o in found]))


def _evaluations(pair: Pair, endpoint: Endpoint) -> tuple[Evaluation, Evaluation] | None:
    """Reference and other evaluation at the run's last step."""
    assert isinstance(pair.job.task, Train)
    step = pair.job.task.last_step
    reference_forward, forward = _FORWARDS[endpoint]
    reference_record = pair.other if endpoint == "forward_penalty" else pair.baseline
    reference, other = reference_record.evaluation(reference_forward, step), pair.other.evaluation(forward, step)
    return (reference, other) if reference and other else None


def _sampling_error(found: Sequence[tuple[Evaluation, Evaluation]]) -> float | None:
    """s_val of the mean gap. Pairs on different documents: the mean of their own errors, which it cannot exceed."""
    if not found or any(not _same_documents(reference, other) for reference, other in found):
        return None
    if len({reference.documents_sha256 for reference, _ in found}) == 1:
        return clustered_error([r.document_nll for r, _ in found], [o.document_nll for _, o in found])
    errors = [clustered_error(reference.document_nll, other.document_nll) for reference, other in found]
    known = [error for error in errors if error is not None]
    return float(np.mean(known)) if len(known) == len(errors) else None


def _same_documents(reference: Evaluation, other: Evaluation) -> bool:
    return reference.documents_sha256 == other.documents_sha256 and reference.document_nll.shape == other.document_nll.shape


def _training_delta(pair: Pair) -> Delta | None:
    """Robust means of the final window, on the steps that both arms logged. None where either arm stopped before its end."""
    losses = pair.baseline.series.get("loss"), pair.other.series.get("loss")
    if losses[0] is None or losses[1] is None or not (_reaches_end(losses[0], pair.job) and _reaches_end(losses[1], pair.job)):
        return None
    baseline, other = shared_steps(losses[0], losses[1])
    window = final_window(baseline.size)
    return Delta(pair.job.role.pair, robust_mean(baseline[window]), robust_mean(other[window]))


def _reaches_end(loss: Series, job: Job) -> bool:
    assert isinstance(job.task, Train)
    return loss.steps.size > 0 and int(loss.steps[-1]) >= job.task.last_step


def shared_steps(left: Series, right: Series) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of two series on the steps that both have."""
    if np.array_equal(left.steps, right.steps):
        return left.values, right.values
    _, in_left, in_right = np.intersect1d(left.steps, right.steps, assume_unique=True, return_indices=True)
    return left.values[in_left], right.values[in_right]
