"""PARITY.md 9 through the whole of `compare`: what is promised of the rule holds of the verdict, all its checks together."""

from collections import Counter

import numpy as np
import pytest

from fp8migrate.checks import judge_comparison
from fp8migrate.evidence.groups import compare_logs
from fp8migrate.plan.policy import Logs, Policy
from fp8migrate.records.logs import LogRecord, LogSeries
from fp8migrate.verdict import Verdict, decide
from tests.error_rates import MARGIN, allowance
from tests.logs import OFFSET, STEPS, curve

REPLICATES = 120
STEP = np.arange(1.0, STEPS + 1)
# As logged: what stands in the losses is the question, so that a gap can fail.
POLICY = Policy(baseline=Logs(logs=("a",)), candidate=Logs(logs=("b",)), serve="fp8")


def record(name: str, losses: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> LogRecord:
    return LogRecord(name, name, "jsonl", {"training_loss": LogSeries("training_loss", "loss", "nats", "steps", STEP, losses)})


def verdict(design: str, runs: int, gap: float, spread: float, seed: int) -> Verdict:
    """One experiment: runs on a data order each pair (pairs), on one for all (shared), or each on its own (own)."""
    first = 1000 * seed
    sides: list[list[LogRecord]] = [[], []]
    for run in range(runs):
        data = {"pairs": first + run, "shared": first, "own": None}[design]
        more = (spread**2 - 1) ** 0.5 * OFFSET * np.random.default_rng(first + 900 + run).standard_normal()
        sides[0].append(record(f"bf16 {run}", curve(first + run, data=data)))
        sides[1].append(record(f"fp8 {run}", curve(first + 100 + run, data=data, gap=gap + more)))
    return decide(judge_comparison(compare_logs(POLICY, *sides)))


@pytest.mark.parametrize("spread", [1, 3])
@pytest.mark.parametrize(("design", "runs"), [("pairs", 4), ("shared", 5), ("own", 4)])
def test_error_rates_at_the_margin(design: str, runs: int, spread: int) -> None:
    names = Counter(verdict(design, runs, MARGIN, spread, seed).name for seed in range(REPLICATES))
    assert names["PASS"] / REPLICATES <= allowance(0.05, REPLICATES)
    assert names["FAIL"] / REPLICATES <= allowance(0.05, REPLICATES)


@pytest.mark.parametrize(("design", "runs", "least"), [("pairs", 6, 0.75), ("shared", 6, 0.75), ("own", 4, 0.05)])
def test_harmless_candidates_pass_and_do_not_fail(design: str, runs: int, least: float) -> None:
    names = Counter(verdict(design, runs, 0.0, 1, 7 + seed).name for seed in range(REPLICATES))
    assert names["FAIL"] / REPLICATES <= allowance(0.01, REPLICATES)
    assert names["PASS"] / REPLICATES >= least


@pytest.mark.parametrize("design", ["pairs", "shared", "own"])
def test_two_percent_never_pass_and_nearly_always_fail(design: str) -> None:
    names = Counter(verdict(design, 5, 0.02, 1, seed).name for seed in range(40))
    assert names["PASS"] == 0
    assert names["FAIL"] >= 36
