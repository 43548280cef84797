"""Calibration through the whole path: a truth is planted in the runs, and the report must say it."""

from pathlib import Path
from typing import Any

import pytest

from tests.simulation import Scenario
from tests.study.simulated import study

MARGIN = 0.0025
EVERY_PAIR = range(4)

# (what is planted, verdict, code); one of each kind runs by default, the others are marked slow.
PLANTED: list[tuple[str, Scenario, str, str]] = [
    ("no gap", Scenario(gap=0.0), "PASS", "PASS"),
    ("a gap of 2m", Scenario(gap=2 * MARGIN), "FAIL", "GAP"),
    ("NaN", Scenario(non_finite=((("candidate", 1, None), 60),)), "FAIL", "NON_FINITE"),
    ("NaN that nobody stopped at", Scenario(silent_nan=((("candidate", 1, None), 60),)), "FAIL", "NON_FINITE"),
    ("a candidate that crashes", Scenario(cut=((("candidate", 2, None), 40, "error"),)), "FAIL", "CANDIDATE_CRASH"),
    ("a candidate that diverges late", Scenario(diverges_at=0.8), "FAIL", "DIVERGED"),
    ("a cut run", Scenario(cut=((("candidate", 0, None), 100, "stalled"),)), "INCONCLUSIVE", "TRUNCATED"),
    ("an identical candidate", Scenario(identical=True), "INCONCLUSIVE", "FP8_NOT_ACTIVE"),
    ("nothing quantised", Scenario(quantized_tensors=0), "INCONCLUSIVE", "FP8_NOT_ACTIVE"),
    ("other data", Scenario(different_data=True), "INCONCLUSIVE", "INVALID_PAIR"),
    ("other held-out documents", Scenario(different_documents=True), "INCONCLUSIVE", "INVALID_PAIR"),
    ("a flat baseline", Scenario(flat_baseline=True), "INCONCLUSIVE", "BASELINE_UNHEALTHY"),
    ("a bad recipe that passes too", Scenario(sensitivity_gap=0.0), "INCONCLUSIVE", "NO_SENSITIVITY"),
    ("better than can be true", Scenario(gap=-4 * MARGIN), "INCONCLUSIVE", "SUSPECT_MISMATCH"),
    ("a gap at the margin", Scenario(gap=MARGIN, tau=0.0005), "INCONCLUSIVE", "UNDERPOWERED"),
]
BY_DEFAULT = {"no gap", "a gap of 2m", "NaN", "a cut run"}


@pytest.mark.parametrize(
    ("scenario", "verdict", "code"),
    [pytest.param(*row[1:], id=row[0], marks=[] if row[0] in BY_DEFAULT else [pytest.mark.slow]) for row in PLANTED],
)
def test_what_is_planted_is_reported(tmp_path: Path, scenario: Scenario, verdict: str, code: str) -> None:
    found = study(tmp_path, scenario, seed=1)
    assert (found.report.verdict.name, found.report.verdict.code) == (verdict, code)
    assert found.files["html"].read_text().count(verdict) > 0
    assert verdict in found.files["md"].read_text().splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["baseline", "candidate", "sensitivity"])
def test_a_missing_arm_is_inconclusive(tmp_path: Path, arm: Any) -> None:
    """The runs of an arm stop at their first step for a reason of their own. Without its bad recipe a design proves nothing."""
    scenario = Scenario(cut=tuple(((arm, pair, None), 1, "stalled") for pair in EVERY_PAIR))
    verdict = study(tmp_path, scenario).report.verdict
    assert (verdict.name, verdict.code) == ("INCONCLUSIVE", "NO_SENSITIVITY" if arm == "sensitivity" else "TRUNCATED")


@pytest.mark.slow
def test_bf16_against_bf16_never_fails(tmp_path: Path) -> None:
    """A/A: the candidate is a BF16 run one ulp away, and the plan accepts that it has no FP8."""
    verdicts = [
        study(
            tmp_path / str(seed),
            Scenario(gap=0.0, tau=0.001, quantized_tensors=0, coverage=0.0),
            seed=seed,
            candidate={"backend": "emulated", "recipe": {"kind": "bf16"}},
            parity={"require_fp8": False},
        ).report
        for seed in range(10)
    ]
    assert {report.verdict.name for report in verdicts} <= {"PASS", "INCONCLUSIVE"}
    assert all("A/A test" in report.headline for report in verdicts)


@pytest.mark.slow
def test_too_few_pairs_never_pass(tmp_path: Path) -> None:
    verdict = study(tmp_path, Scenario(), design={"branch": {"at": 0.5, "pairs": 3}}).report.verdict
    assert (verdict.name, verdict.code) == ("INCONCLUSIVE", "TOO_FEW_PAIRS")


@pytest.mark.slow
def test_screens_alone_are_screened_and_convict_early(tmp_path: Path) -> None:
    screen = {"screen": {"fractions": [0.4, 0.8], "num_steps": 60, "data_orders": 4}}
    sound = study(tmp_path / "sound", Scenario(tau=0.0002), design=screen).report
    assert sound.verdict.name == "SCREENED"
    assert [comparison.design for comparison in sound.comparisons] == ["screen", "long_screen"]
    widening = study(tmp_path / "widening", Scenario(tau=0.0002, long_gap=MARGIN), design=screen).report
    assert (widening.verdict.name, widening.verdict.code) == ("INCONCLUSIVE", "WIDENING")
    with_pairs = screen | {"branch": {"at": 0.5, "pairs": 4}}
    bad = study(tmp_path / "bad", Scenario(gap=4 * MARGIN), design=with_pairs).report
    assert (bad.verdict.name, bad.verdict.code) == ("FAIL", "GAP")
    assert [comparison.design for comparison in bad.comparisons] == ["screen"]
