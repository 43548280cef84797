"""Plans that run side by side come to what each comes to alone, and leave the same folders."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from fp8migrate.engine.observer import SilentObserver
from fp8migrate.engine.recipes import Variant, with_variant
from fp8migrate.engine.study import Study, report_study, run_studies, run_study
from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import BlockRecipe, CurrentRecipe
from fp8migrate.plan.load import LoadedPlan, load_plan
from tests.cli.conftest import TINY_PLAN
from tests.simulation import Scenario
from tests.study.simulated import PLAN, SimulatedTrainer, scenario_file

VARIANTS = [Variant(CurrentRecipe(), "emulated"), Variant(BlockRecipe(), "emulated")]


def plans(folder: Path) -> list[LoadedPlan]:
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN))
    loaded = load_plan(folder / "plan.yaml")
    return [with_variant(loaded, variant, VARIANTS) for variant in VARIANTS]


def sweep(folder: Path, loaded: list[LoadedPlan], scenario: Scenario) -> dict[int, Study]:
    """All of them side by side, their runs in reports/simulated/."""
    found: dict[int, Study] = {}
    observers, reports = [SilentObserver() for _ in loaded], folder / "reports"
    trainer = SimulatedTrainer(scenario_file(folder, scenario))
    run_studies(loaded, reports / "simulated", reports, observers, found.__setitem__, trainer=trainer)
    return found


def digest(report: Path) -> Any:
    return json.loads(report.read_text())["evidence_sha256"]


@pytest.mark.parametrize("scenario", [Scenario(), Scenario(gap=0.005), Scenario(non_finite=((("candidate", 1, None), 60),))])
def test_side_by_side_is_as_alone(tmp_path: Path, scenario: Scenario) -> None:
    loaded = plans(tmp_path)
    together = sweep(tmp_path, loaded, scenario)
    assert sorted(together) == [0, 1]
    for number, each in enumerate(loaded):
        trainer = SimulatedTrainer(scenario_file(tmp_path, scenario))
        alone = run_study(each, tmp_path / "alone", SilentObserver(), trainer=trainer)
        assert together[number].report.verdict == alone.report.verdict
        assert digest(together[number].files["json"]) == digest(alone.files["json"])


def test_each_folder_stands_by_itself_and_finds_the_runs_of_all(tmp_path: Path) -> None:
    loaded = plans(tmp_path)
    for _ in range(2):  # what is there is taken up again
        sweep(tmp_path, loaded, Scenario())
    runs = tmp_path / "reports" / "simulated" / "runs"
    assert len(list(runs.glob("baseline-p0-baseline-*"))) == 1
    for each in loaded:
        own = tmp_path / "reports" / each.plan.name
        assert (own / "runs").resolve() == runs.resolve()
        assert report_study(load_plan(own / "plan.yaml"), tmp_path / "reports", SilentObserver()).report.verdict.name == "PASS"


def test_a_folder_with_runs_of_its_own_is_refused(tmp_path: Path) -> None:
    loaded = plans(tmp_path)
    other = tmp_path / "reports" / loaded[1].plan.name / "runs"
    other.mkdir(parents=True)
    with pytest.raises(UsageError, match="runs of its own") as refused:
        sweep(tmp_path, loaded, Scenario())
    assert refused.value.where == str(other)
    assert not list((tmp_path / "reports" / "simulated" / "runs").iterdir())


@pytest.mark.slow
def test_a_sweep_of_real_training_killed_again_and_again_is_as_each_recipe_alone(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(TINY_PLAN.replace("num_steps: 24", "num_steps: 240"))
    named = ["current", "block"]
    command = [sys.executable, "-m", "fp8migrate", "run", "plan.yaml"]
    command += [word for name in named for word in ("--recipe", f"emulated:{name}")]
    for seconds in (6.0, 12.0, 18.0):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 4, ended.stderr
    for name in named:
        own = tmp_path / "reports" / f"tiny-emulated-{name}"
        plan = ["run", str(own / "plan.yaml"), "--reports", "alone"]
        subprocess.run([*command[:3], *plan], cwd=tmp_path, capture_output=True, timeout=600, check=False)
        assert digest(own / "report.json") == digest(tmp_path / "alone" / own.name / "report.json")
