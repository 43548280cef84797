"""Every row of PARITY.md 4's ranked table, from runs to verdict."""

from dataclasses import replace

import numpy as np
import pytest

from fp8migrate.checks import judge_comparison, required_checks
from fp8migrate.checks.check import Check, Need, run_check
from fp8migrate.checks.parity import parity
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import Cell, Comparison, Delta
from fp8migrate.jobs import Arm, DesignName
from fp8migrate.records.schema import Cause
from fp8migrate.verdict import Verdict, decide
from tests.simulation import Experiment, Scenario, simulate


def comparison_of(e: Experiment) -> Comparison:
    return compare(e.plan, e.design, e.jobs, e.records)


def judged(scenario: Scenario | None = None, design: DesignName = "branch", **plan_changes: object) -> tuple[CheckResult, ...]:
    return judge_comparison(comparison_of(simulate(scenario, design, **plan_changes)))


def verdict(scenario: Scenario | None = None, design: DesignName = "branch", **plan_changes: object) -> Verdict:
    return decide(judged(scenario, design, **plan_changes))


def every(arm: Arm, pairs: int = 4) -> tuple[tuple[Arm, int, float | None], ...]:
    return tuple((arm, pair, None) for pair in range(pairs))


def cut(*runs: tuple[Arm, int, Cause]) -> Scenario:
    return Scenario(cut=tuple(((arm, pair, None), 40, cause) for arm, pair, cause in runs))


@pytest.mark.parametrize("design", ["branch", "scratch"])
def test_a_sound_recipe_passes(design: DesignName) -> None:
    found = verdict(design=design)
    assert (found.name, found.code) == ("PASS", "PASS")
    assert "margin 0.25 %" in found.why
    assert "4 pairs" in found.why


def test_a_real_gap_within_the_margin_is_said() -> None:
    found = verdict(Scenario(gap=0.001, tau=0.0003))
    assert (found.name, found.code) == ("PASS", "REAL_BUT_ACCEPTABLE")


@pytest.mark.parametrize(("gap", "pairs"), [(0.006, 4), (0.006, 3), (0.006, 2)])
def test_a_gap_fails_also_with_two_pairs(gap: float, pairs: int) -> None:
    found = verdict(Scenario(gap=gap, tau=0.0001), pairs=pairs)
    assert (found.name, found.code) == ("FAIL", "GAP")


@pytest.mark.parametrize("pairs", [2, 3])
def test_too_few_pairs_never_pass(pairs: int) -> None:
    found = verdict(Scenario(tau=0.0002, sensitivity_gap=0.2), pairs=pairs)
    assert (found.name, found.code) == ("INCONCLUSIVE", "TOO_FEW_PAIRS")


def test_a_single_pair_is_inconclusive_however_good() -> None:
    found = judged(Scenario(tau=0.0002), pairs=1)
    assert decide(found).name == "INCONCLUSIVE"
    assert next(result for result in found if result.check == "parity").code == "TOO_FEW_PAIRS"


def test_a_single_pair_can_still_diverge() -> None:
    assert verdict(Scenario(diverges_at=0.5, sensitivity_gap=0.2), pairs=1).code == "DIVERGED"


@pytest.mark.parametrize("scenario", [Scenario(flat_baseline=True), Scenario(zero_gradients=True)])
def test_a_baseline_that_does_not_learn(scenario: Scenario) -> None:
    assert verdict(scenario).code == "BASELINE_UNHEALTHY"


def test_a_nan_baseline_outranks_a_nan_candidate() -> None:
    both = Scenario(non_finite=((("baseline", 0, None), 30), (("candidate", 0, None), 30)))
    assert verdict(both).code == "BASELINE_UNHEALTHY"


