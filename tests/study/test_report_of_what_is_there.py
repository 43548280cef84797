"""A report made again later: of everything, of a part, and of a folder in which something was damaged."""

from pathlib import Path

import pytest

from fp8migrate.engine.observer import SilentObserver
from fp8migrate.engine.preflight import refuse_more_data_than_there_is
from fp8migrate.engine.study import report_study
from fp8migrate.errors import PlanError
from fp8migrate.plan.load import load_plan
from tests.simulation import Scenario, environment
from tests.study.simulated import study


def test_a_damaged_run_is_named_and_never_passes(tmp_path: Path) -> None:
    """Its phase is not taken for one that was never run: the report says which file cannot be read."""
    assert study(tmp_path, Scenario(), seed=1).report.verdict.name == "PASS"
    loaded, reports = load_plan(tmp_path / "plan.yaml"), tmp_path / "reports"
    assert report_study(loaded, reports, SilentObserver()).report.verdict.name == "PASS"
    damaged = next((reports / "simulated" / "runs").glob("small_scale-branch-p2-candidate-*/run.json"))
    damaged.write_bytes(damaged.read_bytes()[:100])
    found = report_study(loaded, reports, SilentObserver())
    assert found.report.verdict.name == "INCONCLUSIVE"
    (phase,) = [phase for phase in found.report.phases if phase.name == "small_scale"]
    assert phase.state == "not_run"
    assert str(damaged) in phase.note
    assert damaged.parent.name in found.files["html"].read_text()


def test_more_validation_than_is_held_out_is_refused(tmp_path: Path) -> None:
    study(tmp_path, Scenario(), seed=1, data={"validation_tokens": 5000})
    loaded = load_plan(tmp_path / "plan.yaml")
    refuse_more_data_than_there_is(loaded, environment().model_copy(update={"held_out_tokens": 5000}))
    with pytest.raises(PlanError, match="more than the 4999 tokens held out"):
        refuse_more_data_than_there_is(loaded, environment().model_copy(update={"held_out_tokens": 4999}))
