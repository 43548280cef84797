"""LitGPT: an iteration is no step, and a validation loss stays on every line."""

import pytest

from tests.records.readers.reading import claimed_by, points, records

LINE = "Epoch 1 | iter {} step {} | loss train: {}, val: {} | iter time: 250.00 ms{} remaining time: 0:00:10\n".format
LOG = (
    LINE(1, 0, "9.500", "n/a", "")
    + LINE(2, 1, "9.250", "n/a", " (step)")
    + LINE(3, 1, "9.125", "n/a", "")
    + LINE(4, 2, "nan", "n/a", " (step)")
    + LINE(5, 2, "8.750", "8.500", "")
    + LINE(6, 3, "8.625", "8.500", " (step)")
    + LINE(8, 4, "8.375", "8.500", " (step)")
)


def test_the_line_that_ends_a_step_counts():
    (record,) = records(LOG)
    loss = record.series["training_loss"]
    assert loss.steps.tolist() == [1, 2, 3, 4]
    assert (loss.values[0], loss.values[2], loss.values[3]) == (9.25, 8.625, 8.375)
    assert str(loss.values[1]) == "nan"
    assert (loss.digits, loss.repeated) == (4, 0)
    assert any(note.startswith("3 lines of iterations that end no step") for note in record.notes)
    assert "step_seconds" not in record.series


def test_a_validation_loss_that_stays_is_one_point():
    (record,) = records(LOG)
    assert points(record, "validation_loss") == {3: 8.5}
    assert not any("missing" in note for note in record.notes)


def test_validations_with_lines_of_their_own():
    (record,) = records(
        LINE(1, 1, "9.500", "n/a", " (step)")
        + LINE(2, 2, "9.250", "n/a", " (step)")
        + "iter 2: val loss 9.1250, val time: 100.00 ms\n"
        + LINE(3, 3, "9.000", "9.125", " (step)")
        + "Final evaluation | val loss: 8.875 | val ppl: 7151.0\n"
    )
    assert points(record, "validation_loss") == {2: 9.125, 3: 8.875}
    assert points(record, "step_seconds") == {1: 0.25, 2: 0.25, 3: 0.25}


def test_two_runs_and_a_line_that_breaks_off():
    first, second = records(LOG + LOG.replace("9.250", "9.000") + "Epoch 1 | iter 9 step 5 | loss tr\n")
    assert (points(first, "training_loss")[1], points(second, "training_loss")[1]) == (9.25, 9.0)
    assert points(second, "validation_loss") == {3: 8.5}
    assert second.not_understood == 1


@pytest.mark.parametrize("log", [LOG, LOG.splitlines()[0]])
def test_no_other_reader_takes_it(log):
    assert claimed_by(log) == ("litgpt", ["litgpt"])