def test_nan_fails_also_where_the_run_says_completed() -> None:
    for scenario in (
        Scenario(silent_nan=((("candidate", 1, None), 30),)),
        Scenario(non_finite=((("candidate", 1, None), 30),)),
    ):
        found = verdict(scenario)
        assert (found.name, found.code) == ("FAIL", "NON_FINITE")
        assert "branch-p1-candidate at step 330" in found.why


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_validation_or_gradient_fails(bad: float) -> None:
    e = simulate()
    digest = next(job.digest for job in e.jobs if job.role.arm == "candidate")
    record = e.records[digest]
    evaluations = tuple(replace(found, loss=bad) if found.step == 450 else found for found in record.evaluations)
    e.records[digest] = replace(record, evaluations=evaluations)
    assert decide(judge_comparison(comparison_of(e))).code == "NON_FINITE"
    e.records[digest] = record
    record.series["grad_norm"].values[5] = bad
    assert decide(judge_comparison(comparison_of(e))).code == "NON_FINITE"


def test_nan_in_other_arms_does_not_fail_the_candidate() -> None:
    nan = tuple(((arm, 1, None), 30) for arm in ("sensitivity", "floor"))
    assert verdict(Scenario(non_finite=nan)).name == "PASS"  # type: ignore[arg-type]
    control = Scenario(non_finite=((("control", 0, None), 30),))
    assert verdict(control).name == "PASS"


@pytest.mark.parametrize("num_steps", [600, 2000])
def test_late_divergence(num_steps: int) -> None:
    found = verdict(Scenario(diverges_at=0.85), num_steps=num_steps)
    assert (found.name, found.code) == ("FAIL", "DIVERGED")


def test_one_diverged_pair_is_not_averaged_away() -> None:
    e = simulate(num_steps=2000)
    digest = next(job.digest for job in e.jobs if job.role.arm == "candidate" and job.role.pair == 2)
    e.records[digest].series["loss"].values[-300:] *= 1.2
    assert decide(judge_comparison(comparison_of(e))).code == "DIVERGED"


def test_a_large_forward_penalty_alone_is_no_divergence() -> None:
    """Two numbers, always apart: the FP8 forward costs 1.5 % on the same weights, and nothing is learned worse."""
    assert verdict(Scenario(penalty=0.015)).name == "PASS"


@pytest.mark.parametrize("cause", ["out_of_memory", "error"])
def test_a_crash_of_the_candidate_alone_fails(cause: Cause) -> None:
    assert verdict(cut(("candidate", 1, cause))).code == "CANDIDATE_CRASH"
    assert verdict(cut(("candidate", 1, cause), ("baseline", 1, cause))).code == "TRUNCATED"


@pytest.mark.parametrize("cause", ["stalled", "killed", "start_missing", "disk"])
@pytest.mark.parametrize("arm", ["candidate", "baseline"])
def test_infrastructure_never_fails(arm: Arm, cause: Cause) -> None:
    found = verdict(cut((arm, 1, cause)))
    assert (found.name, found.code) == ("INCONCLUSIVE", "TRUNCATED")


@pytest.mark.parametrize("arm", ["baseline", "candidate", "floor", "control"])
def test_a_missing_run_or_arm_is_truncated(arm: Arm) -> None:
    assert verdict(Scenario(missing=((arm, 0, None),))).code == "TRUNCATED"
    assert verdict(Scenario(missing=every(arm))).code == "TRUNCATED"


def test_nothing_at_all_is_truncated() -> None:
    e = simulate()
    assert decide(judge_comparison(compare(e.plan, "branch", e.jobs, {}))).code == "TRUNCATED"
    assert decide(judge_comparison(compare(e.plan, "branch", (), {}))).code == "TRUNCATED"


def test_fewer_jobs_than_planned_are_truncated() -> None:
    e = simulate(pairs=5)
    jobs = [job for job in e.jobs if job.role.pair < 4]
    assert decide(judge_comparison(compare(e.plan, "branch", jobs, e.records))).code == "TRUNCATED"


def test_a_missing_step_and_a_missing_validation_are_truncated() -> None:
    e = simulate()
    record = next(r for r in e.records.values() if r.job.role.arm == "candidate")
    loss = record.series["loss"]
    keep = np.arange(loss.steps.size) != 100
    shortened = {**record.series, "loss": replace(loss, steps=loss.steps[keep], values=loss.values[keep])}
    e.records[record.key] = replace(record, series=shortened)
    assert decide(judge_comparison(comparison_of(e))).code == "TRUNCATED"
    e.records[record.key] = replace(record, evaluations=record.evaluations[:-2])
    assert decide(judge_comparison(comparison_of(e))).code == "TRUNCATED"
    e.records[record.key] = replace(record, series={})
    assert decide(judge_comparison(comparison_of(e))).code == "TRUNCATED"


