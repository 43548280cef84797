"""Reading a run back and judging, and reading logs of other programs, against what a user's own script would do."""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd

from fp8migrate.checks import judge_comparison
from fp8migrate.evidence.pairs import compare
from fp8migrate.records.readers import read_log
from fp8migrate.records.schema import Outcome, RunFile
from fp8migrate.records.source import Source
from fp8migrate.records.store import read_run
from fp8migrate.records.writer import METRICS_FILE, save_run_file
from fp8migrate.verdict import decide
from tests.benchmarks import logs
from tests.simulation import Scenario, simulate

_STEPS = 1_000_000
# What is read, how it is written, what else reads it.
_LOGS: tuple[tuple[str, Callable[[Path], None], str, Callable[[Path], object]], ...] = (
    ("Megatron-LM's log", logs.write_megatron, "a loop over lines and regexes", logs.megatron_by_regex),
    ("the same, less even", logs.write_rough_megatron, "the loop", logs.megatron_by_regex),
    ("a CSV of 8 columns", logs.write_table, "pandas.read_csv", logs.table_by_pandas),
    ("JSON lines", logs.write_json_lines, "pandas.read_json(lines=True)", logs.json_lines_by_pandas),
)


def run() -> Iterator[tuple[str, str]]:
    experiment = simulate(Scenario(), "branch", num_steps=2000, pairs=8)
    started = time.perf_counter()
    comparison = compare(experiment.plan, "branch", experiment.jobs, experiment.records)
    verdict = decide(judge_comparison(comparison))
    elapsed = time.perf_counter() - started
    yield f"compare and judge {len(experiment.jobs)} runs of 1000 steps: {verdict.name}", f"{elapsed:.2f} s"
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        record = next(iter(experiment.records.values()))
        run_file = RunFile(key="k", job=record.job, environment=record.environment, outcome=Outcome(status="completed"))
        save_run_file(directory, run_file)
        lines = (
            f'{{"step":{step},"loss":{2 + 1 / step!r},"grad_norm":0.5,"learning_rate":0.001}}\n'
            for step in range(1, _STEPS + 1)
        )
        (directory / METRICS_FILE).write_text("".join(lines))
        size = (directory / METRICS_FILE).stat().st_size / 1e6
        started = time.perf_counter()
        found = read_run(directory)
        elapsed = time.perf_counter() - started
        yield f"read {found.series['loss'].steps.size:,} steps ({size:.0f} MB)", f"{elapsed:.2f} s, {size / elapsed:.0f} MB/s"
        started = time.perf_counter()
        pd.read_json(directory / METRICS_FILE, lines=True)
        yield "peer: pandas.read_json(lines=True)", f"{time.perf_counter() - started:.2f} s"
    yield from _logs()


def _logs() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        for what, write, peer, read in _LOGS:
            path = Path(folder) / "log"
            write(path)
            size = path.stat().st_size / 1e6
            started = time.perf_counter()
            points = max(series.steps.size for series in read_log(Source("log", path))[0].series.values())
            yield f"{what}: {points:,} steps ({size:.0f} MB)", _rate(size, started)
            started = time.perf_counter()
            read(path)
            yield f"  peer: {peer}", _rate(size, started)


def _rate(size: float, started: float) -> str:
    elapsed = time.perf_counter() - started
    return f"{elapsed:.2f} s, {size / elapsed:.0f} MB/s"
