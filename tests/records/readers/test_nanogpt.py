"""nanoGPT and modded-nanogpt: two kinds of lines, a timer that counts on, the program's source above the log."""

from pathlib import Path

import numpy as np
import pytest

from fp8migrate.records.readers import read_log, reader_of
from fp8migrate.records.source import Source
from tests.records.readers.reading import claimed_by, points, records, source

PROGRAM = (
    "import sys\nwith open(sys.argv[0]) as f:\n    code = f.read() # read the code of this file ASAP\n"
    '        print0(f"step:{step}/{train_steps} val_loss:{val_loss:.4f} train_time:{training_time_ms:.0f}ms")\n'
    "iter_num = 0 # step:{step}\n"
)
MODDED = (
    "step:0/4 val_loss:10.8125 train_time:0ms step_avg:nanms\n"
    "step:1/4 train_time:100ms step_avg:100.00ms\n"
    "step:2/4 train_time:150ms step_avg:75.00ms\n"
    "step:2/4 val_loss:5.5000 train_time:160ms step_avg:80.00ms\n"
    "step:3/4 train_time:10ms step_avg:3.33ms\n"
    "step:4/4 train_time:60ms step_avg:15.00ms\n"
    "step:4/4 val_loss:3.2500 train_time:70ms step_avg:17.50ms\n"
)
PLAIN = (
    "number of parameters: 1.00M\n"
    "step 0: train loss 10.5000, val loss 10.6250\n"
    "iter 0: loss 10.5625, time 5000.00ms, mfu -100.00%\n"
    "iter 1: loss nan, time 12.50ms, mfu 1.00%\n"
    "step 2: train loss 5.2500, val loss 5.1250\n"
    "iter 2: loss 5.5000, time 250.00ms, mfu 1.00%\n"
)
SHARED = Path(__file__).resolve().parents[4] / "shared" / "logs" / "modded-nanogpt"


def test_modded_values():
    (record,) = records(PROGRAM + MODDED)
    loss = record.series["validation_loss"]
    assert points(record, "validation_loss") == {0: 10.8125, 2: 5.5, 4: 3.25}
    assert (loss.digits, loss.label, record.expected_last_step) == (5, "val_loss", 4)
    assert "training_loss" not in record.series
    assert record.not_understood == 0


def test_step_times_are_differences_and_stop_where_the_timer_restarts():
    # Step 2 ends at 160 ms, where its validation line stands; at step 3 the timer has begun again.
    (record,) = records(MODDED)
    assert points(record, "step_seconds") == pytest.approx({1: 0.1, 2: 0.06, 4: 0.06})
    assert "step times are the differences of train_time between lines" in record.notes


def test_lines_far_apart_have_mean_step_times():
    (record,) = records(
        "step:0/20 val_loss:9 train_time:0ms\nstep:10/20 train_loss:8.5 train_time:1000ms\n"
        "step:20/20 train_loss:8 train_time:1.5s\n"
    )
    assert points(record, "step_seconds") == pytest.approx({10: 0.1, 20: 0.05})
    assert record.series["step_seconds"].averaging == "mean over 10 steps"
    assert points(record, "training_loss") == {10: 8.5, 20: 8}


def test_plain_values():
    (record,) = records(PLAIN)
    loss = record.series["training_loss"]
    assert (loss.label, loss.steps.tolist(), loss.digits) == ("loss", [0, 1, 2], 5)
    np.testing.assert_array_equal(loss.values, [10.5625, np.nan, 5.5])
    assert points(record, "validation_loss") == {0: 10.625, 2: 5.125}
    assert points(record, "step_seconds") == pytest.approx({0: 5.0, 1: 0.0125, 2: 0.25})
    assert record.unused == ("train split loss",)
    assert record.expected_last_step is None


def test_more_fields_and_a_log_of_evaluations_alone():
    (record,) = records("iter 5: loss 5.5, time 10.00ms, mfu 1%\niter 6: loss 5.25, lr 0.25, time 10.00ms, mfu 1%\n")
    assert points(record, "learning_rate") == {6: 0.25}
    (record,) = records("step 5: train loss 5.25, val loss 5.5\n")
    assert points(record, "training_loss") == {5: 5.25}


def test_early_logs_have_the_lines_of_llm_c_below_the_program():
    (record,) = records(PROGRAM + "s:0 tel:11.0000\ns:1 trl:10.5000\n")
    assert (record.format, points(record, "validation_loss")) == ("llm.c", {0: 11})


def test_several_runs_of_one_file():
    first, second = records(MODDED + MODDED.replace("3.2500", "3.5000") + "step:1/\nstep:2/4\n")
    assert (points(first, "validation_loss")[4], points(second, "validation_loss")[4]) == (3.25, 3.5)
    assert points(second, "step_seconds") == pytest.approx({1: 0.1, 2: 0.06, 4: 0.06})
    assert (second.expected_last_step, second.not_understood, second.example) == (4, 1, "step:2/4")


@pytest.mark.parametrize("log", [MODDED, PLAIN, PROGRAM + MODDED, PROGRAM + "x = 1\n" * 20_000 + MODDED, "[rank0]: " + MODDED])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("nanogpt", ["nanogpt"])
    assert records(log)


def test_a_program_that_prints_such_lines_is_no_log():
    assert not reader_of(source(MODDED), "nanogpt").matches(source(PROGRAM.split("\n", 3)[3]))


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no logs at {SHARED}")
@pytest.mark.parametrize(("folder", "mean"), [("baseline", 3.27825), ("this_pr", 3.27837)])
def test_published_runs(folder, mean):
    found = [read_log(Source(str(path), path)) for path in sorted((SHARED / folder).glob("*.log"))]
    assert [len(runs) for runs in found] == [1] * 13
    last = [runs[0].series["validation_loss"] for runs in found]
    assert {float(one.steps[-1]) for one in last} == {1390}
    assert np.mean([one.values[-1] for one in last]) == pytest.approx(mean, abs=5e-6)
    assert {runs[0].expected_last_step for runs in found} == {1390}
    assert all(runs[0].not_understood == 0 for runs in found)
