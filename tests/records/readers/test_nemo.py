"""NeMo 2: iterations from 0, a validation loss that stays on every line, means over the log interval."""

import numpy as np
import pytest

from tests.records.readers.reading import claimed_by, points, records

LOG = """\
[NeMo I 2031-01-02 nodeb utils:1] Setting up optimizer
Training epoch 0, iteration 0/3 | lr: 1e-05 | global_step: 0 | reduced_train_loss: 9.5 | train_step_timing in s: 2.5
 1: Training epoch 0, iteration 1/3 | lr: 2e-05 | global_step: 1 | reduced_train_loss: 9.251 | train_step_timing in s: 0.5
Validation: iteration 1/1
Training epoch 0, iteration 2/3 | lr: 3e-05 | global_step: 2 | reduced_train_loss: nan | val_loss: 9.125 | val_ppl: 9178
Training epoch 0, iteration 3/3 | lr: 4e-05 | global_step: 3 | reduced_train_loss: 8.75 | val_loss: 9.125
"""


def test_values_steps_and_digits():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(loss.values, [9.5, 9.251, np.nan, 8.75])
    assert (loss.digits, loss.averaging, record.expected_last_step) == (4, "", 3)
    assert points(record, "step_seconds") == {0: 2.5, 1: 0.5}
    assert points(record, "learning_rate") == {0: 1e-5, 1: 2e-5, 2: 3e-5, 3: 4e-5}
    assert "steps are counted from 0" in record.notes


def test_a_validation_loss_that_stays_is_one_point():
    (record,) = records(LOG)
    assert points(record, "validation_loss") == {2: 9.125}
    assert any("until the next validation" in note for note in record.notes)


def test_a_log_interval_makes_means_and_a_later_epoch_hides_the_end():
    (record,) = records(
        "Training epoch 0, iteration 9/99 | global_step: 9 | reduced_train_loss: 5.5\n"
        "Training epoch 0, iteration 19/99 | global_step: 19 | reduced_train_loss: 5.25\n"
        "Training epoch 1, iteration 9/99 | global_step: 29 | reduced_train_loss: 5.0\n"
    )
    assert record.series["training_loss"].averaging == "mean over 10 steps"
    assert record.expected_last_step is None


def test_epochs_count_on_without_a_global_step():
    (record,) = records(
        "Training epoch 0, iteration 0/1 | reduced_train_loss: 5.5\n"
        "Training epoch 0, iteration 1/1 | reduced_train_loss: 5.25\n"
        "Training epoch 1, iteration 0/1 | reduced_train_loss: 5.0\n"
        "Training epoch 1, iteration 1/1 | reduced_train_loss: 4.75\n"
    )
    assert points(record, "training_loss") == {0: 5.5, 1: 5.25, 2: 5.0, 3: 4.75}


def test_hostile_numbers():
    (record,) = records(LOG + f"Training epoch 0, iteration 4/3 | global_step: {'9' * 5000} | lr: 1\n")
    assert record.series["training_loss"].steps.tolist() == [0, 1, 2, 3]


def test_two_runs_and_a_line_that_breaks_off():
    first, second = records(LOG + LOG.replace("9.5 ", "9.75 ") + "Training epoch 0, iteration 4/3\n")
    assert (points(first, "training_loss")[0], points(second, "training_loss")[0]) == (9.5, 9.75)
    assert points(second, "validation_loss") == {2: 9.125}
    assert (second.not_understood, second.example) == (1, "Training epoch 0, iteration 4/3")


@pytest.mark.parametrize("log", [LOG, LOG.splitlines()[2]])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("nemo", ["nemo"])
