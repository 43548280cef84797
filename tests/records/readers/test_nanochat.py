"""nanochat: a smoothed loss, thousands commas, steps from 0."""

import numpy as np
import pytest

from tests.records.readers.reading import claimed_by, points, records

LOG = (
    "Step 00000 | Validation bpb: 3.2500\n"
    "step 00000/00003 (0.00%) | loss: 9.125000 | grad norm: 0.5000 | lrm: 1.00 | dt: 512.00ms | tok/sec: 806,400 | mfu: 30.00\n"
    "step 00001/00003 (33.33%) | loss: nan | grad norm: nan | lrm: 1.00 | dt: 500.00ms | tok/sec: 1,048,576 | mfu: 30.00\n"
    "step 00002/00003 (66.67%) | loss: 8.500000 | lrm: 0.50 | dt: 250.00ms | tok/sec: 1,048,576 | mfu: 30.00\n"
    "Step 00003 | Validation bpb: 2.1250\n"
)


def test_values_and_averaging():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(loss.values, [9.125, np.nan, 8.5])
    assert (loss.averaging, loss.digits, record.expected_last_step) == ("debiased moving average", 7, 2)
    assert points(record, "step_seconds") == pytest.approx({0: 0.512, 1: 0.5, 2: 0.25})
    assert points(record, "tokens_per_second") == {0: 806400, 1: 1048576, 2: 1048576}
    assert points(record, "validation_loss") == {0: 3.25, 3: 2.125}
    assert record.series["validation_loss"].unit == "bits"
    assert record.series["grad_norm"].values[0] == 0.5
    assert "learning_rate" not in record.series


def test_two_runs_drawn_over_one_line():
    line = "\rstep {:05d} (1.0%) | loss: {:.6f} | lrm: 1.00 | dt: 100ms | tok/sec: 1,000 | mfu: 1.0%   ".format
    first, second = records(line(0, 9) + line(1, 8) + "\n" + line(0, 9.5) + line(1, 8.5) + "\rstep 00002 (1.0%) | lo")
    assert points(first, "training_loss") == {0: 9, 1: 8}
    assert points(second, "training_loss") == {0: 9.5, 1: 8.5}
    assert (second.not_understood, second.expected_last_step) == (1, None)


@pytest.mark.parametrize("log", [LOG, LOG.splitlines()[1]])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("nanochat", ["nanochat"])
