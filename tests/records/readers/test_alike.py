"""Lines of Megatron that are taken together give what they give one by one, whatever stands between and within them."""

import random
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8migrate.records import source as source_module
from fp8migrate.records.readers import megatron
from fp8migrate.records.readers.barred import BarredLines
from fp8migrate.records.source import MAX_LINE_BYTES, Source
from fp8migrate.records.spans import Text, read_points
from tests.records.readers.reading import everything

PREFIXES = ("", "3: ", "[node:3]: ", " samples/sec: 12.5 |", "INFO | ")
BETWEEN = (
    "warnings.warn(\n",
    "loading | 12% | 3 of 9 iteration 4/ 9 |\n",
    " | iteration\n",
    "\n",
    "|\n",
    "  fp8_format ..... hybrid\n",
    " validation loss at iteration {step} | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |\n",
    " validation loss at iteration {step} | lm loss value: 2.25E+00 | lm loss PPL: 1.2E+01 |\n",
    " validation loss at the end of training for val data | lm loss value: 2.125E+00 |\n",
    " validation loss at iteration {step}/ 30 | lm loss: 4.5 |\n",
    " validation loss at iteration 7 | lm loss PPL: 1.2E+01 |\n",
    " validation loss at iteration 7 | lm loss value: |\n",
    "x" * (MAX_LINE_BYTES + 1) + "\n",
    " iteration {step}/ 30 | lm loss: 9.0 |\n",
    " iteration {step}/ 30 | lm loss: 9.0 | lm_loss: 8.0 |\n",
    " iteration {step}/ 30 | iteration 3/ 30 | lm loss: 9.0 | and more\n",
    " iteration {step}/ 30 | foo: iteration 3/ 30 | lm loss: 9.0 |\n",
    " iteration 99999999999999999999/ 30 | lm loss: 9.0 |\n",
    " iteration {step}/ 30 |\n",
    " iteration {step}/ 30 | lm loss validation: 2.0 |\n",
)
VALUES = (
    *("2.500000E+00", "3.125", "1.5E-04", "-2.25e3", "0.0", "-0.0", "7", ".5", "5.", "+4.25", " 2.5", "2.5\t", "inf", "1e400"),
    *("nan", "NaN", "-nan(ind)", "", " ", "oops", "12:30", "1,000.5", "1_000", "0.12345678901234567", "1e-30", "9e23"),
)
FIELDS = (
    "learning rate",
    "grad norm",
    "loss scale",
    "num zeros",
    "elapsed time per iteration (ms)",
    "memory (GB)",
    "lm loss validation",
    "seq length",
)


