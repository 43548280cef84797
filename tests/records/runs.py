"""Run directories to write and read, without an engine."""

from pathlib import Path

from fp8migrate.records.store import RunStore
from tests.engine.stage import ENVIRONMENT, train_job


def prepared_run(tmp_path: Path, last_step: int = 20) -> Path:
    """A run directory as the engine prepares it; the second time, as it prepares it to be resumed."""
    return RunStore(tmp_path / "runs", ENVIRONMENT).prepare(train_job("a", last_step=last_step))
