"""The ranked table, `decide` failing closed, and the report."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import fp8migrate
from fp8migrate.checks import judge_baseline, judge_comparison, judge_integration, required_checks
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.evidence.integration import integration_evidence
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import BaselineEvidence, Comparison, IntegrationEvidence
from fp8migrate.jobs import DesignName
from fp8migrate.plan.schema import Plan
from fp8migrate.verdict import RANKED, ROWS, Report, build_report, decide, evidence_digest, phase_state
from tests.simulation import Scenario, environment, integration_records, make_plan, simulate, simulate_screens

PARITY_ORDER = [
    "BASELINE_UNHEALTHY",
    "NON_FINITE",
    "DIVERGED",
    "CANDIDATE_CRASH",
    "INVALID_PAIR",
    "TRUNCATED",
    "FP8_NOT_ACTIVE",
    "LOW_RESOLUTION",
    "GAP",
    "PENALTY_UNKNOWN",
    "NO_SENSITIVITY",
    "TOO_FEW_PAIRS",
    "SUSPECT_MISMATCH",
    "WIDENING",
    "SPIKES",
]


@dataclass(frozen=True)
class Found:
    """What a phase hands over."""

    results: tuple[CheckResult, ...]
    baseline: BaselineEvidence | None = None
    integration: IntegrationEvidence | None = None
    comparisons: tuple[Comparison, ...] = ()


def comparison(scenario: Scenario | None = None, design: DesignName = "branch", **plan_changes: object) -> Comparison:
    e = simulate(scenario, design, **plan_changes)
    return compare(e.plan, design, e.jobs, e.records)


def pairs(*comparisons: Comparison) -> Found:
    return Found(tuple(r for c in comparisons for r in judge_comparison(c)), comparisons=comparisons)


def phases(plan: Plan, *comparisons: Comparison) -> dict[str, Found]:
    e = simulate(design="baseline")
    baseline = baseline_evidence(e.plan, e.jobs, e.records)
    jobs, records = integration_records(plan)
    integration = integration_evidence(plan, jobs, records)
    return {
        "baseline": Found(judge_baseline(baseline), baseline=baseline),
        "integration": Found(judge_integration(integration), integration=integration),
        "small_scale": pairs(*comparisons),
    }


def report(*comparisons: Comparison, plan: Plan | None = None) -> Report:
    plan = plan or make_plan()
    found = phases(plan, *comparisons)
    return build_report(
        plan, "name: x\n", {**found, "full_scale": None}, environment(), notes={"full_scale": "not in this run"}
    )


def test_the_table_has_the_order_of_parity() -> None:
    codes = [row.code for row in RANKED]
    assert [code for code in codes if code in PARITY_ORDER] == PARITY_ORDER
    assert len(codes) == len(set(codes))
    assert codes[-3:] == ["SCREENED", "REAL_BUT_ACCEPTABLE", "PASS"]
    assert all(row.meaning.endswith(".") and row.next_step.endswith(".") for row in RANKED)


def test_every_code_that_a_check_names_has_a_row() -> None:
    """Read off the source: codes are upper-case words in quotes."""
    reported_only = {"DATA_REPEATED", "FILTER_UNMATCHED", "FORECAST_OFF", "WORTH_IT"}
    folder = Path(fp8migrate.__file__).parent / "checks"
    named = {
        code for path in folder.glob("*.py") for code in re.findall(r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"', path.read_text())
    }
    assert named - reported_only <= set(ROWS)
    assert "CANDIDATE_CRASH" in named


def result(code: str, status: str = "inconclusive", check: str = "x", **more: object) -> CheckResult:
    return CheckResult(check, status, code.lower(), code, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", range(len(RANKED) - 4))
def test_the_first_row_that_holds_decides(index: int) -> None:
    """With the results of all lower rows present, in the reverse order."""
    problems = [result(row.code, "fail" if row.verdict == "FAIL" else "inconclusive") for row in reversed(RANKED[index:-4])]
    found = decide(problems)
    assert (found.name, found.code) == (RANKED[index].verdict, RANKED[index].code)
    assert found.next_step == RANKED[index].next_step


def test_no_results_are_no_pass() -> None:
    assert (decide([]).name, decide([]).code) == ("INCONCLUSIVE", "NOT_JUDGED")


def test_a_lone_passing_parity_is_no_pass() -> None:
    found = decide([CheckResult("parity", "pass", "fine", design="branch")])
    assert found.code == "NOT_JUDGED"
    assert "of the branch" in found.why


@pytest.mark.parametrize("name", sorted(required_checks("branch")))
def test_no_required_check_can_be_left_out_or_skipped(name: str) -> None:
    results = judge_comparison(comparison())
    assert decide(results).name == "PASS"
    assert decide([r for r in results if r.check != name]).code == "NOT_JUDGED"
    skipped = [replace(r, status="skipped", code="") if r.check == name else r for r in results]
    assert decide(skipped).code == "NOT_JUDGED"


def test_advisory_results_never_decide() -> None:
    results = judge_comparison(comparison())
    assert decide([*results, result("GAP", "fail", advisory=True, design="branch")]).name == "PASS"


def test_a_code_without_a_row_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="ODD_CODE"):
        decide([result("ODD_CODE", "fail")])


def test_an_undecided_screen_does_not_stand_against_longer_pairs() -> None:
    """A screen can only convict; that it was too noisy says nothing once branch pairs have answered."""
    noisy = judge_comparison(comparison(Scenario(tau=0.004), "screen"))
    assert decide(noisy).code == "UNDERPOWERED"
    assert decide([*noisy, *judge_comparison(comparison())]).name == "PASS"
    convicted = judge_comparison(comparison(Scenario(gap=0.006, tau=0.0001), "screen"))
    assert decide([*convicted, *judge_comparison(comparison())]).code == "GAP"
    spoiled = judge_comparison(comparison(Scenario(other_torch=True), "screen"))
    assert decide([*spoiled, *judge_comparison(comparison())]).code == "INVALID_PAIR"


def test_a_screen_that_is_the_last_word_must_have_run_4k() -> None:
    screen, long = simulate_screens(Scenario(tau=0.0002))
    assert decide(pairs(screen, long).results).name == "SCREENED"
    without = decide(judge_comparison(screen))
    assert (without.name, without.code) == ("INCONCLUSIVE", "NOT_JUDGED")
    assert without.why == "not judged: the long screen"
    # Longer pairs say more about drift than 4K would.
    assert decide([*judge_comparison(screen), *judge_comparison(comparison())]).name == "PASS"


@pytest.mark.parametrize("name", sorted(required_checks("long_screen")))
def test_no_check_of_the_long_screen_can_be_left_out(name: str) -> None:
    results = pairs(*simulate_screens(Scenario(tau=0.0002))).results
    assert decide([r for r in results if (r.design, r.check) != ("long_screen", name)]).code == "NOT_JUDGED"


def test_a_report_of_screens_is_about_the_screen_and_tells_how_far_it_was_followed() -> None:
    screen, long = simulate_screens(Scenario(tau=0.0002))
    found = report(screen, long, plan=make_plan("screen"))
    assert found.verdict.name == "SCREENED"
    assert any(line.startswith("Start: 150 cooled steps from 30 %, 60 %, 90 %") for line in found.scope)
    assert any("long screen at 60 % of the trunk 4 × that" in line for line in found.scope)
    widening = report(*simulate_screens(Scenario(tau=0.0002, long_gap=0.002)), plan=make_plan("screen"))
    assert (widening.verdict.name, widening.verdict.code) == ("INCONCLUSIVE", "WIDENING")
    assert not any("4 × that" in line for line in widening.scope)


def test_why_is_the_place_closest_to_the_margin() -> None:
    results = pairs(*simulate_screens(Scenario(tau=0.0003))).results
    found = decide(results)
    uppers = {r.scope: r.interval[1] for r in results if r.check == "parity"}  # type: ignore[index]
    assert found.why.startswith(max(uppers, key=lambda scope: uppers[scope]))


def test_phase_states() -> None:
    assert phase_state(judge_comparison(comparison())) == "passed"
    assert phase_state(pairs(*simulate_screens(Scenario(tau=0.0002))).results) == "screened"
    assert phase_state(judge_comparison(comparison(Scenario(gap=0.006, tau=0.0001)))) == "failed"
    assert phase_state(()) == "inconclusive"


def test_a_report_of_a_pass() -> None:
    found = report(comparison(design="screen"), comparison())
    assert found.verdict.name == "PASS"
    assert found.headline.startswith("PASS (emulated FP8): ")
    assert [(phase.name, phase.state) for phase in found.phases] == [
        ("baseline", "passed"),
        ("integration", "passed"),
        ("small_scale", "passed"),
        ("full_scale", "not_run"),
    ]
    assert found.phases[-1].note == "not in this run"
    scope = " ".join(found.scope)
    for said in ("delayed", "25,000,000 parameters", "0.25 %", "step 300", "4 pairs", "torch 2.13.0", "x86 CPU"):
        assert said in scope
    beyond = " ".join(found.not_covered)
    for said in ("emulated", "Larger models", "before step 300", "+0.240 %"):
        assert said in beyond


def test_a_report_of_an_a_a_test_says_so() -> None:
    changes = {"recipe": {"kind": "bf16"}, "require_fp8": False}
    found = report(comparison(Scenario(coverage=0.0, penalty=0.0), **changes), plan=make_plan(**changes))  # type: ignore[arg-type]
    assert found.verdict.name == "PASS"
    assert "A/A test" in found.headline


def test_a_report_of_nothing() -> None:
    found = build_report(make_plan(), "", {"baseline": None, "integration": None, "small_scale": None}, None)
    assert found.verdict.name == "INCONCLUSIVE"
    assert {phase.state for phase in found.phases} == {"not_run"}


def test_what_was_forced_stands_in_the_headline() -> None:
    plan = make_plan()
    found = build_report(plan, "", phases(plan, comparison()), environment(), forced=("integration",))
    assert "forced past integration" in found.headline


def test_the_evidence_digest_holds_losses_and_no_clock() -> None:
    e = simulate()
    before = compare(e.plan, "branch", e.jobs, e.records)
    digest = evidence_digest(judge_comparison(before), None, (before,))
    for key, record in e.records.items():
        outcome = record.outcome.model_copy(update={"wall_seconds": 99.0, "attempts": 3})
        e.records[key] = replace(record, outcome=outcome, directory="/elsewhere/" + key)
    later = compare(e.plan, "branch", e.jobs, e.records)
    assert evidence_digest(judge_comparison(later), None, (later,)) == digest
    record = next(r for r in e.records.values() if r.job.role.arm == "candidate")
    loss = record.series["loss"].values
    loss[7] = np.nextafter(loss[7], np.inf)
    moved = compare(e.plan, "branch", e.jobs, e.records)
    assert evidence_digest(judge_comparison(moved), None, (moved,)) != digest


def test_the_evidence_digest_covers_the_long_screen() -> None:
    screen, long = simulate_screens()
    digest = evidence_digest((), None, (screen, long))
    assert digest != evidence_digest((), None, (screen,))
    (growth,) = long.growth
    nudged = replace(growth, values=(np.nextafter(growth.values[0], 1.0), *growth.values[1:]))
    assert digest != evidence_digest((), None, (screen, replace(long, growth=(nudged,))))
    long.curves[0].candidate.values[3] += 1e-12
    assert digest != evidence_digest((), None, (screen, long))


def test_sixty_runs_are_judged_in_well_under_a_second() -> None:
    from time import process_time

    e = simulate(design="scratch", pairs=16, num_steps=2000)
    assert len(e.jobs) > 50
    started = process_time()
    decide(judge_comparison(compare(e.plan, "scratch", e.jobs, e.records)))
    assert process_time() - started < 0.8


@pytest.mark.parametrize(("share", "says"), [(0.9, ""), (0.01, "FP8 in only 1.0 % of the GEMM FLOPs")])
def test_how_little_is_in_fp8_stands_in_the_headline(share: float, says: str) -> None:
    """As good as BF16 because it is BF16: nobody should take that for a migration."""
    found = build_report(make_plan(), "", phases(make_plan(), comparison(Scenario(coverage=share))), environment())
    assert ("FP8 in only" in found.headline) == bool(says)
    assert says in found.headline
    assert any(f"{100 * share:.1f} % of the GEMM FLOPs in FP8" in line for line in found.scope)
