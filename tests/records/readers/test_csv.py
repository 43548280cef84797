"""CSV with any columns: nanochat's, Lightning's, W&B's charts, and tables that are none."""

import time
from pathlib import Path

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.logs import LogRecord, Quantity
from fp8migrate.records.readers.base import Options
from tests.records.readers.logs import read
from tests.records.readers.reading import claimed_by

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "logs" / "nanochat-moe"

NANOCHAT = """run,step,loss,bal,dt_ms,tok_sec,bf16_mfu
wide,0,9.500000,24.0,2000.0,1000,0.5
wide,1,9.250000,24.5,500.0,4000,2.0
deep,0,9.125000,24.0,1500.0,2000,0.75
deep,1,8.875001,24.5,250.0,8000,3.5
"""
LIGHTNING = """epoch,step,train_loss_step,train_loss_epoch,val_loss
0,0,5.5,,
0,1,5.25,,
0,1,,,5.125
0,1,,5.375,
1,2,5.0,,
1,3,nan,,
1,3,,,4.875
"""
WANDB = (
    '"Step","base, a - train/loss","base, a - train/loss__MIN","base, a - train/loss__MAX","low - train/loss",'
    '"low - train/loss__MIN","low - train/loss__MAX"\n'
    '"1","4.5","1","9","4.25","1","9"\n'
    '"2","4.0","1","9","","",""\n'
    '"3","3.5","1","9","3.75","1","9"\n'
)


def points(record: LogRecord, name: Quantity = "training_loss") -> dict[float, float]:
    one = record.series[name]
    return dict(zip(one.steps.tolist(), one.values.tolist(), strict=True))


def test_many_runs_in_one_file(tmp_path: Path) -> None:
    wide, deep = read(tmp_path, NANOCHAT)
    assert (wide.name, wide.format, deep.name) == ("wide", "csv", "deep")
    assert points(wide) == {0: 9.5, 1: 9.25}
    assert points(deep) == {0: 9.125, 1: 8.875001}
    assert points(deep, "step_seconds") == {0: 1.5, 1: 0.25}
    assert points(deep, "tokens_per_second") == {0: 2000, 1: 8000}
    assert wide.series["training_loss"].averaging == "debiased moving average"
    assert wide.series["training_loss"].digits == 7
    assert wide.unused == ("bal", "bf16_mfu")


def test_rows_of_lightning_are_sparse(tmp_path: Path) -> None:
    (run,) = read(tmp_path, LIGHTNING)
    assert {step: value for step, value in points(run).items() if step < 3} == {0: 5.5, 1: 5.25, 2: 5.0}
    assert np.isnan(points(run)[3])
    assert points(run, "validation_loss") == {1: 5.125, 3: 4.875}
    assert run.series["training_loss"].label == "train_loss_step"
    assert run.series["training_loss"].repeated == 0
    assert run.not_understood == 0


def test_means_of_an_epoch_count_only_where_no_step_is_logged(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "epoch,step,train_loss_epoch,val_loss_epoch\n0,9,5.5,\n0,9,,5.75\n1,19,5.25,5.5\n")
    assert points(run) == {9: 5.5, 19: 5.25}
    assert points(run, "validation_loss") == {9: 5.75, 19: 5.5}
    assert run.series["training_loss"].averaging == "mean over an epoch"


def test_other_delimiters_byte_order_marks_and_line_ends(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "\ufeffstep;loss\r\n1;5.5\r\n2;5.25\r\n")
    assert points(run) == {1: 5.5, 2: 5.25}
    (run,) = read(tmp_path, '\ufeff"step"\t"loss"\n1\t5.5\n2\t5.25\n')
    assert points(run) == {1: 5.5, 2: 5.25}


def test_columns_of_any_name(tmp_path: Path) -> None:
    text = "t,ce,arm\n10,5.5,x\n20,5.25,x\n10,5.0,y\n"
    first, second = read(tmp_path, text, Options(columns={"training_loss": "ce", "step": "t", "run": "arm"}))
    assert (first.name, second.name) == ("x", "y")
    assert points(first) == {10: 5.5, 20: 5.25}
    with pytest.raises(UsageError, match="--columns"):
        read(tmp_path, "t,ce\n10,5.5\n")


def test_rows_that_were_cut_are_counted_and_repeated_headers_are_not(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "step,loss\n1,5.5\n2\nstep,loss\n3,5.0\n\n4,4.5,9\n")
    assert points(run) == {1: 5.5, 3: 5.0}
    assert (run.not_understood, run.example) == (2, "2")


def test_empty_cells_are_missing_and_nan_is_a_value(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "step,loss\n1,\n2,NaN\n3,5.0\n4,oops\n")
    assert run.series["training_loss"].steps.tolist() == [2, 3]
    assert np.isnan(run.series["training_loss"].values[0])
    assert run.notes == ("loss: 1 values missing or no numbers",)


def test_of_two_columns_of_one_name_the_first_counts(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "step,loss,loss\n1,5.5,9.5\n2,5.25,9.25\n")
    assert points(run) == {1: 5.5, 2: 5.25}
    assert "two columns are named loss: the first was read" in run.notes


