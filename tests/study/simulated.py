"""A whole study whose jobs are simulated. Engine, files, readers, evidence, verdict and report are the real ones."""

import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fp8migrate.engine.observer import SilentObserver
from fp8migrate.engine.study import Study, run_study
from fp8migrate.facts.backends import BackendName
from fp8migrate.jobs import Job
from fp8migrate.plan.load import load_plan
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Environment
from tests.simulation import Scenario, environment

WORKER = Path(__file__).with_name("simulated_worker.py")

PLAN: dict[str, Any] = {
    "name": "simulated",
    "model": {"num_layers": 4, "hidden_size": 128, "num_heads": 4, "num_kv_heads": 4, "ffn_hidden_size": 336},
    "training": {
        "num_steps": 300,
        "sequence_length": 64,
        "micro_batch_size": 8,
        "global_batch_size": 8,
        "learning_rate": 1e-3,
        "warmup_steps": 20,
    },
    "candidate": {"backend": "emulated", "recipe": {"kind": "current"}},
    "design": {"branch": {"at": 0.5, "pairs": 4}, "floor_pairs": 2},
}


@dataclass(frozen=True)
class SimulatedTrainer:
    """scenario_file: what simulated_worker.py is to leave."""

    scenario_file: Path

    def environment(self, plan: Plan) -> Environment:
        return environment()

    def demand_backend(self, plan: Plan, backend: BackendName) -> None:
        pass

    def seconds_per_step(self, job: Job) -> float:
        return 0.01

    def command(self, job: Job, run_directory: Path, start: Path | None) -> Sequence[str]:
        return [sys.executable, str(WORKER), str(run_directory), str(self.scenario_file)]


def study(folder: Path, scenario: Scenario, seed: int = 0, **changes: Any) -> Study:
    """Run PLAN with `changes` (by top-level key) in `folder`, its jobs simulated by `scenario`."""
    folder.mkdir(parents=True, exist_ok=True)
    plan_file = folder / "plan.yaml"
    plan_file.write_text(yaml.safe_dump(PLAN | changes))
    trainer = SimulatedTrainer(scenario_file(folder, scenario, seed))
    return run_study(load_plan(plan_file), folder / "reports", SilentObserver(), trainer=trainer)


def scenario_file(folder: Path, scenario: Scenario, seed: int = 0) -> Path:
    """Written for a SimulatedTrainer."""
    path = folder / "scenario.pickle"
    path.write_bytes(pickle.dumps((scenario, seed)))
    return path
