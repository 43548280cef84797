"""llm.c's main.log."""

import numpy as np
import pytest

from tests.records.readers.reading import claimed_by, points, records

LOG = (
    "s:0 tel:11.0000\n"
    "s:1 trl:10.9375 lr:0.000001 norm:15.50\n"
    "s:2 trl:nan lr:0.000002 norm:nan\n"
    "s:2 eval:0.2500\n"
    "s:2 tel:9.5000\n"
)


def test_values_steps_and_digits():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [1, 2]
    np.testing.assert_array_equal(loss.values, [10.9375, np.nan])
    assert (loss.digits, record.expected_last_step, record.not_understood) == (6, None, 0)
    assert points(record, "validation_loss") == {0: 11, 2: 9.5}
    assert points(record, "learning_rate") == {1: 1e-6, 2: 2e-6}
    assert record.series["grad_norm"].values[0] == 15.5


def test_two_runs_of_one_file_and_lines_that_break_off():
    first, second = records(LOG + LOG.replace("9.5000", "9.2500") + "s:3 trl:\ns:\n")
    assert (points(first, "validation_loss")[2], points(second, "validation_loss")[2]) == (9.5, 9.25)
    assert (second.not_understood, second.example) == (2, "s:3 trl:")


@pytest.mark.parametrize("log", [LOG, "s:1 trl:10.9375\n"])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("llm.c", ["llm.c"])
