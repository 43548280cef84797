"""Training runs: the schedule, the same bits stopped or not, non-finite values and full disks, starts and branches."""

import errno
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fp8migrate.errors import InfrastructureError
from fp8migrate.jobs import Cooldown, DataOrder, Precision
from fp8migrate.plan.schema import Training
from fp8migrate.records.store import read_run
from fp8migrate.records.writer import RunWriter, checkpoint_path, load_run_file
from fp8migrate.worker import __main__ as program
from fp8migrate.worker import checkpoint
from fp8migrate.worker.backends.emulated import EmulatedLinear
from fp8migrate.worker.optimizer import build_optimizer, learning_rate
from fp8migrate.worker.tasks import train
from fp8migrate.worker.tasks.context import Interrupted, NonFinite
from fp8migrate.worker.tasks.train import move_one_ulp
from tests.worker import runs
from tests.worker.runs import (
    BAD,
    BF16,
    CURRENT,
    DELAYED,
    OFF,
    TRAINING,
    Stop,
    carry_out,
    evidence,
    facts,
    make_run,
    new_state,
    train_task,
)

ARMS = {"bf16": BF16, "control": OFF, "current": CURRENT, "delayed": DELAYED, "sensitivity": BAD}
every_kind = pytest.mark.parametrize("precision", [BF16, CURRENT, DELAYED], ids=["bf16", "current", "delayed"])

Main = Callable[[Path], int]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    """`python -m fp8migrate.worker run DIRECTORY` in this process; returns its exit code."""
    monkeypatch.setattr(program, "exit_with_parent", lambda: None)
    monkeypatch.setattr(program, "StopSignal", Stop)
    monkeypatch.setattr(program, "load_corpus", lambda settings: runs.corpus())
    # Held until the process ends, which here would keep a second attempt out.
    monkeypatch.setattr(RunWriter, "lock", lambda self, timeout_seconds=0: None)
    return lambda directory: program.main(["run", str(directory)])


# The schedule


def test_the_learning_rate_by_hand() -> None:
    """Peak 0.01 after 4 steps; cosine to a tenth at step 24, half way down at step 14."""
    rates = [learning_rate(TRAINING, step) for step in (0, 1, 2, 3, 4, 14, 24, 30)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.0055, 0.001, 0.001])
    assert learning_rate(TRAINING, 9) == pytest.approx(0.001 + 0.009 * 0.5 * (1 + math.cos(math.pi / 4)))


def test_without_warm_up_the_first_update_has_the_peak_rate() -> None:
    assert learning_rate(TRAINING.model_copy(update={"warmup_steps": 0}), 0) == pytest.approx(0.01)


def test_a_cool_down_falls_linearly_to_zero() -> None:
    cooldown = Cooldown(start=14, num_steps=4)
    rates = [learning_rate(TRAINING, step, cooldown) for step in range(14, 19)]
    assert rates == pytest.approx([0.0055, 0.0055 * 0.75, 0.0055 * 0.5, 0.0055 * 0.25, 0.0])


def test_the_logged_rates_are_the_schedules(tmp_path: Path) -> None:
    cooldown = Cooldown(start=0, num_steps=4)
    task = train_task(BF16, last_step=4, validate_at=(), cooldown=cooldown)
    metrics, _, _ = evidence_without_evals(carry_out(make_run(tmp_path / "a", task)))
    assert [(step, rate) for step, _, _, rate in metrics] == [(i + 1, learning_rate(TRAINING, i, cooldown)) for i in range(4)]


def evidence_without_evals(directory: Path) -> tuple[list[Any], list[str], str]:
    (directory / "evals.jsonl").touch()
    return evidence(directory)


def test_matrices_decay_and_norms_and_the_embedding_do_not() -> None:
    model = new_state(BF16).model
    decayed, kept = build_optimizer(model, TRAINING).param_groups
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {parameter: name for name, parameter in model.named_parameters()}
    assert all(
        ".attention." in name or ".mlp." in name or name == "lm_head.weight" for name in map(names.get, decayed["params"])
    )
    assert {names[p] for p in kept["params"]} == {n for n in names.values() if "norm" in n or n == "embedding.weight"}


# The same bits


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Precision], Path]:
    """The run of a precision that nothing stopped; trained once."""
    folder, found = tmp_path_factory.mktemp("whole"), dict[Precision, Path]()

    def run(precision: Precision) -> Path:
        if precision not in found:
            found[precision] = carry_out(make_run(folder / str(len(found)), train_task(precision)))
        return found[precision]

    return run


Whole = Callable[[Precision], Path]


