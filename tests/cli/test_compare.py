"""`compare` and `gate` as a user gives them."""

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fp8migrate.cli import spread
from tests.cli.conftest import Command
from tests.logs import curve, group, write
from tests.records import evaluations


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("a b --against d e f", "a b --against d --against e --against f"),
        ("a --against d e --margin strict", "a --against d --against e --margin strict"),
        ("--margin strict a b --against d", "--margin strict a b --against d"),
        ("a --against d --floor x y --serve fp8", "a --against d --floor x --floor y --serve fp8"),
        ("a --against=d e", "a --against=d --against e"),
        ("a --against - e", "a --against - --against e"),
        ("a --runs p* --against d --runs q*", "a --runs p* --against d --against-runs q*"),
        ("a --against d --skip-runs x", "a --against d --against-skip-runs x"),
        ("a --against", "a --against"),
        ("a --against --margin strict", "a --against --margin strict"),
        ("a --against d -- e", "a --against d -- e"),
    ],
)
def test_against_takes_everything_up_to_the_next_option(given: str, meant: str) -> None:
    assert spread(given.split()) == meant.split()


def test_two_against_three(fp8migrate: Command, tmp_path: Path) -> None:
    files = [write(tmp_path / f"{name}.jsonl", curve(place, data=3)) for place, name in enumerate("abdef")]
    assert len(files) == 5
    done = fp8migrate("compare", "a.jsonl", "b.jsonl", "--against", "d.jsonl", "e.jsonl", "f.jsonl")
    assert done.returncode == 4, done.stderr
    assert "2 against 3 runs" in done.stdout
    report = json.loads((tmp_path / "reports" / "compare" / "report.json").read_bytes())
    assert report["comparisons"][0]["groups"]["sizes"] == [2, 3]


def test_verdict_first_then_the_report_and_the_exit_code(fp8migrate: Command, tmp_path: Path) -> None:
    group(tmp_path / "bf16", 5, data=3)
    group(tmp_path / "fp8", 5, first_seed=50, data=3)
    group(tmp_path / "bad", 5, first_seed=70, data=3, gap=0.02)
    good = fp8migrate("compare", "bf16", "--against", "fp8")
    assert good.returncode == 0, good.stderr
    lines = good.stdout.splitlines()
    assert lines[0] == "PASS (not known: same configuration, FP8 ran): FP8 is as good as BF16 within the margin."
    assert lines[-1] == "Report: reports/compare/report.html"
    folder = tmp_path / "reports" / "compare"
    assert {path.name for path in folder.iterdir()} == {"report.html", "report.md", "report.json", "junit.xml"}
    bad = fp8migrate("compare", "bf16", "--against", "bad", "--serve", "fp8", "--name", "bad")
    assert bad.returncode == 3, bad.stdout
    suite = ElementTree.parse(tmp_path / "reports" / "bad" / "junit.xml").getroot()
    assert suite.findall(".//failure")
    assert "FAIL" in (tmp_path / "reports" / "bad" / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bf16", "--against", "nothing"), "nothing: cannot be read: No such file"),
        (("bf16", "--against", "*.nothing"), "matches no file"),
        (("bf16", "--against", "bf16", "--margin", "loose"), "--margin: 'loose' is no fraction"),
        (("bf16", "--against", "bf16", "--margin", "0"), "margin"),
        (("bf16", "--against", "bf16", "--serve", "int8"), "serve"),
        (("bf16", "--against", "bf16", "--endpoint", "accuracy"), "no endpoint 'accuracy'"),
        (("bf16", "--against", "bf16", "--attest", "fp8=yes"), "does not say who says what"),
        (("bf16", "--against", "bf16", "--attest", "luck=me: sure"), "no evidence 'luck'"),
        (("bf16", "--against", "bf16", "--require", "luck"), "no evidence 'luck'"),
        (("bf16::other*", "--against", "bf16"), "holds no run named 'other*'"),
        (("bf16", "--against", "bf16", "--format", "nonsense"), "no log format 'nonsense'"),
        (("bf16", "--against", "bf16", "--name", "../up"), "name"),
        (("bf16", "--against", "empty"), "is an empty folder"),
        (("bf16",), "--against"),
        (("bf16", "--against"), "--against"),
        (("--against", "bf16"), "BASELINE"),
    ],
)
def test_refusals_say_what_and_where(fp8migrate: Command, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    group(tmp_path / "bf16", 2, data=3)
    (tmp_path / "empty").mkdir()
    done = fp8migrate("compare", *arguments)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "reports").exists()


def test_runs_of_one_file_by_pattern(fp8migrate: Command, tmp_path: Path) -> None:
    rows = ["run,step,loss"]
    for arm, first in (("bf16", 0), ("fp8", 50)):
        for run in range(4):
            rows += [f"{arm}_{run},{step},{loss!r}" for step, loss in enumerate(curve(first + run, data=3).tolist())]
    (tmp_path / "steps.csv").write_text("\n".join(rows) + "\n")
    sided = fp8migrate("compare", "steps.csv", "--runs", "bf16*", "--against", "steps.csv", "--runs", "fp8*")
    named = fp8migrate("compare", "steps.csv::bf16*", "--against", "steps.csv::fp8*")
    assert (sided.returncode, named.returncode) == (0, 0), sided.stderr
    assert sided.stdout == named.stdout
    less = fp8migrate("compare", "steps.csv::bf16*", "--against", "steps.csv", "--runs", "fp8*", "--skip-runs", "fp8_3")
    assert "4 against 3 runs" in less.stdout


