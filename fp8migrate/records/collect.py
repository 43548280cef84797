"""What a reader hands over: the points of each run as the log wrote them, before anything is made of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fp8migrate.records.logs import Axis
from fp8migrate.records.tokens import DIGIT_SAMPLES, Array, Token, digits_of, missing, numbers

MAX_STEP = 2.0**53
_EXAMPLE = 160


@dataclass(frozen=True, eq=False)
class Block:
    """Many points at once, already numbers. sample: the last of them as written, for their digits."""

    steps: Array
    values: Array
    sample: tuple[Token, ...]


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
        """Make the points so far a block."""
        if self.steps:
            self.add_block(np.array(self.steps, dtype=np.float64), self.values)
            self.steps, self.values = [], []

    def add_block(self, steps: Array, tokens: Sequence[Token]) -> None:
        """Many points. Missing values are counted and leave no point; a NaN that was logged stays."""
        values = numbers(tokens)
        lacking = missing(tokens, values)
        if lacking.any():
            self.missing += int(lacking.sum())
            tokens = [token for token, lacks in zip(tokens, lacking.tolist(), strict=True) if not lacks]
            steps, values = steps[~lacking], values[~lacking]
        self.blocks.append(Block(steps, values, tuple(tokens[-DIGIT_SAMPLES:])))

    def add_read(self, block: Block, lacking: int) -> None:
        """Points that were read already, and how many beside them were missing."""
        self.settle()
        self.missing += lacking
        self.blocks.append(block)

    def numbers(self) -> tuple[Array, Array, int | None]:
        """All steps and values, and the digits that the last of them were written with, None for full precision."""
        self.settle()
        if not self.blocks:
            return np.empty(0), np.empty(0), None
        sample: tuple[Token, ...] = ()
        for block in reversed(self.blocks):
            sample = block.sample + sample
            if len(sample) >= DIGIT_SAMPLES:
                break
        steps = np.concatenate([block.steps for block in self.blocks])
        values = np.concatenate([block.values for block in self.blocks])
        return steps, values, digits_of(sample[-DIGIT_SAMPLES:])


@dataclass
class RawRun:
    """One run of a log. name: "" where the log holds one run without a name. unused: columns of no quantity, in order."""

    name: str = ""
    columns: dict[str, Column] = field(default_factory=dict)
    expected_last_step: float | None = None
    failure: str = ""
    crash: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unused: dict[str, None] = field(default_factory=dict)
    first_step: float | None = None
    last_step: float | None = None

    def column(self, label: str, axis: Axis = "steps", averaging: str = "") -> Column:
        return self.columns.setdefault(label, Column(axis, averaging=averaging))

    def add(self, label: str, axis: Axis, step: float | None, value: Token) -> None:
        """One point; without a step it is numbered on. Missing values (None, empty) leave none.

        Points on different axes are never mixed. Where a log counts at all, what it does not count is left out.
        """
        if value is None or value == b"" or value == "":
            return
        column = self.column(label, axis)
        if column.axis != axis:
            kept = column.axis if axis == "points" else axis
            self.note(f"{label}: points that do not count {kept} are left out")
            if column.axis != "points":
                return
            column = self.columns[label] = Column(axis, column.averaging)
        column.steps.append(column.points + 1 if step is None else step)
        column.values.append(value)

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

    def at(self, step: float, name: str = "") -> RawRun:
        """The run (of a name) that a point at `step` belongs to. An impossible step says nothing; assembly leaves it out."""
        run = self.named(name) if name else self.run
        if not 0 <= step <= MAX_STEP:
            return run
        if run.first_step is None or run.last_step is None:
            run.first_step = step
        elif step <= run.first_step and step < run.last_step:
            run = self.new_run(name)
            run.first_step = step
        run.last_step = step
        return run

    def put(self, step: float, values: Iterable[tuple[str, Token]], axis: Axis = "steps", name: str = "") -> RawRun:
        """One point of several columns, of the run of a name where the log names its runs."""
        run = self.at(step, name)
        for label, value in values:
            run.add(label, axis, step, value)
        return run

    def bulk(self, steps: Array, columns: Iterable[tuple[str, Sequence[Token]]], axis: Axis = "steps") -> RawRun:
        """Many points whose steps rise, after all before them; of each column a value for each step."""
        run = self.at(float(steps[0]))
        run.last_step = float(steps[-1])
        for label, values in columns:
            column = run.column(label, axis)
            if column.axis != axis:
                for step, value in zip(steps.tolist(), values, strict=True):
                    run.add(label, axis, step, value)
                continue
            column.settle()
            column.add_block(steps, values)
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
