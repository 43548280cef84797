"""The growth of a screen's gaps from K steps to 4K: the same pairs, subtracted; and nothing of it in the screen itself."""

from dataclasses import replace

import numpy as np
import pytest

from fp8migrate.evidence.growth import with_growth
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import Cell, Comparison, Delta
from tests.simulation import Scenario, simulate, simulate_screens

QUIET = Scenario(tau=0.0, step_sd_nats=0.0, document_sd=0.0)


def with_gaps(comparison: Comparison, gaps: dict[int, float], sampling_error: float | None = 0.0) -> Comparison:
    """The comparison with these gaps of the candidate at 60 %, by pair."""
    deltas = tuple(Delta(pair, 2.0, 2.0 * (1 + gap)) for pair, gap in gaps.items())
    cell = Cell("candidate", "validation_loss", 0.6, deltas, sampling_error)
    place = ("candidate", "validation_loss", 0.6)
    return replace(comparison, cells=tuple(cell if (c.arm, c.endpoint, c.fraction) == place else c for c in comparison.cells))


def test_growth_is_the_difference_of_the_same_pairs() -> None:
    screen, long = simulate_screens()
    short = with_gaps(screen, {0: 0.0010, 1: 0.0020, 2: -0.0005, 3: 0.0}, 0.00003)
    longer = with_gaps(long, {3: 0.0004, 2: 0.0005, 1: 0.0015, 0: 0.0010}, 0.00004)
    (growth,) = with_growth(longer, short).growth
    assert (growth.endpoint, growth.pairs) == ("validation_loss", (0, 1, 2, 3))
    np.testing.assert_allclose(growth.values, (0.0, -0.0005, 0.0010, 0.0004), atol=1e-12)
    assert growth.sampling_error == pytest.approx(0.00005)
    assert with_growth(with_gaps(long, {0: 0.001}, None), short).growth[0].sampling_error is None


def test_growth_shows_the_truth_that_was_put_in() -> None:
    _, long = simulate_screens(replace(QUIET, gap=0.002, long_gap=0.001))
    np.testing.assert_allclose(long.growth[0].values, 0.001)
    assert long.tokens == 4 * 150 * 32 * 256
    assert (long.first_step, long.last_step, long.fractions, long.decayed) == (360, 960, (0.6,), True)


def test_a_pair_that_either_length_lacks_has_no_growth() -> None:
    screen, long = simulate_screens()
    longer = with_gaps(long, {0: 0.001, 2: 0.001, 3: 0.001})
    assert with_growth(longer, with_gaps(screen, {0: 0.0, 1: 0.0, 2: 0.0})).growth[0].pairs == (0, 2)
    without = replace(long, cells=(), growth=())
    assert with_growth(without, screen).growth == ()


def test_served_in_fp8_both_endpoints_have_a_growth() -> None:
    _, long = simulate_screens(serve="fp8")
    assert [growth.endpoint for growth in long.growth] == ["validation_loss", "validation_loss_fp8"]


def test_the_screen_lends_its_floor_at_the_same_start() -> None:
    screen, long = simulate_screens()
    assert {(curves.arm, curves.fraction) for curves in long.floor_curves} == {("floor", 0.6)}
    assert len(long.floor_curves) == 4
    assert all(curves.arm == "candidate" for curves in long.curves)
    assert screen.floor_curves == ()


def test_runs_of_4k_are_no_pairs_of_the_screen() -> None:
    """Given the jobs of both, each comparison takes its own, whatever the order."""
    short, long = simulate(design="screen"), simulate(design="long_screen")
    assert not {job.digest for job in short.jobs} & {job.digest for job in long.jobs}
    jobs, records = (*long.jobs, *short.jobs), short.records | long.records
    mixed = compare(short.plan, "screen", jobs, records)
    alone = compare(short.plan, "screen", short.jobs, short.records)
    assert mixed.runs == alone.runs
    assert mixed.cells == alone.cells
    longer = compare(short.plan, "long_screen", jobs, records)
    assert {(run.arm, run.fraction, run.expected_last_step) for run in longer.runs} == {
        ("baseline", 0.6, 960),
        ("candidate", 0.6, 960),
    }


@pytest.mark.parametrize(
    ("fractions", "long"), [((0.5,), 0.5), ((0.4, 0.8), 0.4), ((0.3, 0.6, 0.9), 0.6), ((0.2, 0.4, 0.6, 0.8), 0.4)]
)
def test_the_middle_fraction_runs_4k(fractions: tuple[float, ...], long: float) -> None:
    screen = simulate(design="screen", fractions=fractions).plan.design.screen
    assert screen is not None
    assert screen.long_fraction == long


def test_planned_pairs_without_jobs_are_missed() -> None:
    e = simulate(design="long_screen")
    comparison = compare(e.plan, "long_screen", (), {})
    assert (comparison.planned_pairs, comparison.fractions) == (4, (0.6,))