def test_standard_input_is_a_side(fp8migrate: Command, tmp_path: Path) -> None:
    import subprocess
    import sys

    group(tmp_path / "bf16", 4, data=3)
    content = write(tmp_path / "one.jsonl", curve(60, data=3)).read_bytes()
    command = [sys.executable, "-m", "fp8migrate", "compare", "bf16", "--against", "-"]
    done = subprocess.run(command, input=content, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 4, done.stderr
    assert b"4 against 1 run" in done.stdout


POLICY = """\
name: nightly
baseline: {logs: [bf16]}
candidate: {logs: [fp8]}
require: [data]
metrics:
  training_loss: {tier: critical, margin: 0.003}
  speed: {tier: supporting, at_least: 1.2}
"""


def test_gate_reads_a_policy_relative_to_itself(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "policy.yaml").write_text(POLICY)
    group(tmp_path / "ci" / "bf16", 5, data=3, tokens_per_second=1000.0)
    group(tmp_path / "ci" / "fp8", 5, first_seed=50, data=3, tokens_per_second=1500.0)
    done = fp8migrate("gate", "ci/policy.yaml", GITHUB_STEP_SUMMARY=str(tmp_path / "summary.md"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "reports" / "nightly" / "junit.xml").exists()
    assert "PASS" in (tmp_path / "summary.md").read_text()
    group(tmp_path / "ci" / "fp8", 5, first_seed=50, data=3, tokens_per_second=1100.0)
    slower = fp8migrate("gate", "ci/policy.yaml")
    assert slower.returncode == 4
    assert "SUPPORTING_FAILED" in slower.stdout


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("metrcs: {}", "policy.yaml:4: metrcs: unknown key; did you mean metrics?"),
        ("metrics: {speed: {}}", "policy.yaml:4: metrics.speed.at_least: missing key"),
        ("metrics: {speed: {at_least: fast}}", 'policy.yaml:4: metrics.speed.at_least: expected a number > 0, got "fast"'),
        ("metrics: {training_loss: {tier: vital}}", "expected one of critical, supporting, advisory"),
        ("metrics: {training_loss: {tier: supporting}}", "nothing critical says whether FP8 is as good"),
        ("attest: {fp8: yes}", "attest.fp8"),
        ("attest: {fp8: 'sure'}", "say who says what"),
        ("require: [luck]", "require"),
        ("margin: 7", "margin"),
    ],
)
def test_a_policy_with_a_mistake_is_refused_by_its_line(fp8migrate: Command, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "policy.yaml").write_text(f"name: x\nbaseline: {{logs: [a]}}\ncandidate: {{logs: [b]}}\n{line}\n")
    done = fp8migrate("gate", "policy.yaml")
    assert done.returncode == 2
    assert says in done.stderr


def test_a_stored_baseline(fp8migrate: Command, tmp_path: Path) -> None:
    group(tmp_path / "bf16", 5, data=3)
    (tmp_path / "bf16" / "config.yaml").write_text("torch_version: 2.11\ndata_path: /d\nlr: 1e-3\n")
    group(tmp_path / "fp8", 5, first_seed=50, data=3)
    (tmp_path / "fp8" / "config.yaml").write_text("torch_version: 2.11\ndata_path: /d\nlr: 1e-3\nfp8: true\n")
    plain = fp8migrate("compare", "bf16", "--against", "fp8", "--store", "baseline.json.gz")
    assert (plain.returncode, "Baseline stored: baseline.json.gz" in plain.stdout) == (0, True)
    policy = tmp_path / "policy.yaml"
    policy.write_text("baseline: {bundle: baseline.json.gz}\ncandidate: {logs: [fp8]}\n")
    stored = fp8migrate("gate", "policy.yaml")
    assert stored.returncode == 0, stored.stderr
    assert stored.stdout.splitlines()[:2] == plain.stdout.splitlines()[:2]

    (tmp_path / "fp8" / "config.yaml").write_text("torch_version: 2.13\ndata_path: /e\nlr: 1e-4\nfp8: true\n")
    foreign = fp8migrate("gate", "policy.yaml")
    assert foreign.returncode == 2
    for what in ("versions: torch_version (2.11 → 2.13)", "data: data_path (/d → /e)", "configuration: lr (0.001 → 0.0001)"):
        assert what in foreign.stderr

    os.remove(tmp_path / "fp8" / "config.yaml")
    write(tmp_path / "bf16" / "run0.jsonl", curve(99, data=3))
    stale = fp8migrate("gate", "policy.yaml")
    assert (stale.returncode, "is stale" in stale.stderr, "run0.jsonl" in stale.stderr) == (2, True, True)
    again = fp8migrate("compare", "bf16", "--against", "fp8", "--store", "baseline.json.gz")
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