def test_a_schedule_that_has_not_decayed_is_truncated() -> None:
    comparison = replace(comparison_of(simulate()), decayed=False)
    assert decide(judge_comparison(comparison)).code == "TRUNCATED"


@pytest.mark.parametrize(
    "scenario", [Scenario(different_data=True), Scenario(different_documents=True), Scenario(other_torch=True)]
)
def test_arms_that_differ_in_more_than_precision(scenario: Scenario) -> None:
    assert verdict(scenario).code == "INVALID_PAIR"
    assert verdict(replace(scenario, gap=0.005)).code == "INVALID_PAIR"


@pytest.mark.parametrize(
    "scenario",
    [Scenario(identical=True), Scenario(quantized_tensors=0), Scenario(quantized_tensors=None), Scenario(coverage=0.0)],
)
def test_a_candidate_without_fp8(scenario: Scenario) -> None:
    assert verdict(scenario).code == "FP8_NOT_ACTIVE"
    accepted = judged(scenario, require_fp8=False)
    assert decide(accepted).name == "PASS"
    assert "require_fp8: false" in next(r.summary for r in accepted if r.check == "fp8_active")


def test_losses_with_too_few_digits() -> None:
    assert verdict(Scenario(digits=3)).code == "LOW_RESOLUTION"
    assert verdict(Scenario(digits=5)).name == "PASS"
    assert verdict(Scenario(digits=4), margin="strict").code == "LOW_RESOLUTION"


def test_a_design_that_cannot_convict_the_bad_recipe() -> None:
    assert verdict(Scenario(sensitivity_gap=0.0005)).code == "NO_SENSITIVITY"
    assert verdict(Scenario(missing=every("sensitivity"))).code == "NO_SENSITIVITY"
    unplanned = replace(comparison_of(simulate()), planned_sensitivity=False)
    assert decide(judge_comparison(unplanned)).code == "NO_SENSITIVITY"


def test_a_forward_penalty_does_not_convict_the_bad_recipe() -> None:
    """Its training loss is 0.9 % up, all of it the FP8 forward: nothing shows that the design sees lost quality."""
    assert verdict(Scenario(sensitivity_gap=0.0, penalty=0.009)).code == "NO_SENSITIVITY"


def test_the_bad_recipe_breaking_down_is_a_conviction() -> None:
    nan = Scenario(sensitivity_gap=0.0, non_finite=((("sensitivity", 0, None), 30),))
    assert verdict(nan).name == "PASS"
    # Killed from outside, it proves nothing.
    killed = Scenario(sensitivity_gap=0.0, cut=tuple((run, 30, "killed") for run in every("sensitivity")))
    assert verdict(killed).code == "NO_SENSITIVITY"


def test_better_than_can_be_true() -> None:
    assert verdict(Scenario(gap=-0.006)).code == "SUSPECT_MISMATCH"


def test_a_gap_that_widens() -> None:
    found = verdict(Scenario(drift_per_e_fold=0.002, tau=0.0001, step_sd_nats=0.001), num_steps=2000)
    assert (found.name, found.code) == ("INCONCLUSIVE", "WIDENING")


def test_spikes_of_its_own_and_spikes_of_the_data() -> None:
    assert verdict(Scenario(candidate_spikes=9), num_steps=2000).code == "SPIKES"
    assert verdict(Scenario(shared_spikes=9), num_steps=2000).name == "PASS"


def test_too_much_noise_names_the_pairs_needed() -> None:
    found = verdict(Scenario(tau=0.004), seed=1)
    assert found.code == "UNDERPOWERED"
    assert "a new design needs" in found.why


def test_served_in_fp8_the_penalty_counts() -> None:
    assert verdict(Scenario(penalty=0.006, tau=0.0002), serve="fp8").code == "GAP"
    assert verdict(Scenario(penalty=0.006, tau=0.0002), serve="fp8", serve_margin=0.01).name == "PASS"
    assert verdict(Scenario(penalty=0.006, tau=0.0002)).name == "PASS"


