"""The numbers of one cell of a comparison: mean gap, one-sided bounds (PARITY.md 4), and the margin it is held against."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.schema import Cell, Comparison, Endpoint
from fp8migrate.jobs import Arm, DesignName

ENDPOINT_ORDER: tuple[Endpoint, ...] = (
    "validation_loss",
    "validation_loss_fp8",
    "logged_validation_loss",
    "training_loss",
    "forward_penalty",
)
ARM_ORDER: tuple[Arm, ...] = ("candidate", "control", "floor", "sensitivity")


@dataclass(frozen=True, eq=False)
class Gap:
    """One cell, ready to be shown.

    lower, upper: None where fewer than two pairs give no interval. margin: None where the endpoint is shown and not judged.
    numbers: of the pairs, as their runs are called. planned: pairs that the design asked of the candidate at this start; None
    for other arms. sizes: runs of both arms where they are groups without pairs; each of `values` is then a candidate run
    against the baseline's mean.
    """

    design: DesignName
    arm: Arm
    endpoint: Endpoint
    fraction: float | None
    values: NDArray[np.float64]
    numbers: tuple[int, ...]
    mean: float
    lower: float | None
    upper: float | None
    margin: float | None
    sampling_error_known: bool
    planned: int | None = None
    sizes: tuple[int, int] | None = None

    @property
    def pairs(self) -> int:
        return int(self.values.size)

    @property
    def counted(self) -> str:
        """Pairs, and of how many where some are missing: a pair that broke off must not vanish from the sight."""
        if self.sizes is not None:
            return f"{self.sizes[0]} v {self.sizes[1]}"
        missing = self.planned is not None and self.pairs < self.planned
        return f"{self.pairs} of {self.planned}" if missing else str(self.pairs)

    @property
    def against_margin(self) -> str:
        """Where the interval lies; the checks decide, this only describes."""
        if self.margin is None or self.lower is None or self.upper is None:
            return ""
        if not (math.isfinite(self.lower) and math.isfinite(self.upper)):
            return "not finite"
        if self.lower > self.margin:
            return "above the margin"
        return "below the margin" if self.upper < self.margin else "spans the margin"


def gap(comparison: Comparison, cell: Cell) -> Gap:
    """Mean and one-sided 95 % bounds of a cell."""
    # A baseline loss of exactly zero is a broken run; it must show as NaN, not stop the report.
    values = np.array([d.value if d.baseline else np.nan for d in cell.deltas], dtype=np.float64)
    mean = float(np.mean(values)) if values.size else math.nan
    lower: float | None = None
    upper: float | None = None
    if values.size >= 2 or cell.groups is not None:
        found = cell.bounds if values.size and np.isfinite(values).all() else None
        lower, upper = (found.lower, found.upper) if found else (math.nan, math.nan)
        if found and found.n < 2:
            lower = upper = None
    return Gap(
        design=comparison.design,
        arm=cell.arm,
        endpoint=cell.endpoint,
        fraction=cell.fraction,
        values=values,
        numbers=tuple(d.pair for d in cell.deltas),
        mean=mean,
        lower=lower,
        upper=upper,
        margin=margin_of(comparison, cell.endpoint),
        sampling_error_known=cell.sampling_error is not None,
        planned=comparison.planned_pairs if cell.arm == "candidate" and cell.groups is None else None,
        sizes=None if cell.groups is None else (len(cell.groups[0]), len(cell.groups[1])),
    )


def margin_of(comparison: Comparison, endpoint: Endpoint) -> float | None:
    """The margin an endpoint is held against; None for one that is told and not judged.

    Of a long screen the growth of the gap is judged, which stands among the checks; the gap itself is told.
    """
    judged = comparison.design != "long_screen" and endpoint in comparison.primary
    return comparison.margin_of(endpoint) if judged else None


def gaps(comparison: Comparison) -> tuple[Gap, ...]:
    """All cells: by endpoint, then by start, then by arm."""
    found = [gap(comparison, cell) for cell in comparison.cells]

    def place(one: Gap) -> tuple[int, float, int]:
        start = -1.0 if one.fraction is None else one.fraction
        return ENDPOINT_ORDER.index(one.endpoint), start, ARM_ORDER.index(one.arm) if one.arm in ARM_ORDER else -1

    return tuple(sorted(found, key=place))


def deciding(comparison: Comparison, endpoint: Endpoint) -> Gap | None:
    """The candidate's worst start at an endpoint: the one with the highest upper bound, or mean where there is none."""
    candidates = [one for one in gaps(comparison) if one.arm == "candidate" and one.endpoint == endpoint and one.pairs]

    def badness(one: Gap) -> float:
        value = one.mean if one.upper is None else one.upper
        return math.inf if math.isnan(value) else value

    return max(candidates, key=badness, default=None)
