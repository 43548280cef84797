"""Curves of different logs on the same steps, worked out by hand."""

import numpy as np

from fp8migrate.evidence.alignment import align
from fp8migrate.records.logs import Axis, LogSeries


def series(
    steps: list[float], values: list[float], *, axis: Axis = "steps", unit: str = "nats", averaging: str = ""
) -> LogSeries:
    return LogSeries("training_loss", "loss", unit, axis, np.array(steps, float), np.array(values, float), averaging=averaging)


def test_the_same_steps_need_nothing() -> None:
    found = align([series([1, 2, 3], [3, 2, 1]), series([1, 2, 3], [6, 5, 4])], ["a", "b"])
    assert found.steps.tolist() == [1, 2, 3]
    assert found.values.tolist() == [[3, 2, 1], [6, 5, 4]]
    assert (found.notes, found.problems) == ((), ())


def test_counting_from_zero_is_detected_and_said() -> None:
    found = align([series([0, 1, 2], [3, 2, 1]), series([1, 2, 3], [6, 5, 4])], ["a", "b"])
    assert found.steps.tolist() == [1, 2, 3]
    assert found.values.tolist() == [[3, 2, 1], [6, 5, 4]]
    assert found.notes == ("a: counts from 0 where others count from 1; shifted by one",)


def test_a_log_that_merely_starts_earlier_is_not_shifted() -> None:
    found = align([series([0, 1, 2, 3], [4, 3, 2, 1]), series([1, 2, 3], [6, 5, 4])], ["a", "b"])
    assert found.values.tolist() == [[3, 2, 1], [6, 5, 4]]
    assert not any("shifted" in note for note in found.notes)


def test_other_intervals_are_compared_where_both_have_points_and_the_rest_is_said() -> None:
    found = align([series([1, 2, 3, 4], [4, 3, 2, 1]), series([2, 4], [6, 5])], ["a", "b"])
    assert found.steps.tolist() == [2, 4]
    assert found.values.tolist() == [[3, 1], [6, 5]]
    assert found.notes == ("a: 2 of 4 points have no partner at the same step and are left out",)


def test_a_log_of_every_step_is_averaged_like_one_that_averages() -> None:
    fine = series([1, 2, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1])
    found = align([fine, series([3, 6], [5, 2], averaging="mean over 3 steps")], ["a", "b"])
    assert found.steps.tolist() == [3, 6]
    assert found.values.tolist() == [[5, 2], [5, 2]]
    assert "averaged over 3 steps" in found.notes[0]


def test_an_interval_that_is_not_filled_is_no_mean() -> None:
    found = align([series([2, 3, 4, 5, 6], [5, 4, 3, 2, 1]), series([3, 6], [5, 2], averaging="mean over 3 steps")], ["a", "b"])
    assert found.steps.tolist() == [6]
    assert found.values.tolist() == [[2], [2]]


def test_unequal_lengths_are_a_problem_by_name() -> None:
    long, short = series([10, 20, 30, 40], [4, 3, 2, 1]), series([10, 20], [4, 3])
    found = align([long, short], ["a", "b"])
    assert [found.problems[0].what] == ["runs of unequal length: the longest ends at step 40, b at 20"]


def test_a_run_that_lacks_only_its_last_point_is_shorter() -> None:
    found = align([series([10, 20, 30], [4, 3, 2]), series([10, 20], [4, 3])], ["a", "b"])
    assert [problem.what for problem in found.problems] == ["runs of unequal length: the longest ends at step 30, b at 20"]


def test_other_intervals_may_end_less_than_their_own_interval_apart() -> None:
    """30 is the last multiple of 10 below 37: the coarse log is whole. The fine one that ends at 31 is not."""
    fine, coarse = series(list(range(1, 38)), [3.0] * 37), series([10, 20, 30], [4, 3, 2])
    assert align([fine, coarse], ["a", "b"]).problems == ()
    assert [
        p.code
        for p in align([series(list(range(1, 32)), [3.0] * 31), series([10, 20, 30, 40], [4, 3, 2, 1])], ["a", "b"]).problems
    ] == ["TRUNCATED"]


def test_units_and_axes_are_never_mixed() -> None:
    other_axis = align([series([1, 2], [4, 3]), series([1, 2], [4, 3], axis="tokens")], ["a", "b"])
    other_unit = align([series([1, 2], [4, 3]), series([1, 2], [4, 3], unit="bits")], ["a", "b"])
    assert [p.what for p in other_axis.problems] == ["the logs count different things: steps, tokens"]
    assert [p.what for p in other_unit.problems] == ["losses in different units are never compared: bits, nats"]
    assert {p.code for p in (*other_axis.problems, *other_unit.problems)} == {"INVALID_PAIR"}
    assert other_axis.steps.size == other_unit.steps.size == 0


def test_no_common_step_is_a_problem() -> None:
    found = align([series([1, 4], [4, 3]), series([2, 5, 8], [4, 3, 2])], ["a", "b"])
    assert [found.problems[0].what] == ["the logs share none of their steps"]


def test_a_nan_spoils_the_mean_it_is_in_and_no_other() -> None:
    fine = series([1, 2, 3, 4], [np.nan, 3, 2, 1])
    found = align([fine, series([2, 4], [4, 2], averaging="mean over 2 steps")], ["a", "b"])
    np.testing.assert_array_equal(found.values[0], [np.nan, 1.5])


def test_points_before_and_after_the_common_steps_are_counted_too() -> None:
    found = align([series([1, 2, 3, 4], [4, 3, 2, 1]), series([2, 3], [6, 5])], ["a", "b"])
    assert found.notes == ("a: 2 of 4 points have no partner at the same step and are left out",)


def test_a_log_that_fills_no_interval_of_an_averaging_one_is_a_problem() -> None:
    """Found by fuzzing: three single steps can give no mean over ten."""
    fine, coarse = series([1, 2, 3], [4, 3, 2]), series([10, 20, 30], [4, 3, 2], averaging="mean over 10 steps")
    found = align([fine, coarse], ["a", "b"])
    assert [problem.what for problem in found.problems] == ["a fills no interval of 10 steps over which another log averages"]
    assert found.values.shape == (2, 0)
