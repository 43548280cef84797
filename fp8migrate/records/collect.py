"""What a reader hands over: the points of each run as the log wrote them, before anything is made of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fp8migrate.records.logs import Axis
from fp8migrate.records.tokens import DIGIT_SAMPLES, FULL_DIGITS, Array, Token, digits_of, missing, numbers

MAX_STEP = 2.0**53
_EXAMPLE = 160


@dataclass(frozen=True, eq=False)
class Block:
    """Many points at once, already numbers. digits: that some of them were written with, None for full precision."""

    steps: Array
    values: Array
    digits: int | None


@dataclass
class Column:
    """One column of one run, in the order of the log: whole blocks, then the points since. averaging: as LogSeries has it."""

    axis: Axis
    averaging: str = ""
    blocks: list[Block] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    values: list[Token] = field(default_factory=list)
    missing: int = 0

    @property
    def points(self) -> int:
        return sum(block.steps.size for block in self.blocks) + len(self.steps)

    def settle(self) -> None:
        """Make the points so far a block. Missing values are counted and leave no point; a NaN that was logged stays."""
        if not self.steps:
            return
        values = numbers(self.values)
        lacking = missing(self.values, values)
        kept = np.flatnonzero(~lacking)
        self.missing += int(lacking.sum())
        sample = [self.values[index] for index in kept[-DIGIT_SAMPLES:]]
        self.blocks.append(Block(np.array(self.steps, dtype=np.float64)[kept], values[kept], digits_of(sample)))
        self.steps, self.values = [], []

    def numbers(self) -> tuple[Array, Array, int | None]:
        """All steps and values, and the digits of the block that was written most exactly."""
        self.settle()
        if not self.blocks:
            return np.empty(0), np.empty(0), None
        digits = max(FULL_DIGITS if block.digits is None else block.digits for block in self.blocks)
        steps = np.concatenate([block.steps for block in self.blocks])
        values = np.concatenate([block.values for block in self.blocks])
        return steps, values, None if digits >= FULL_DIGITS else digits


@dataclass
class RawRun:
    """One run of a log. name: "" where the log holds one run without a name. unused: columns of no quantity, in order."""

    name: str = ""
    columns: dict[str, Column] = field(default_factory=dict)
    expected_last_step: float | None = None
    failure: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unused: dict[str, None] = field(default_factory=dict)
    first_step: float | None = None
    last_step: float | None = None

    def column(self, label: str, axis: Axis = "steps", averaging: str = "") -> Column:
        return self.columns.setdefault(label, Column(axis, averaging=averaging))

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


@dataclass
class Collector:
    """Builds the runs of one log. Readers call `at` for a step and `put` for each of its values.

    A log that goes back to where its run began starts another run (programs append to one file); one that goes back to a
    later step was resumed, which assembly resolves.
    """

    runs: list[RawRun] = field(default_factory=list)
    not_understood: int = 0
    example: str = ""
    notes: list[str] = field(default_factory=list)
    _latest: dict[str, RawRun] = field(default_factory=dict, repr=False)

    @property
    def run(self) -> RawRun:
        return self.runs[-1] if self.runs else self.new_run()

    def new_run(self, name: str = "") -> RawRun:
        run = RawRun(name)
        self.runs.append(run)
        self._latest[name] = run
        return run

    def named(self, name: str) -> RawRun:
        """The run of this name, for logs with a run column."""
        return self._latest.get(name) or self.new_run(name)

    def at(self, step: float) -> RawRun:
        """The run that a point at `step` belongs to. An impossible step says nothing; assembly leaves it out."""
        run = self.run
        if not 0 <= step <= MAX_STEP:
            return run
        if run.first_step is None or run.last_step is None:
            run.first_step = step
        elif step <= run.first_step and step < run.last_step:
            run = self.new_run()
            run.first_step = step
        run.last_step = step
        return run

    def put(self, step: float, values: Iterable[tuple[str, Token]], axis: Axis = "steps") -> RawRun:
        """One point of several columns. Missing values (None, empty) leave no point."""
        run = self.at(step)
        for label, value in values:
            if value is not None and value != b"" and value != "":
                column = run.column(label, axis)
                column.steps.append(step)
                column.values.append(value)
        return run

    def bulk(self, steps: Array, columns: Iterable[tuple[str, Array, Sequence[Token]]], axis: Axis = "steps") -> RawRun:
        """Many points whose steps rise, after all before them; of each column its numbers and some of them as written."""
        run = self.at(float(steps[0]))
        run.last_step = float(steps[-1])
        for label, values, sample in columns:
            column = run.column(label, axis)
            column.settle()
            column.blocks.append(Block(steps, values, digits_of(sample[-DIGIT_SAMPLES:])))
        return run

    def continues(self, steps: Array) -> bool:
        """Whether steps rise and begin after the last one of the run, so that they can be taken in bulk."""
        last = self.run.last_step
        if not steps.size or not (steps[0] >= 0 and steps[-1] <= MAX_STEP):
            return False
        return (last is None or bool(steps[0] > last)) and bool((np.diff(steps) > 0).all())

    def skip(self, line: bytes | str) -> None:
        """A line (or row) that this format should have understood and did not."""
        self.not_understood += 1
        if not self.example:
            text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
            self.example = text[:_EXAMPLE]