@every_kind
def test_the_same_job_twice_gives_the_same_bits_and_learns(precision: Precision, tmp_path: Path, whole: Whole) -> None:
    first = evidence(whole(precision))
    assert evidence(carry_out(make_run(tmp_path / "again", train_task(precision)))) == first
    losses = [loss for _, loss, _, _ in first[0]]
    assert [step for step, _, _, _ in first[0]] == list(range(1, 13))
    assert losses[0] == pytest.approx(math.log(256), abs=0.2)
    assert losses[-1] < losses[0] - 1.0


def test_precision_shows_in_the_losses(whole: Whole) -> None:
    found = {name: evidence(whole(precision)) for name, precision in ARMS.items()}
    assert found["control"] == found["bf16"]
    losses = {name: tuple(loss for _, loss, _, _ in metrics) for name, (metrics, _, _) in found.items()}
    assert len(set(losses.values())) == 4
    assert len({data for _, _, data in found.values()}) == 1  # all saw the same batches


@every_kind
@pytest.mark.parametrize("after", [0, 7], ids=lambda after: f"after {after}")
def test_a_stopped_run_goes_on_to_the_same_bits(
    precision: Precision, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main, whole: Whole
) -> None:
    stopped = make_run(tmp_path / "stopped", train_task(precision))
    monkeypatch.setattr(program, "StopSignal", lambda: Stop(after))
    assert main(stopped) == 75
    record = read_run(stopped)
    assert (record.outcome.status, record.outcome.exit_code, record.outcome.last_step) == ("interrupted", 75, after)
    monkeypatch.setattr(program, "StopSignal", Stop)
    assert main(stopped) == 0
    assert evidence(stopped) == evidence(whole(precision))
    assert read_run(stopped).outcome.status == "completed"
    assert quantized(stopped) == quantized(whole(precision))


def quantized(directory: Path) -> int | None:
    conversion = read_run(directory).conversion
    assert conversion is not None
    return conversion.quantized_tensors


class Killed(Exception):
    """Stands for SIGKILL: nothing after it is carried out."""


