"""nanotron: three digits and a suffix."""

import numpy as np
import pytest

from tests.records.readers.reading import claimed_by, points, records

PREFIX = "\x1b[2;3m01/02 03:04:05 [INFO|DP=0|TP=0|nodeb]\x1b[0m: "
LOG = (
    f"{PREFIX}iteration: 7 / 150 | consumed_tokens: 1.5B | time_per_iteration_ms: 8.75K | tokens_per_sec: 125K | "
    "tokens_per_sec_per_gpu: 699 | global_batch_size: 1.6M | grad_norm: 4.25M | lm_loss: 2.25 | lr: 0.0001 | "
    "cuda_max_memory_reserved: 2.5G | eta: 131 days, 1:45:39\n"
    f"{PREFIX}iteration: 8 / 150 | elapsed_time_per_iteration_ms: 950 | tokens_per_sec: 1.5M | grad_norm: infE | lm_loss: nan\n"
    f"{PREFIX}iteration: 9 / 150 | cuda_max_memory_reserved: 520M | lm_loss: 2\n"
)


def test_suffixes_and_digits():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [7, 8, 9]
    np.testing.assert_array_equal(loss.values, [2.25, np.nan, 2])
    assert (loss.digits, record.expected_last_step) == (3, 150)
    assert points(record, "step_seconds") == pytest.approx({7: 8.75, 8: 0.95})
    assert record.series["step_seconds"].digits == 3
    assert points(record, "tokens_per_second") == {7: 125_000, 8: 1_500_000}
    assert points(record, "grad_norm") == {7: 4.25e6, 8: np.inf}


def test_two_runs_and_a_line_that_breaks_off():
    first, second = records(LOG + LOG.replace("2.25", "2.5") + "iteration: 10 / 1\n")
    assert (points(first, "training_loss")[7], points(second, "training_loss")[7]) == (2.25, 2.5)
    assert (second.not_understood, second.expected_last_step) == (1, 150)


@pytest.mark.parametrize("log", [LOG, "iteration: 5 / 5 | lm_loss: 8.35 | lr: 1e-05\n"])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("nanotron", ["nanotron"])
