"""torchtitan's golden losses: a step and a value on each line."""

from pathlib import Path

import numpy as np
import pytest

from fp8migrate.records.readers import read_log, reader_of
from fp8migrate.records.source import Source
from tests.records.readers.reading import claimed_by, records, source

LOG = "1 8.015625476837158\n2 7.515625\n3 nan\n"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "logs" / "torchtitan"


def test_values_steps_and_digits():
    (record,) = records(LOG + "4 7.25\nloss 5\n")
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(loss.values, [8.015625476837158, 7.515625, np.nan, 7.25])
    assert (loss.digits, loss.averaging, record.expected_last_step) == (None, "", None)
    assert (record.not_understood, record.example) == (1, "loss 5")


@pytest.mark.parametrize("log", [LOG, "1 8.5"])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("torchtitan-golden", ["torchtitan-golden"])


@pytest.mark.parametrize("log", ["1700000000000 1.5 3\n", "1 2\n", "1 2.5 3.5\n", "step 1.5\n", "1700000000000 1.5\n"])
def test_what_else_is_two_words_is_not_taken(log):
    assert not reader_of(source("1 8.5"), "torchtitan-golden").matches(source(log))


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no logs at {SHARED}")
def test_published_losses():
    path = SHARED / "llama3_cuda.txt"
    (record,) = read_log(Source(str(path), path))
    assert record.series["training_loss"].steps.tolist() == list(range(1, 101))
    assert record.not_understood == 0
