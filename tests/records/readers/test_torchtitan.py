"""torchtitan's output: colours, one line a rank, validation lines."""

import numpy as np
import pytest

from tests.records.readers.reading import claimed_by, points, records

PREFIX = "[titan] 2031-01-02 03:04:05,678 - root - INFO - "
LOG = (
    f"[rank0]:{PREFIX}Training starts at step 1, with local batch size 4, total steps 20 (warmup 2)\n"
    f"[rank0]:{PREFIX}\x1b[31mstep:  1  \x1b[32mloss:  8.1250  \x1b[38;2;180;60;0mgrad_norm:  1.5000  "
    "\x1b[38;2;54;234;195mmemory:  0.50GiB(0.60%)  \x1b[34mtps: 12,500  \x1b[36mtflops: 1.00  \x1b[35mmfu: 0.10%\x1b[39m\n"
    f"[rank1]:{PREFIX}\x1b[31mstep:  1  \x1b[32mloss:  8.1250  memory:  0.75GiB(0.60%)  tps: 12,400\x1b[0m\n"
    f"[rank0]:{PREFIX}step: 10  loss:      nan  memory:  0.50GiB(0.60%)  tps: 125,000  mfu: 0.10%\n"
    f"[rank1]:{PREFIX}step: 10  loss:      nan  memory:  0.75GiB(0.60%)  tps: 124,000  mfu: 0.10%\n"
    f"[rank0]:{PREFIX}validate step: 10  loss:  7.2500  memory: 0.40GiB(0.50%)  tps: 999\n"
)


def test_one_rank_without_colours():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [1, 10]
    np.testing.assert_array_equal(loss.values, [8.125, np.nan])
    assert (loss.digits, loss.repeated, record.expected_last_step) == (5, 0, 20)
    assert points(record, "tokens_per_second") == {1: 12500, 10: 125000}
    assert points(record, "memory_bytes") == {1: 2**29, 10: 2**29}
    assert points(record, "grad_norm") == {1: 1.5}
    assert points(record, "validation_loss") == {10: 7.25}
    assert record.notes == ("the lines of rank 0 are read, those of 1 other ranks are left out",)


def test_colours_whose_escape_character_was_lost():
    (record,) = records("[titan] [31mstep:  1  [38;2;180;60;0mloss:  8.1250  [33mmemory:  0.50GiB(0.60%)  [34mtps: 12,500[0m\n")
    assert points(record, "training_loss") == {1: 8.125}
    assert points(record, "tokens_per_second") == {1: 12500}


def test_pipeline_stages_without_a_loss_are_other_ranks():
    (record,) = records(
        "[rank0]:[titan] step:  1  loss: -1.00000  memory: 1.00GiB(1%)  tps: 10\n"
        "[rank3]:[titan] step:  1  loss:  4.50000  memory: 2.00GiB(1%)  tps: 10\n"
        "[rank0]:[titan] step:  2  loss: -1.00000  memory: 1.00GiB(1%)  tps: 10\n"
        "[rank3]:[titan] step:  2  loss:  4.25000  memory: 2.00GiB(1%)  tps: 10\n"
    )
    assert points(record, "training_loss") == {1: 4.5, 2: 4.25}
    assert "the lines of rank 3 are read" in record.notes[0]


def test_two_runs_a_resume_and_a_line_that_breaks_off():
    step = "[titan] step: {}  loss:  {}  memory: 1.00GiB(1%)  tps: 10\n".format
    first, second = records(
        step(1, 8) + step(2, 7) + step(1, 8.5) + step(2, 7.5) + step(3, 7) + step(2, 6) + "step: 3  loss:\n"
    )
    assert points(first, "training_loss") == {1: 8, 2: 7}
    assert points(second, "training_loss") == {1: 8.5, 2: 6}
    assert [(one.first, one.last, one.points) for one in second.series["training_loss"].overlaps] == [(2, 3, 2)]
    assert (second.not_understood, second.notes) == (1, ("run 2 of 2 in this file",))


def test_a_line_that_repeats_itself_takes_no_time():
    hostile = "Training starts at step 1" * 2500 + "\n" + "step: 1 loss: " * 4500 + "\n"
    (record,) = records(LOG + hostile * 20)
    assert record.series["training_loss"].steps.tolist() == [1, 10]


@pytest.mark.parametrize("log", [LOG, PREFIX + "step:  1  loss:  8.1250  memory:  0.50GiB(0.60%)  tps: 12,500\n"])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("torchtitan", ["torchtitan"])
