"""The commands on a plan that is over in seconds: what they print, what they leave, what they exit with."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fp8migrate.records.schema import Environment
from tests.cli.conftest import Command


def test_a_plan_too_small_to_decide_is_inconclusive_and_says_what_would(
    fp8migrate: Command, tiny: Path, tmp_path: Path
) -> None:
    """run, run again, report: one story, since each part of it costs seconds."""
    ended = fp8migrate("run", "tiny.yaml")
    assert ended.returncode == 4, ended.stderr
    lines = ended.stdout.strip().splitlines()
    assert lines[0].startswith("INCONCLUSIVE")
    assert any(line.strip().startswith("Next:") for line in lines)
    folder = tmp_path / "reports" / "tiny"
    assert lines[-1] == "Report: reports/tiny/report.html"
    for name in ("report.html", "report.md", "report.json", "junit.xml", "plan.yaml", "baseline_bundle.json"):
        assert (folder / name).stat().st_size > 0
    assert [f"✓ {phase}: passed" in ended.stderr for phase in ("baseline", "integration")] == [True, True]

    first = json.loads((folder / "report.json").read_text())
    logs = {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/metrics.jsonl")}
    assert len(logs) == 1 + 2 + 1 + 2 * 4 + 1
    again = fp8migrate("run", "tiny.yaml")
    assert again.returncode == 4
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").glob("*/metrics.jsonl")} == logs
    assert json.loads((folder / "report.json").read_text())["evidence_sha256"] == first["evidence_sha256"]

    (folder / "report.json").unlink()
    reported = fp8migrate("report", "reports/tiny")
    assert (reported.returncode, reported.stdout) == (4, again.stdout)
    assert json.loads((folder / "report.json").read_text())["evidence_sha256"] == first["evidence_sha256"]


def test_phases_one_by_one(fp8migrate: Command, tiny: Path, tmp_path: Path) -> None:
    done = fp8migrate("baseline", "tiny.yaml")
    assert (done.returncode, "baseline: passed" in done.stdout) == (0, True), done.stderr
    done = fp8migrate("integration", "tiny.yaml")
    assert (done.returncode, "integration: passed" in done.stdout) == (0, True), done.stderr

    # A log that was edited after it was sealed is noticed, and named.
    log = next((tmp_path / "reports" / "tiny" / "runs").glob("baseline-p0-baseline-*/metrics.jsonl"))
    log.write_text(log.read_text().replace('"loss":5', '"loss":4', 1))
    refused = fp8migrate("small-scale", "tiny.yaml")
    assert (refused.returncode, "stale" in refused.stderr, log.parent.name in refused.stderr) == (2, True, True)


def test_a_bundle_made_in_another_environment_is_refused(fp8migrate: Command, tiny: Path, tmp_path: Path) -> None:
    assert fp8migrate("baseline", "tiny.yaml").returncode == 0
    refused = fp8migrate("integration", "tiny.yaml", NVTE_FUSED_ATTN="0")
    assert refused.returncode == 2
    assert "NVTE_FUSED_ATTN unset -> 0" in refused.stderr
    bundle = json.loads((tmp_path / "reports" / "tiny" / "baseline_bundle.json").read_text())
    assert Environment.model_validate_json(json.dumps(bundle["environment"])).variables.get("NVTE_FUSED_ATTN") is None


def test_plan_shows_jobs_cost_and_power_and_runs_nothing(fp8migrate: Command, tiny: Path, tmp_path: Path) -> None:
    shown = fp8migrate("plan", "tiny.yaml")
    assert shown.returncode == 0
    assert re.search(r"small_scale\s+\d+\s", shown.stdout)
    assert "needs at least 4 pairs" in shown.stdout
    assert not (tmp_path / "reports").exists()


def test_plan_for_a_gpu_that_is_not_here(fp8migrate: Command, tiny: Path) -> None:
    shown = fp8migrate("plan", "tiny.yaml", "--gpu", "h100 sxm5")
    assert (shown.returncode, "989" in shown.stdout) == (0, True)
    unknown = fp8migrate("plan", "tiny.yaml", "--gpu", "h9000")
    assert (unknown.returncode, "Known: " in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("init_std", "step", "found"),
    [("1e20", 1, "gradient norm is nan"), ("1e38", 0, "validation loss under the bf16 forward is nan")],
)
def test_nan_in_the_first_step_of_bf16_says_nothing_of_fp8(
    fp8migrate: Command, tiny: Path, init_std: str, step: int, found: str
) -> None:
    """1e38 breaks the validation before the first update: no loss is logged at all."""
    tiny.write_text(tiny.read_text().replace("ffn_hidden_size: 64", f"ffn_hidden_size: 64, init_std: {init_std}"))
    ended = fp8migrate("run", "tiny.yaml")
    assert ended.returncode == 4
    assert f"baseline-p0-baseline: failed (non_finite) {found} at step {step}" in ended.stderr
    assert "INCONCLUSIVE (BASELINE_UNHEALTHY)" in ended.stdout
    assert f"baseline-p0-baseline is not finite at step {step}" in ended.stdout


def test_nan_in_the_first_step_of_fp8_fails(fp8migrate: Command, tiny: Path) -> None:
    """A scale below float32's least number is zero: 0 / 0. Integration finds it; forced on, the pairs name the step."""
    text = tiny.read_text().replace("branch: {at: 0.5, pairs: 2}", "scratch: {pairs: 1}")
    tiny.write_text(text.replace("{kind: current}", "{kind: fixed, scale: 1e-46}"))
    for force in ((), ("--force",)):
        ended = fp8migrate("run", *force, "tiny.yaml")
        assert (ended.returncode, "FAIL (NON_FINITE" in ended.stdout) == (3, True)
        assert "NaN or Inf in the logits of the FP8 forward, first in the output of layers.0.attention.query" in ended.stdout
    assert "small_scale-scratch-p0-candidate: failed (non_finite)" in ended.stderr
    assert "is nan at step 0" in ended.stderr