def test_training_loss_alone_needs_the_penalty_to_fail() -> None:
    """No validation was planned: U < m passes, L > m + p fails, and without p it stays open (PARITY.md 3)."""

    def unvalidated(scenario: Scenario, *, known_penalty: bool) -> Comparison:
        base = replace(comparison_of(simulate(scenario)), primary=("training_loss",))
        dropped = {"validation_loss", "validation_loss_fp8"} | (set() if known_penalty else {"forward_penalty"})
        return replace(base, cells=tuple(c for c in base.cells if c.endpoint not in dropped))

    quiet = Scenario(tau=0.0001, penalty=0.004)
    assert decide(judge_comparison(unvalidated(replace(quiet, penalty=0.0005), known_penalty=True))).name == "PASS"
    assert decide(judge_comparison(unvalidated(replace(quiet, gap=0.004), known_penalty=True))).code == "GAP"
    assert decide(judge_comparison(unvalidated(quiet, known_penalty=True))).code == "UNDERPOWERED"
    assert decide(judge_comparison(unvalidated(quiet, known_penalty=False))).code == "PENALTY_UNKNOWN"


def test_holm_protects_a_screen_of_many_fractions() -> None:
    """A cell with p just under 5 % fails where it stands alone, and not as one of three fractions."""
    base = comparison_of(simulate(Scenario(tau=0.0002), "screen"))
    # Mean m + 1.55 s, SE 0.645 s: t = 2.40 with ν = 3, p = 0.048.
    gaps = 0.0025 + 0.0002 * (np.array([-1.0, 0.0, 1.0, 2.0]) + 1.05)

    def moved(cell: Cell) -> Cell:
        if (cell.arm, cell.endpoint, cell.fraction) != ("candidate", "validation_loss", 0.3):
            return cell
        deltas = tuple(Delta(pair, 2.0, 2.0 * (1 + gap)) for pair, gap in enumerate(gaps))
        return replace(cell, deltas=deltas, sampling_error=0.0)

    comparison = replace(base, cells=tuple(moved(cell) for cell in base.cells))
    among_three = next(r for r in parity(comparison) if r.fraction == 0.3)
    (alone,) = parity(replace(comparison, fractions=(0.3,)))
    assert among_three.interval is not None
    assert among_three.interval[0] > 0.0025
    assert (among_three.code, alone.code) == ("UNDERPOWERED", "GAP")


def test_every_required_check_gives_a_result_with_its_design() -> None:
    for design in ("screen", "branch", "scratch"):
        results = judged(design=design)  # type: ignore[arg-type]
        assert required_checks(design) <= {result.check for result in results}  # type: ignore[arg-type]
        assert {result.design for result in results} == {design}


def test_the_floor_the_module_swap_and_the_penalty_never_decide() -> None:
    results = judged(Scenario(control_gap=0.03))
    assert decide(results).name == "PASS"
    swap = next(result for result in results if result.check == "module_swap")
    assert swap.advisory
    assert swap.measured == pytest.approx(0.03, abs=0.005)


def test_permutation_stands_beside_the_bound_from_six_pairs() -> None:
    assert next(r for r in judged(pairs=6) if r.check == "permutation").status == "pass"
    assert next(r for r in judged(pairs=5) if r.check == "permutation").status == "skipped"


def test_absence_is_inconclusive_with_the_needs_code() -> None:
    need: Need[int] = Need("a number above one", lambda number: number > 1, "TRUNCATED")
    check: Check[int] = Check("example", lambda number: [CheckResult("example", "pass", str(number))], (need,))
    (absent,) = run_check(check, 1, "branch")
    assert (absent.status, absent.code, absent.advisory) == ("inconclusive", "TRUNCATED", False)
    assert "a number above one is missing" in absent.summary
    assert run_check(check, 2, "branch")[0].status == "pass"
    with pytest.raises(AssertionError, match="gave no result"):
        run_check(Check[int]("silent", lambda number: []), 1, "branch")
