"""The long screen: its runs judged as any others, the growth of the gap against half the margin."""

from dataclasses import replace

import numpy as np
import pytest

from fp8migrate.checks import judge_comparison, required_checks
from fp8migrate.checks.check import run_checks
from fp8migrate.checks.drift import LONG_SCREEN_CHECKS
from fp8migrate.checks.schema import CheckResult
from fp8migrate.checks.stability import diverged_runs
from fp8migrate.evidence.schema import Comparison, Growth
from fp8migrate.jobs import Arm
from fp8migrate.verdict import decide
from tests.simulation import Scenario, simulate_screens

QUIET = Scenario(tau=0.0002)
# Mean 0.05 %, SD 0.02582 %, SE 0.01291 %; t(.95, 3) = 2.3534: 0.0196 % to 0.0804 %.
GROWN = (0.0002, 0.0004, 0.0006, 0.0008)


def grown(values: tuple[float, ...], error: float | None = 0.0, **changes: object) -> tuple[CheckResult, ...]:
    """`no_screen_drift` on these growths of the validation loss."""
    _, long = simulate_screens(**changes)  # type: ignore[arg-type]
    growth = Growth("validation_loss", tuple(range(len(values))), values, error)
    return run_checks(LONG_SCREEN_CHECKS, replace(long, growth=(growth,)), "long_screen")


def test_growth_below_half_the_margin_passes() -> None:
    (found,) = grown(GROWN)
    assert (found.status, found.code, found.limit) == ("pass", "", 0.00125)
    assert found.measured == pytest.approx(0.0005)
    assert found.interval == pytest.approx((0.0001962, 0.0008038), abs=1e-7)
    assert (found.design, found.fraction, found.scope) == ("long_screen", 0.6, "long screen at 60 % of the trunk")
    assert "4 times the steps" in found.summary


def test_growth_that_reaches_half_the_margin_is_widening() -> None:
    (found,) = grown(GROWN, margin="strict")
    assert (found.status, found.code, found.limit) == ("inconclusive", "WIDENING", 0.0005)


def test_the_held_out_documents_widen_the_bounds() -> None:
    """SE² = 0.01291² + 0.03² %²: SE 0.03266 %, upper bound 0.05 + 2.3534 · 0.03266 = 0.1269 %."""
    (found,) = grown(GROWN, error=0.0003)
    assert found.interval == pytest.approx((-0.0002686, 0.0012686), abs=1e-7)
    assert found.code == "UNDERPOWERED"


def test_noise_is_not_called_growth() -> None:
    """Mean 0, SD 0.183 %, upper bound 0.215 %: nothing grows, and nothing excludes it."""
    (found,) = grown((-0.002, -0.001, 0.001, 0.002))
    assert (found.status, found.code) == ("inconclusive", "UNDERPOWERED")
    assert "pairs would be needed" in found.summary


def test_a_gap_that_shrinks_passes() -> None:
    assert grown((-0.002, -0.0021, -0.0019, -0.002))[0].status == "pass"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ((), "TRUNCATED"),
        ((0.0, 0.0, float("nan"), 0.0), "TRUNCATED"),
        ((0.0001, 0.0, -0.0001), "TOO_FEW_PAIRS"),
        ((0.0,), "TOO_FEW_PAIRS"),
        ((0.002, 0.0021, 0.0019), "WIDENING"),
    ],
)
def test_what_cannot_be_bounded_never_passes(values: tuple[float, ...], code: str) -> None:
    (found,) = grown(values)
    assert (found.status, found.code) == ("inconclusive", code)


def test_every_primary_endpoint_is_judged() -> None:
    _, long = simulate_screens(QUIET, serve="fp8", serve_margin=0.01)
    found = run_checks(LONG_SCREEN_CHECKS, long, "long_screen")
    assert [(r.status, r.limit) for r in found] == [("pass", 0.00125), ("pass", 0.005)]
    # Without a growth of the second one, it is missing and not silently left out.
    found = run_checks(LONG_SCREEN_CHECKS, replace(long, growth=long.growth[:1]), "long_screen")
    assert [r.code for r in found] == ["", "TRUNCATED"]