class Log:
    """Text of a log, drawn at random: mostly lines alike, now and then something else."""

    def __init__(self, seed: int, calm: float) -> None:
        self.draw = random.Random(seed)
        self.calm = calm
        self.prefix = self.draw.choice(PREFIXES)
        self.loss = self.draw.choice(("lm loss", "lm loss", "lm_loss"))
        self.width = self.draw.choice((8, 8, 0))
        self.fields = self.draw.sample(FIELDS, 3)

    def text(self, steps: int) -> str:
        step, parts = 1, []
        for _ in range(steps):
            parts.append(self.line(step))
            if self.rare():
                parts.append(self.draw.choice(BETWEEN).format(step=step))
            step = self.next(step)
        text = "".join(parts)
        return text.replace("\n", "\r\n") if self.draw.random() < 0.2 else text

    def rare(self) -> bool:
        return self.draw.random() > self.calm

    def next(self, step: int) -> int:
        if self.rare():
            return self.draw.choice((1, max(1, step - 3), step, step + 10, 0))
        return step + 1

    def line(self, step: int) -> str:
        if self.rare():
            self.fields = self.draw.sample(FIELDS, self.draw.randint(0, 4))
        nan = self.rare()
        fields = [(name, self.value(name)) for name in self.fields]
        if not nan:
            fields.insert(len(fields) // 2, (self.loss, self.value(self.loss)))
        fields.append(("number of nan iterations", f"{int(nan) * self.draw.choice((0, 1, 10)):3d}"))
        total = 3000 if self.rare() else 300
        end = self.draw.choice((" ", "tail", ": x", " lm loss: 7.5", " grad norm: 1.5")) if self.rare() else ""
        written = "".join(f" {name}: {value} |" for name, value in fields)
        # A field before the step, as GPT-NeoX writes it, may itself look like a step: then that one counts.
        prefix = " samples/sec: iteration 5/ 9 |" if self.prefix.endswith("|") and self.rare() else self.prefix
        return f"{prefix} iteration {step:{self.width}d}/{total:8d} |{written}{end}\n"

    def value(self, name: str) -> str:
        if self.rare():
            return self.draw.choice(VALUES)
        return f"{self.draw.uniform(0.1, 30):.6E}" if "loss" in name else f"{self.draw.uniform(0.1, 120):.3f}"


def one_by_one(text: str) -> tuple[object, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(megatron, "_at_once", lambda chunk, collected: False)
        return everything(text)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 120),
    calm=st.sampled_from([1.0, 0.995, 0.98, 0.9, 0.6]),
    chunk=st.sampled_from([300, 3000, 20_000, 1 << 22]),
    few=st.sampled_from([8, 1 << 20]),
)
def test_lines_together_are_as_lines_one_by_one(seed: int, steps: int, calm: float, chunk: int, few: int) -> None:
    text = Log(seed, calm).text(steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "CHUNK_BYTES", chunk)
        patch.setattr(megatron, "_FEW", few)
        assert everything(text) == one_by_one(text)


@pytest.mark.parametrize("between", BETWEEN)
def test_what_stands_between_changes_nothing(between: str) -> None:
    log = Log(1, 1.0)
    text = "".join(log.line(step) + (between.format(step=step) if step == 40 else "") for step in range(1, 81))
    assert everything(text) == one_by_one(text)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.floats().map(repr), st.sampled_from(VALUES), st.decimals(places=4).map(str)), min_size=1))
def test_numbers_by_their_places_are_those_of_python(written: list[str]) -> None:
    text = Text("|".join(written).encode())
    bars = np.flatnonzero(text.codes == ord("|"))
    starts, ends = np.append(0, bars + 1), np.append(bars, text.codes.size)
    points = read_points(text, np.arange(starts.size, dtype=np.float64), starts, ends, bytes.strip)
    expected = dict(_numbers(written))
    assert points.block.steps.tolist() == list(expected)
    assert [repr(value) for value in points.block.values.tolist()] == [repr(value) for value in expected.values()]


def _numbers(written: list[str]) -> Iterator[tuple[int, float]]:
    for place, text in enumerate(written):
        text = text.strip().replace(",", "")
        if text.lower().lstrip("+-") in ("nan", "nan(ind)"):
            yield place, float("nan")
            continue
        try:
            value = float(text)
        except ValueError:
            continue
        if value == value:
            yield place, value


def test_a_calm_log_is_taken_by_layout_and_nothing_is_left() -> None:
    text = "".join(Log(3, 1.0).line(step) for step in range(1, 200)).encode()
    groups, others = BarredLines(text).alike(np.empty(0, dtype=np.intp))
    assert sum(group.lines.size for group in groups) == 199
    assert others.size == 0
    assert all(np.array_equal(group.steps, group.lines + 1.0) for group in groups)


def test_lines_longer_than_any_of_a_log_are_left_out_wherever_they_stand() -> None:
    lines = [b"a" * (MAX_LINE_BYTES + extra) for extra in (0, 1, -1, 5000, 0)]
    for first, second in pairwise(lines):
        source = Source("log", None, b"x\n" + first + b"\n\n" + second + b"\ny")
        kept = [line for line in (b"x", first, b"", second, b"y") if len(line) <= MAX_LINE_BYTES]
        assert list(source.lines()) == kept
        assert (source.num_lines, source.long_lines) == (5, 5 - len(kept))
