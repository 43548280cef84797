"""A run as read from somebody's log: series, settings, what was understood, and what was not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

# What a log can tell that we compare. Losses: nats per token unless `unit` says otherwise. step_seconds: of one step.
Quantity = Literal[
    "training_loss",
    "validation_loss",
    "grad_norm",
    "learning_rate",
    "step_seconds",
    "tokens_per_second",
    "samples_per_second",
    "memory_bytes",
    "loss_scale",
]
# What the x values of a series count. points: the log names none, so its rows were numbered from 1.
Axis = Literal["steps", "samples", "tokens", "epochs", "points"]


@dataclass(frozen=True)
class Overlap:
    """Steps that a log holds twice because the run was resumed: the later values count. first, last: as logged.

    non_finite: the first of the replaced points that was NaN or Inf. excess: by how much the last ten of them lay above what
    counts at the same steps, relative, as a median; None where there is nothing to compare.
    """

    first: float
    last: float
    points: int
    non_finite: float | None = None
    excess: float | None = None


@dataclass(frozen=True, eq=False)
class LogSeries:
    """One quantity of one run. `steps` rise strictly, float because samples and epochs need not be whole.

    label: its name in the log. digits: significant digits that the values were written with, None for full precision.
    averaging: how the log smoothed it, "" where each value is of its own step. overlaps, repeated, disordered: points
    that a resume wrote again, points that stood twice in a row at the same step, and steps back that no resume explains.
    """

    name: Quantity
    label: str
    unit: str
    axis: Axis
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    digits: int | None = None
    averaging: str = ""
    overlaps: tuple[Overlap, ...] = ()
    repeated: int = 0
    disordered: int = 0

    @cached_property
    def interval(self) -> float | None:
        """The most frequent distance of two points, None with fewer than two."""
        if self.steps.size < 2:
            return None
        gaps, counts = np.unique(np.diff(self.steps), return_counts=True)
        return float(gaps[counts.argmax()])

    @cached_property
    def gaps(self) -> int:
        """Points that lack between the first and the last, at the series' own interval."""
        step = self.interval
        if not step:
            return 0
        return max(0, round((float(self.steps[-1]) - float(self.steps[0])) / step) + 1 - self.steps.size)


@dataclass(frozen=True, eq=False)
class LogRecord:
    """One run of one log.

    source: the file as it was given; name: of the run, unique within its side of a comparison. expected_last_step: where the
    log itself says the run should end. failure: why it did not, where the log says so; crash: the
    error that the log ends with, which a program may also print after its last step. settings: what the log or a
    configuration file beside it says of the run, dotted names. notes: what was done to understand it, for people.
    unused: columns that no quantity was made of. not_understood: lines, and an example.
    """

    source: str
    name: str
    format: str
    series: Mapping[Quantity, LogSeries]
    expected_last_step: float | None = None
    failure: str = ""
    crash: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    settings_from: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    lines: int = 0
    not_understood: int = 0
    example: str = ""

    @property
    def losses(self) -> tuple[LogSeries, ...]:
        names: tuple[Quantity, ...] = ("validation_loss", "training_loss")
        return tuple(self.series[name] for name in names if name in self.series)
