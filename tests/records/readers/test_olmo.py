"""OLMo: several lines a step, thousands commas, evaluations without a step."""

import numpy as np
import pytest

from tests.records.readers.reading import claimed_by, points, records

LOG = """\
[2031-01-02 03:04:05] INFO     [olmo.train:1, rank=0] [step=1/8]
    train/CrossEntropyLoss=11.25
    train/Perplexity=76,880
    throughput/device/tokens_per_second=45,500
    System/Peak GPU Memory (MB)=40,000
    optim/total_grad_norm=1.5
\x1b[36m[2031-01-02 03:04:06] INFO     [olmo.train:1, rank=0] [step=2/8,epoch=0]\x1b[0m
    train/CrossEntropyLoss=nan
    train/Perplexity=
    optim/learning_rate_group0=0.0003
[2031-01-02 03:04:07] INFO     [olmo.train:2, rank=0] held-out
    eval/held-out/CrossEntropyLoss=10.5
    eval/held-out/Perplexity=36,316
"""


def test_blocks_and_commas():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert (loss.label, loss.steps.tolist(), loss.digits) == ("train/CrossEntropyLoss", [1, 2], 4)
    np.testing.assert_array_equal(loss.values, [11.25, np.nan])
    assert points(record, "validation_loss") == {2: 10.5}
    assert points(record, "tokens_per_second") == {1: 45_500}
    assert points(record, "memory_bytes") == {1: 4e10}
    assert points(record, "grad_norm") == {1: 1.5}
    assert points(record, "learning_rate") == {2: 3e-4}
    assert record.expected_last_step == 8
    assert (record.not_understood, record.example) == (1, "    train/Perplexity=")
    assert record.notes == ("throughput/device/tokens_per_second is of one device",)


def test_a_time_stamp_before_every_line():
    (record,) = records("".join(f"2031-01-02T03:04:05.678Z {line}\n" for line in LOG.splitlines()))
    assert points(record, "validation_loss") == {2: 10.5}
    assert points(record, "tokens_per_second") == {1: 45_500}


def test_other_ranks_and_other_runs():
    other = LOG.replace("rank=0", "rank=1").replace("11.25", "11.75")
    first, second = records(LOG + other + LOG.replace("11.25", "11.5"))
    assert (points(first, "training_loss")[1], points(second, "training_loss")[1]) == (11.25, 11.5)
    assert any("rank 0" in note for note in first.notes)


@pytest.mark.parametrize("log", [LOG, "[olmo.train:1] [step=1/8]\n    train/CrossEntropyLoss=11.25\n"])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("olmo", ["olmo"])