def test_a_resume_replaces_what_it_wrote_again(tmp_path: Path) -> None:
    (run,) = read(tmp_path, "step,loss\n1,5.5\n2,5.25\n3,5.0\n2,5.125\n3,4.5\n")
    assert points(run) == {1: 5.5, 2: 5.125, 3: 4.5}
    assert run.series["training_loss"].overlaps[0].points == 2


def test_a_quote_without_an_end_does_not_stop_the_reader(tmp_path: Path) -> None:
    lines = [f"{step},{8 - step / 1e4},x\n" for step in range(40_000)]
    lines[5] = '5,"3.5,x\n'
    (run,) = read(tmp_path, "step,loss,note\n" + "".join(lines))
    assert run.series["training_loss"].steps.size == 39_999
    assert (run.not_understood, run.example) == (1, '5,"3.5,x')


def test_charts_of_wandb_hold_one_run_a_column(tmp_path: Path) -> None:
    base, low = read(tmp_path, WANDB)
    assert (base.name, low.name) == ("base, a", "low")
    assert points(base) == {1: 4.5, 2: 4.0, 3: 3.5}
    assert points(low) == {1: 4.25, 3: 3.75}
    assert base.unused == ()


def test_groups_of_wandb_are_means_over_runs(tmp_path: Path) -> None:
    header = '"Step","Group: fp8 - loss","Group: fp8 - loss__MIN","Group: fp8 - loss__MAX","Group: fp8 - mood"\n'
    (run,) = read(tmp_path, header + '"1","4.5","4","5","1"\n"2","4.25","4","5","1"\n')
    assert run.name == "Group: fp8"
    assert run.notes == ("a mean over the runs of a group",)
    assert run.unused == ("mood",)


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    first, second = read(tmp_path, '"Step","a - loss","a - loss"\n"1","4.5","4.0"\n"2","4.25","3.5"\n')
    assert (first.name, second.name) == ("a", "a (2)")
    assert points(second) == {1: 4.0, 2: 3.5}
    assert second.notes == ("the file has several runs of this name",)


def test_a_chart_over_time_is_numbered(tmp_path: Path) -> None:
    (run,) = read(tmp_path, '"Relative Time (Process)","a - loss"\n"7.5","4.5"\n"9.5","4.25"\n')
    assert run.series["training_loss"].axis == "points"
    assert points(run) == {1: 4.5, 2: 4.25}


def test_a_metric_of_a_chart_can_be_named(tmp_path: Path) -> None:
    text = '"Step","a - quality","a - quality__MIN"\n"1","4.5","4"\n'
    (run,) = read(tmp_path, text, Options(columns={"training_loss": "quality"}))
    assert points(run) == {1: 4.5}


def test_a_table_of_runs_has_no_curve(tmp_path: Path) -> None:
    text = '"Name","State","Notes","Runtime","loss"\n"a","finished","-","300","2.5"\n"b","crashed","-","20","9.5"\n'
    with pytest.raises(UsageError, match=r"no curve(.|\n)*Export CSV"):
        read(tmp_path, text)


def test_a_million_columns_neither_hang_nor_fill_memory(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(1_000_000))
    text = f"step,{names}\n" + ("1," + ",".join("1" * 1_000_000) + "\n") * 3
    began = time.monotonic()
    with pytest.raises(UsageError):
        read(tmp_path, text)
    with pytest.raises(UsageError, match="longer than 64 KiB"):
        read(tmp_path, text, Options(format="csv"))
    assert time.monotonic() - began < 5


def test_many_runs_are_found_without_a_search() -> None:
    began = time.monotonic()
    collected = Collector()
    for number in range(50_000):
        collected.named(f"r{number}")
    assert collected.named("r7") is collected.runs[7]
    assert time.monotonic() - began < 10


def test_of_thousands_of_columns_the_first_are_read(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(5000))
    (run,) = read(tmp_path, f"step,loss,{names}\n1,5.5{',0' * 5000}\n2,5.25{',0' * 5000}\n")
    assert points(run) == {1: 5.5, 2: 5.25}
    assert run.notes == ("5002 columns, of which the first 2000 were read",)


@pytest.mark.parametrize("text", [NANOCHAT, LIGHTNING, WANDB])
def test_no_other_reader_takes_a_table(text: str) -> None:
    assert claimed_by(text) == ("csv", ["csv"])


@pytest.mark.parametrize(
    "text",
    [
        "step 1, loss 5.5\nstep 2, loss 5.25\n",
        "1,2\n3,4\n",
        "Hello, world\nand, goodbye\n",
        "1 5.5\n2 5.25\n",
        "iter 0: loss 9.5, time 20ms\niter 1: loss 9.25, time 20ms\n",
    ],
)
def test_what_is_no_table_is_not_taken(text: str) -> None:
    from fp8migrate.records.readers.csv_table import matches
    from tests.records.readers.reading import source

    assert not matches(source(text))


def test_logs_of_nanochat(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")
    first = read(tmp_path, (SHARED / "steps_851aff8.csv").read_bytes())
    second = read(tmp_path, (SHARED / "steps_99b6b55.csv").read_bytes())
    assert (len(first), len(second)) == (16, 6)
    run = next(run for run in first if run.name == "moe_bf16_experts_dynamic_long")
    assert points(run)[359] == 3.522239
    assert run.series["training_loss"].steps.size == 360