def test_odd_shapes_are_told_before_a_run_and_by_plan(fp8migrate: Command, tiny: Path) -> None:
    tiny.write_text(tiny.read_text().replace("ffn_hidden_size: 64", "ffn_hidden_size: 62"))
    told = "3 of 8 linear layers of the model stay in BF16 for their shape: layers.*.mlp.gate, layers.*.mlp.up (out_features 62"
    planned = fp8migrate("plan", "tiny.yaml", "--gpu", "H100 SXM5")
    assert (planned.returncode, told in planned.stdout) == (0, True)
    begun = fp8migrate("baseline", "tiny.yaml")
    assert (begun.returncode, told in begun.stderr) == (0, True)


def test_doctor_says_what_can_run_here(fp8migrate: Command) -> None:
    looked = fp8migrate("doctor", "--device", "cpu")
    assert looked.returncode == 0
    assert "torch" in looked.stdout
    assert "emulated" in looked.stdout
    assert fp8migrate("doctor", "--device", "tpu").returncode == 2


def test_every_command_explains_itself(fp8migrate: Command) -> None:
    listed = fp8migrate("--help").stdout
    for command in ("init", "doctor", "plan", "baseline", "integration", "small-scale", "run", "report"):
        assert command in listed
        helped = fp8migrate(command, "--help")
        assert (helped.returncode, "Usage:" in helped.stdout) == (0, True)


def test_a_second_run_of_the_same_plan_is_refused_while_the_first_goes_on(
    fp8migrate: Command, tiny: Path, tmp_path: Path
) -> None:
    first = subprocess.Popen(
        [sys.executable, "-m", "fp8migrate", "run", "tiny.yaml"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        lock = tmp_path / "reports" / "tiny" / ".lock"
        deadline = time.monotonic() + 60
        while not (lock.exists() and lock.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        second = fp8migrate("run", "tiny.yaml")
        assert second.returncode == 2
        assert str(first.pid) in second.stderr
    finally:
        first.terminate()
        assert first.wait(60) == 5


def test_a_full_disk_behind_standard_output_is_infrastructure(tiny: Path) -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "fp8migrate", "plan", str(tiny), "--gpu", "H100 SXM5"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, "Traceback" in ended.stderr) == (5, False)
    assert "cannot be written" in ended.stderr
