"""Curves are made small without losing what matters in them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fp8migrate.evidence.schema import PairCurves
from fp8migrate.report.curves import (
    Line,
    band_of,
    block_edges,
    block_medians,
    decimate,
    first_non_finite,
    gap_of,
    kept_points,
    mean_of,
)

from .samples import series


def line(values: list[float]) -> Line:
    return Line(np.arange(len(values), dtype=np.float64), np.array(values, dtype=np.float64))


@given(st.lists(st.floats(), min_size=1, max_size=400), st.integers(min_value=30, max_value=90))
def test_decimation_keeps_ends_extremes_and_the_first_non_finite(values: list[float], most: int) -> None:
    array = np.array(values)
    kept = kept_points(array, most)
    assert kept.size <= most + 2
    assert (np.diff(kept) > 0).all()
    assert {0, array.size - 1} <= set(kept.tolist())
    finite = array[np.isfinite(array)]
    if finite.size:
        assert {finite.min(), finite.max()} <= set(array[kept].tolist())
    broken = np.flatnonzero(~np.isfinite(array))
    if broken.size:
        assert broken[0] in kept


def test_short_curves_stay_as_they_are() -> None:
    short = line([3.0, 2.0, float("nan"), 1.0])
    assert np.array_equal(decimate(short, 4).values, short.values, equal_nan=True)


def test_gap_is_relative_and_on_shared_steps_only() -> None:
    baseline = series("loss", np.array([1, 2, 3, 4]), np.array([2.0, 2.0, 0.0, 4.0]))
    candidate = series("loss", np.array([2, 3, 4, 5]), np.array([2.02, 1.0, float("nan"), 4.0]))
    gap = gap_of(PairCurves("candidate", 0, None, baseline, candidate))
    assert gap.steps.tolist() == [2, 3, 4]
    assert gap.values[0] == pytest.approx(0.01)
    assert np.isnan(gap.values[1:]).all()


def test_blocks_are_medians_and_empty_ones_are_not_finite() -> None:
    edges = np.array([0.0, 3.0, 6.0])
    assert block_medians(line([1, 100, 2, float("nan"), float("inf"), float("nan")]), edges).values.tolist()[0] == 2
    assert np.isnan(block_medians(line([1, 100, 2]), edges).values[1])
    assert block_edges([]).size == 0


def test_mean_and_band_over_pairs() -> None:
    low, high = line([1.0, 2.0, float("nan")]), line([3.0, 2.5, 1.0])
    mean = mean_of([low, high])
    assert mean is not None
    assert mean.values[:2].tolist() == [2.0, 2.25]
    assert np.isnan(mean.values[2])
    band = band_of([low, high])
    assert band is not None
    assert (band.steps.tolist(), band.low.tolist(), band.high.tolist()) == ([0, 1], [1.0, 2.0], [3.0, 2.5])
    assert band_of([low]) is None
    assert mean_of([]) is None


def test_first_non_finite() -> None:
    assert first_non_finite(line([1.0, float("inf"), float("nan")])) == 1.0
    assert first_non_finite(line([1.0])) is None
