"""A worker without torch that leaves the run directory a scenario would have left: python simulated_worker.py DIR SCENARIO.

SCENARIO is a pickle of (tests.simulation.Scenario, seed), written by the test that starts it.
"""

import pickle
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from fp8migrate.jobs import Train
from fp8migrate.records.schema import Outcome, Record
from fp8migrate.records.writer import RunWriter, checkpoint_path
from tests.simulation import SOUND_TABLES, conversion_of, record_of


def write(writer: RunWriter, record: Record) -> None:
    """Everything of `record` but its outcome, as a worker writes it."""
    series = record.series
    for position, step in enumerate(series["loss"].steps if series else ()):
        writer.log(int(step), **{name: float(one.values[position]) for name, one in series.items()})
    for found in record.evaluations:
        writer.evaluation(
            found.step, found.forward, found.loss, found.document_nll, found.document_tokens, found.documents_sha256
        )
    for name, rows in record.tables.items():
        writer.table(name, rows)
    writer.update(conversion=record.conversion, facts=record.facts)


def main(directory: Path, scenario_file: Path) -> int:
    scenario, seed = pickle.loads(scenario_file.read_bytes())
    writer = RunWriter(directory)
    writer.lock()
    job = writer.run.job
    if isinstance(job.task, Train):
        record = record_of(job, scenario, seed)
        write(writer, record)
        for step in job.task.checkpoint_at:
            path = checkpoint_path(directory, step)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"simulated")
        writer.finish(record.outcome)
        return 0
    for name in ("logits", "outputs") if job.task.kind == "forward_check" else ("gradients", "layers", "equalities"):
        writer.table(name, SOUND_TABLES[name])
    writer.update(conversion=conversion_of(job, scenario))
    writer.finish(Outcome(status="completed"))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