def judged(longer: Scenario, **changes: object) -> list[CheckResult]:
    """Both screens, the runs of 4K under `longer`."""
    return [
        result
        for comparison in simulate_screens(QUIET, longer, **changes)  # type: ignore[arg-type]
        for result in judge_comparison(comparison)
    ]


def test_sound_screens_are_screened() -> None:
    found = judged(QUIET)
    assert decide(found).name == "SCREENED"
    assert required_checks("long_screen") <= {r.check for r in found if r.design == "long_screen"}


@pytest.mark.parametrize(
    ("longer", "name", "code"),
    [
        (Scenario(tau=0.0002, long_gap=0.002), "INCONCLUSIVE", "WIDENING"),
        (Scenario(non_finite=((("candidate", 2, None), 400),)), "FAIL", "NON_FINITE"),
        (Scenario(silent_nan=((("candidate", 2, None), 400),)), "FAIL", "NON_FINITE"),
        (Scenario(diverges_at=0.5), "FAIL", "DIVERGED"),
        (Scenario(cut=((("candidate", 1, None), 400, "error"),)), "FAIL", "CANDIDATE_CRASH"),
        (Scenario(cut=((("candidate", 1, None), 400, "killed"),)), "INCONCLUSIVE", "TRUNCATED"),
        (Scenario(missing=(("candidate", 3, None),)), "INCONCLUSIVE", "TRUNCATED"),
        (Scenario(missing=(("baseline", 3, None),)), "INCONCLUSIVE", "TRUNCATED"),
        (Scenario(flat_baseline=True), "INCONCLUSIVE", "BASELINE_UNHEALTHY"),
        (Scenario(other_torch=True), "INCONCLUSIVE", "INVALID_PAIR"),
        (Scenario(quantized_tensors=0), "INCONCLUSIVE", "FP8_NOT_ACTIVE"),
        (Scenario(tau=0.0002, candidate_spikes=9), "INCONCLUSIVE", "SPIKES"),
    ],
)
def test_runs_of_4k_are_judged_as_any_others(longer: Scenario, name: str, code: str) -> None:
    """The runs of K are sound: only those of 4K can have said it."""
    found = decide(judged(longer))
    assert (found.name, found.code) == (name, code)
    assert found.why.startswith("long screen")


def test_no_runs_of_4k_at_all_are_truncated() -> None:
    arms: tuple[Arm, ...] = ("baseline", "candidate")
    assert decide(judged(Scenario(missing=tuple((arm, pair, None) for arm in arms for pair in range(4))))).code == "TRUNCATED"


def test_a_screen_of_short_runs_has_short_long_runs_too() -> None:
    """4K below 500 steps is judged by quarters, as K is."""
    assert decide(judged(QUIET, screen_steps=60)).name == "SCREENED"
    assert decide(judged(Scenario(diverges_at=0.5), screen_steps=60)).code == "DIVERGED"


def test_the_screens_floor_sets_the_threshold_of_divergence() -> None:
    """The candidate is 1.2 % away from 60 % of the run on. Floors of 1 % allow for that, four quarters for a hundred blocks."""
    _, long = simulate_screens(QUIET)

    def moved(comparison: Comparison, gap: float) -> Comparison:
        curves = []
        for one in comparison.curves:
            values = one.baseline.values.copy()
            values[int(0.6 * values.size) :] *= 1 + gap
            curves.append(replace(one, candidate=replace(one.candidate, values=values)))
        return replace(comparison, curves=tuple(curves))

    def with_floor(comparison: Comparison, gap: float) -> Comparison:
        floors = tuple(
            replace(one, candidate=replace(one.candidate, values=one.baseline.values * (1 + gap)))
            for one in comparison.floor_curves
        )
        return replace(comparison, floor_curves=floors)

    far = moved(replace(long, cells=()), 0.012)
    assert len(diverged_runs(with_floor(far, 0.0), "candidate")) == 4
    assert diverged_runs(with_floor(far, 0.01), "candidate") == []
    assert np.isfinite(far.floor_curves[0].candidate.values).all()