@pytest.mark.parametrize(
    ("precision", "step"),
    [(BF16, 7), (CURRENT, 7), (DELAYED, 7), (DELAYED, 2), (DELAYED, 12)],
    ids=["bf16", "current", "delayed", "before any checkpoint", "at the last step"],
)
def test_a_killed_run_goes_on_to_the_same_bits(
    precision: Precision, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    """Ended right after a line was logged: the lines beyond the last checkpoint are logged again, not twice."""
    killed = make_run(tmp_path / "killed", train_task(precision))
    log = RunWriter.log

    def log_and_die(self: RunWriter, at: int, **values: float) -> None:
        log(self, at, **values)
        if at == step:
            raise Killed

    monkeypatch.setattr(RunWriter, "log", log_and_die)
    with pytest.raises(Killed):
        carry_out(killed)
    assert len((killed / "metrics.jsonl").read_text().splitlines()) == step
    monkeypatch.setattr(RunWriter, "log", log)
    carry_out(killed)
    assert evidence(killed) == evidence(whole(precision))
    assert sorted(p.name for p in killed.glob("checkpoints/*")) == []  # nobody starts from this run


def test_stopped_after_warm_passes_and_before_the_first_step(tmp_path: Path) -> None:
    """The weights that the first step multiplies are those that a resumed run multiplies."""
    task = train_task(DELAYED, last_step=2, validate_at=(2,), warm_amax_batches=2)
    straight = carry_out(make_run(tmp_path / "straight", task))
    stopped = make_run(tmp_path / "stopped", task)
    with pytest.raises(Interrupted, match="stopped after step 0"):
        carry_out(stopped, stop=Stop(0))
    assert evidence(carry_out(stopped)) == evidence(straight)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_signalled_process_goes_on_to_the_same_bits(number: signal.Signals, tmp_path: Path) -> None:
    task = train_task(DELAYED, last_step=400, validate_at=(200, 400), resume_every=20)
    task = task.model_copy(update={"training": TRAINING.model_copy(update={"num_steps": 400})})
    whole = carry_out(make_run(tmp_path / "whole", task))
    stopped = make_run(tmp_path / "stopped", task)
    command = [sys.executable, "-m", "fp8migrate.worker", "run", str(stopped)]
    process = subprocess.Popen(command)
    deadline = time.monotonic() + 60
    while not list(stopped.glob("checkpoints/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, number)
    assert process.wait(60) == (75 if number == signal.SIGTERM else -number)
    assert read_run(stopped).outcome.status == ("interrupted" if number == signal.SIGTERM else "running")
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
    assert evidence(stopped) == evidence(whole)


# Non-finite values


def diverging() -> Training:
    return TRAINING.model_copy(update={"learning_rate": 1e30})


@pytest.mark.parametrize("precision", [BF16, CURRENT], ids=["bf16", "current"])
def test_a_nan_is_recorded_and_no_error(precision: Precision, tmp_path: Path, main: Main) -> None:
    task = train_task(precision).model_copy(update={"training": diverging()})
    directory = make_run(tmp_path / "a", task)
    assert main(directory) == 0
    record = read_run(directory)
    assert (record.outcome.status, record.outcome.cause) == ("failed", "non_finite")
    step = record.outcome.last_step
    assert 1 < step < 12
    loss, norm = record.series["loss"], record.series["grad_norm"]
    assert loss.steps[-1] == norm.steps[-1] == step
    assert not (math.isfinite(loss.values[-1]) and math.isfinite(norm.values[-1]))
    assert record.unreadable_lines == 0
    assert np.isfinite(loss.values[:-1]).all()
    assert f"at step {step}" in record.outcome.detail
    # Nothing to go on from but the steps before it.
    assert all(torch.isfinite(t).all() for p in directory.glob("checkpoints/*") for t in checkpoint.load(p).tensors.values())


def test_a_nan_in_an_evaluation_is_recorded_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(model: object, held_out: Any) -> tuple[Any, Any]:
        return np.full(2, np.nan), np.full(2, 16)

    monkeypatch.setattr(train, "document_losses", broken)
    directory = make_run(tmp_path / "a", train_task(BF16, validate_at=(3,)))
    with pytest.raises(NonFinite, match="validation loss under the bf16 forward is nan at step 3"):
        carry_out(directory)
    (evaluation,) = read_run(directory).evaluations
    assert math.isnan(evaluation.loss)


# The disk


@pytest.mark.parametrize("failure", ["os", "safetensors"])
def test_a_full_disk_at_a_checkpoint_leaves_nothing_half_written(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main, capsys: pytest.CaptureFixture[str], whole: Whole
) -> None:
    directory = make_run(tmp_path / "full", train_task(DELAYED))
    save_file, calls = checkpoint.save_file, []

    def full_at_the_second(state: Any, path: Path, metadata: dict[str, str]) -> None:
        calls.append(path)
        if len(calls) < 2:
            save_file(state, path, metadata=metadata)
            return
        path.write_bytes(b"half a checkpoint")
        if failure == "os":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise checkpoint.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full_at_the_second)
        assert main(directory) == 5
    assert "No space left on device" in capsys.readouterr().err
    assert [p.name for p in directory.glob("checkpoints/*")] == ["step-00000004.safetensors"]
    assert checkpoint.load(checkpoint_path(directory, 4)).step == 4
    assert main(directory) == 0
    assert evidence(directory) == evidence(whole(DELAYED))


def test_a_full_disk_in_the_log_ends_the_run_as_the_machines_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: Main
) -> None:
    def full(self: RunWriter, step: int, **values: float) -> None:
        raise InfrastructureError("cannot be written: No space left on device")

    monkeypatch.setattr(RunWriter, "log", full)
    assert main(make_run(tmp_path / "a", train_task(BF16))) == 5


def test_only_checkpoints_that_others_start_from_are_kept(tmp_path: Path) -> None:
    directory = carry_out(make_run(tmp_path / "a", train_task(BF16, checkpoint_at=(3, 8))))
    assert sorted(p.name for p in directory.glob("checkpoints/*")) == ["step-00000003.safetensors", "step-00000008.safetensors"]


def test_what_a_kill_left_beside_the_checkpoints_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    """Killed between writing a checkpoint and dropping the one before it, and once more while writing."""
    directory = make_run(tmp_path / "a", train_task(BF16))
    with monkeypatch.context() as patch:
        patch.setattr(train, "drop_checkpoints", lambda directory, kept_steps: None)
        with pytest.raises(Interrupted, match="after step 9"):
            carry_out(directory, stop=Stop(9))
    (directory / "checkpoints" / "step-00000010.tmp").write_bytes(b"half")
    assert len(list(directory.glob("checkpoints/*"))) == 4
    carry_out(directory)
    assert list(directory.glob("checkpoints/*")) == []
    assert evidence(directory) == evidence(whole(BF16))


# Starts


def ordered(weights: torch.Tensor) -> torch.Tensor:
    """float32 as integers in the order of their values: neighbours differ by one."""
    bits = weights.view(torch.int32).to(torch.int64)
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def test_the_floor_moves_every_weight_by_exactly_one_ulp() -> None:
    moved = {}
    for seed in (0, 1):
        state, untouched = new_state(BF16), new_state(BF16)
        move_one_ulp(state.model, seed)
        pairs = zip(state.model.parameters(), untouched.model.parameters(), strict=True)
        moved[seed] = torch.cat([(ordered(a.detach()) - ordered(b.detach())).flatten() for a, b in pairs])
    assert set(moved[0].unique().tolist()) == {-1, 1}
    assert abs(float(moved[0].double().mean())) < 0.02
    assert 0.45 < float((moved[0] == moved[1]).double().mean()) < 0.55
    state = new_state(BF16)
    move_one_ulp(state.model, 0)
    again = new_state(BF16)
    move_one_ulp(again.model, 0)
    assert all(torch.equal(a, b) for a, b in zip(state.model.parameters(), again.model.parameters(), strict=True))


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BF16 run of 12 steps that leaves its checkpoint after 6."""
    return carry_out(make_run(tmp_path_factory.mktemp("starts") / "trunk", train_task(BF16, checkpoint_at=(6,))))


def branch(directory: Path, trunk: Path, precision: Precision, **settings: Any) -> Path:
    task = train_task(precision, first_step=6, last_step=9, validate_at=(9,), **settings)
    return carry_out(make_run(directory, task), checkpoint_path(trunk, 6))


def test_branches_of_all_arms_start_from_the_same_bits(tmp_path: Path, trunk: Path) -> None:
    starts = {name: facts(branch(tmp_path / name, trunk, p))["initial_weights_sha256"] for name, p in ARMS.items()}
    floor = facts(branch(tmp_path / "floor", trunk, BF16, one_ulp=0))["initial_weights_sha256"]
    assert len(set(starts.values())) == 1
    assert floor != starts["bf16"]
    assert starts["bf16"] != facts(trunk)["initial_weights_sha256"]


def test_a_bf16_branch_on_the_trunks_data_is_the_trunk(tmp_path: Path, trunk: Path) -> None:
    """Optimizer state, step and schedule go on: nothing tells the branch from the run that went straight on."""
    found = evidence(branch(tmp_path / "a", trunk, BF16))[0]
    assert found == evidence(trunk)[0][6:9]


def test_a_branch_on_other_data_is_not(tmp_path: Path, trunk: Path) -> None:
    found = evidence(branch(tmp_path / "a", trunk, BF16, data_order=DataOrder(split="unseen", seed=1)))[0]
    assert [row[0] for row in found] == [7, 8, 9]
    assert all(a[1] != b[1] for a, b in zip(found, evidence(trunk)[0][6:9], strict=True))


def test_warm_passes_change_nothing_but_scales(tmp_path: Path, trunk: Path) -> None:
    """Where scales keep no history they leave no trace; under delayed scaling they spare the run its cold start."""
    runs_of = {
        (name, warm): evidence(branch(tmp_path / f"{name}-{warm}", trunk, precision, warm_amax_batches=warm))
        for name, precision in (("current", CURRENT), ("delayed", DELAYED))
        for warm in (0, 4)
    }
    assert runs_of["current", 0] == runs_of["current", 4]
    # At the cold scale of 1 most gradients underflow in E5M2: the first step's norm tells.
    cold, warm, bf16 = (
        found[0][row][2] for found, row in ((runs_of["delayed", 0], 0), (runs_of["delayed", 4], 0), (evidence(trunk), 6))
    )
    assert warm == pytest.approx(bf16, rel=0.02)
    assert abs(cold - bf16) > 2 * abs(warm - bf16)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, trunk: Path) -> None:
    task = train_task(BF16, first_step=6, last_step=9, validate_at=())
    task = task.model_copy(update={"model": runs.MODEL.model_copy(update={"num_layers": 3})})
    with pytest.raises(program.UserError, match=r"model\.layers\.2\..* is missing"):
        carry_out(make_run(tmp_path / "a", task), checkpoint_path(trunk, 6))


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_run(tmp_path / "a", train_task(BF16))
    checkpoint_path(directory, 4).parent.mkdir()
    checkpoint_path(directory, 4).write_bytes(b"not a checkpoint")
    assert main(directory) == 2
    assert "step-00000004.safetensors: not a checkpoint of this tool" in capsys.readouterr().err


def test_an_interrupted_run_leaves_a_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    directory = make_run(tmp_path / "a", train_task(CURRENT))
    with pytest.raises(Interrupted, match="stopped after step 2"):
        carry_out(directory, stop=Stop(2))
    found = checkpoint.load(checkpoint_path(directory, 2))
    assert (found.step, len(found.data_sha256)) == (2, 64)
    assert {name.split(".")[0] for name in found.tensors} == {"model", "optimizer"}  # current scaling has no state


def test_a_layer_that_ran_without_fp8_is_still_told_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the process that was stopped has seen it."""
    directory = make_run(tmp_path / "run", train_task(CURRENT, resume_every=4))
    monkeypatch.setattr(EmulatedLinear, "ran_without", property(lambda layer: layer.out_features == 64))
    with pytest.raises(Interrupted):
        carry_out(directory, stop=Stop(after=5))
    monkeypatch.undo()
    carry_out(directory)
    conversion = load_run_file(directory).conversion
    assert conversion is not None
    assert conversion.not_in_fp8 == tuple(f"layers.{layer}.mlp.{name}" for layer in (0, 1) for name in ("gate", "up"))
