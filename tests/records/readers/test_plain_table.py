"""Rows of a CSV that are taken column by column give what they give row by row, whatever stands between and in them."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8migrate.records import source as source_module
from fp8migrate.records.readers import csv_table, plain_table
from fp8migrate.records.readers.base import Options
from tests.records.readers.reading import everything

NAMES = (
    "loss",
    "val_loss",
    "train_loss_epoch",
    "grad_norm",
    "lr",
    "dt_ms",
    "note",
    "loss",
    " ppl ",
    "",
    "training_loss",
    "epoch",
)
CELLS = (
    "",
    " ",
    "nan",
    "NaN",
    "-nan",
    "inf",
    "oops",
    "1,5",
    "1_000",
    " 2.5",
    "2.5 ",
    "-0.0",
    "1e-30",
    "é",
    "\u0665",
    "9" * 70,
    "0.1" * 9,
)
BETWEEN = (
    "\n",
    "   \n",
    "3\n",
    "{header}\n",
    "1" + "{delimiter}" * 40 + "\n",
    '{step}{delimiter}"2.5\n',
    '"{step}"{delimiter}"2.5"{delimiter}"a"\n',
    '{step}{delimiter}a"b{delimiter}"c\n',
)
STEPS = ("", "nan", "-1", "1e300", "x", " 7", "7.5", "1e1", "loss")


class Table:
    """Text of a table, drawn at random: mostly rows alike, now and then something else."""

    def __init__(self, seed: int, calm: float) -> None:
        self.draw = random.Random(seed)
        self.calm = calm
        self.delimiter = self.draw.choice(",,,\t;")
        self.columns = ["step", *self.draw.sample(NAMES, self.draw.randint(1, 5))]
        self.draw.shuffle(self.columns)
        self.runs = self.draw.choice((None, None, "run", "run_name"))
        if self.runs:
            self.columns.insert(self.draw.randint(0, len(self.columns)), self.runs)
        self.names = self.draw.choice((("a", "b", "c" * 300), ("a", "b", "")))
        self.mixed = self.draw.random() < 0.3
        self.sparse = self.draw.choice((0.0, 0.0, 0.4))
        self.header = self.delimiter.join(self.columns)

    def text(self, rows: int) -> str:
        step, run, parts = 1, "a", [self.draw.choice(("", "\ufeff")), self.header, "\n"]
        for _ in range(rows):
            parts.append(self.row(step, run))
            if self.rare():
                parts.append(self.draw.choice(BETWEEN).format(step=step, header=self.header, delimiter=self.delimiter))
            step = self.draw.choice((1, step - 2, step, step + 9)) if self.rare() else step + 1
            run = self.draw.choice(self.names) if self.rare() or self.mixed else run
        text = "".join(parts)
        return text.replace("\n", "\r\n") if self.draw.random() < 0.2 else text

    def rare(self) -> bool:
        return self.draw.random() > self.calm

    def row(self, step: int, run: str) -> str:
        cells = []
        for name in self.columns:
            if name == "step":
                cells.append(self.draw.choice(STEPS) if self.rare() else str(step))
            elif name == self.runs:
                cells.append(run)
            elif self.draw.random() < self.sparse:
                cells.append("")
            else:
                cells.append(self.draw.choice(CELLS) if self.rare() else f"{self.draw.uniform(0, 20):.5f}")
        return self.delimiter.join(cells) + "\n"


def row_by_row(text: str, options: Options) -> tuple[object, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_table.PlainTable, "add", lambda self, chunk, collected: False)
        return everything(text, options)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 120),
    calm=st.sampled_from([1.0, 0.995, 0.98, 0.9, 0.6]),
    chunk=st.sampled_from([40, 1000, 1 << 22]),
    few=st.sampled_from([8, 1 << 20]),
    columns=st.sampled_from([{}, {}, {"training_loss": "lr"}, {"validation_loss": "note", "step": "epoch"}, {"run": "note"}]),
)
def test_rows_together_are_as_rows_one_by_one(
    seed: int, rows: int, calm: float, chunk: int, few: int, columns: dict[str, str]
) -> None:
    text, options = Table(seed, calm).text(rows), Options(format="csv", columns=columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "CHUNK_BYTES", chunk)
        patch.setattr(plain_table, "_FEW", few)
        assert everything(text, options) == row_by_row(text, options)


@pytest.mark.parametrize("between", BETWEEN)
def test_what_stands_between_rows_changes_nothing(between: str) -> None:
    table = Table(1, 1.0)
    other = between.format(step=40, header=table.header, delimiter=table.delimiter)
    text = table.header + "\n" + "".join(table.row(step, "a") + (other if step == 40 else "") for step in range(1, 81))
    options = Options(format="csv")
    assert everything(text, options) == row_by_row(text, options)


def test_rows_alike_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse ones, several runs, a resume, a header written again and a row that was cut among them."""

    def refuse(*arguments: object) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(csv_table, "add_rows", refuse)
    text = (
        "run,step,loss,val_loss\na,1,5.5,\na,2,5.25,5.0\na,2,,4.5\na\nrun,step,loss,val_loss\nb,1,nan,\nb,2,oops,\nb,2,4.0,\n"
    )
    assert everything(text) != ()
    assert "oops" not in str(everything(text))