def test_a_stored_baseline_that_was_changed_is_refused(fp8migrate: Command, tmp_path: Path) -> None:
    group(tmp_path / "bf16", 4, data=3)
    group(tmp_path / "fp8", 4, first_seed=50, data=3)
    assert fp8migrate("compare", "bf16", "--against", "fp8", "--store", "b.json").returncode == 0
    content = json.loads((tmp_path / "b.json").read_text())
    content["runs"][0]["failure"] = "x"
    (tmp_path / "b.json").write_text(json.dumps(content))
    (tmp_path / "p.yaml").write_text("baseline: {bundle: b.json}\ncandidate: {logs: [fp8]}\n")
    done = fp8migrate("gate", "p.yaml")
    assert (done.returncode, "its seal is broken" in done.stderr) == (2, True)
    for content in (b"", b"{}", b"[1]", b"\x00\x01", b'{"kind": "fp8migrate stored baseline"}'):
        (tmp_path / "b.json").write_bytes(content)
        done = fp8migrate("gate", "p.yaml")
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)


def test_names_are_shown_and_never_obeyed(fp8migrate: Command, tmp_path: Path) -> None:
    """Run names with HTML, Markdown, control characters and `..`: no markup, no path, no escape sequence."""
    rows = ["run,step,loss"]
    names = ["<script>alert(1)</script>", "../../etc/passwd", "a\x1b[31mred", "**bold**|x"]
    for place, name in enumerate(names):
        rows += [f'"{name}",{step},{loss!r}' for step, loss in enumerate(curve(place, data=3, steps=200).tolist())]
    (tmp_path / "steps.csv").write_text("\n".join(rows[:-20]) + "\n")
    group(tmp_path / "bf16", 4, data=3)
    done = fp8migrate("compare", "bf16", "--against", "steps.csv")
    assert done.returncode == 4, done.stderr
    assert "\x1b" not in done.stdout
    page = (tmp_path / "reports" / "compare" / "report.html").read_text()
    assert "<script>" not in page
    assert "\x1b" not in page
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()].count("etc") == 0


def evaluation(folder: Path, seed: int, *, worse: float = 0.0, documents: int = 6000) -> None:
    """Two tasks, right in about 70 %: runs agree but for chance in 4 %, `worse` of the documents lost besides."""
    common, own = np.random.default_rng(0), np.random.default_rng(seed)
    scores, rows = {}, {}
    for task in ("arc", "piqa"):
        right = common.random(documents) < 0.7
        flipped = own.random(documents) < 0.02
        right = (right ^ flipped) & (own.random(documents) >= worse)
        scores[task] = {"acc,none": float(right.mean()), "acc_stderr,none": 0.01}
        rows[task] = [evaluations.sample(place, {"acc": float(value)}) for place, value in enumerate(right)]
    evaluations.write(folder, evaluations.results(scores, documents), rows)


def test_item_evaluations_alone(fp8migrate: Command, tmp_path: Path) -> None:
    """Five BF16 results are replicates; the candidate that loses seven points of each task fails, the equal one passes."""
    for run in range(5):
        evaluation(tmp_path / "bf16" / str(run), run)
    evaluation(tmp_path / "fp8", 50)
    evaluation(tmp_path / "bad", 60, worse=0.1)
    bf16 = [f"bf16/{run}" for run in range(5)]
    good = fp8migrate("compare", *bf16, "--against", "fp8")
    assert good.returncode == 0, good.stdout + good.stderr
    assert good.stdout.startswith("PASS (not known: FP8 ran)")
    bad = fp8migrate("compare", *bf16, "--against", "bad", "--name", "bad")
    assert bad.returncode == 3, bad.stdout
    page = (tmp_path / "reports" / "bad" / "report.html").read_text()
    assert "Item evaluations" in page
    assert "piqa" in page
    single = fp8migrate("compare", bf16[0], "--against", "fp8")
    assert (single.returncode, "NO_REPLICATES" in single.stdout) == (4, True)


def test_evaluations_beside_logs(fp8migrate: Command, tmp_path: Path) -> None:
    """Both must hold: losses that pass do not acquit a candidate whose answers are worse. One side alone is refused."""
    group(tmp_path / "bf16", 5, data=3)
    group(tmp_path / "fp8", 5, first_seed=50, data=3)
    evaluation(tmp_path / "fp8" / "evals", 60, worse=0.1)
    one_sided = fp8migrate("compare", "bf16", "--against", "fp8")
    assert (one_sided.returncode, "no evaluation of the baseline" in one_sided.stderr) == (2, True)
    for run in range(5):
        evaluation(tmp_path / "bf16" / f"evals{run}", run)
    both = fp8migrate("compare", "bf16", "--against", "fp8")
    assert both.returncode == 3, both.stdout
    assert "arc" in both.stdout or "piqa" in both.stdout or "average" in both.stdout
