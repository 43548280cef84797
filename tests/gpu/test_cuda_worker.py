"""The worker on a CUDA GPU: same bits every time, resumed or not, and the numbers that the CPU gives. `make gpu` runs these."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo  # noqa: E402 - after the skip
from fp8migrate.facts.operands import GEMMS  # noqa: E402
from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, Recipe  # noqa: E402
from fp8migrate.jobs import DataOrder, Job, Precision, Role, Train  # noqa: E402
from fp8migrate.plan.schema import LlamaModel, PythonSourceData, Training  # noqa: E402
from fp8migrate.records.schema import Outcome, RunFile  # noqa: E402
from fp8migrate.records.writer import save_run_file  # noqa: E402
from fp8migrate.trainers.builtin import probe  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

MODEL = LlamaModel(num_layers=3, hidden_size=256, num_heads=8, num_kv_heads=2, ffn_hidden_size=512)
DATA = PythonSourceData(validation_tokens=8192)
TRAINING = Training(
    num_steps=200, sequence_length=128, micro_batch_size=8, global_batch_size=16, learning_rate=1e-3, warmup_steps=10
)
RECIPES: dict[str, Recipe | None] = {
    "bf16": None,
    "current": CurrentRecipe(),
    "delayed": DelayedRecipe(amax_history_len=16),
}


def make_run(directory: Path, recipe: Recipe | None) -> Path:
    backend = "bf16" if recipe is None else "emulated"
    task = Train(
        model=MODEL,
        data=DATA,
        training=TRAINING,
        precision=Precision(backend=backend, recipe=recipe, keep_bf16=("lm_head",)),
        data_order=DataOrder(seed=1),
        last_step=60,
        validate_at=(60,),
        validate_forwards=("bf16", "fp8"),
        resume_every=20,
    )
    job = Job(task=task, device="cuda", label=directory.name, role=Role(design="scratch", arm="candidate"))
    directory.mkdir(parents=True)
    environment = probe("cuda", DATA, threads=1)
    save_run_file(directory, RunFile(key="k", job=job, environment=environment, outcome=Outcome(status="running")))
    return directory


def work(directory: Path) -> list[str]:
    return [sys.executable, "-m", "fp8migrate.worker", "run", str(directory)]


def evidence(directory: Path) -> list[object]:
    """Losses, gradient norms and evaluations, by their bits as logged."""
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    evals = (directory / "evals.jsonl").read_text().splitlines()
    return [[(row["step"], row["loss"], row["grad_norm"]) for row in metrics], evals]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_a_run_repeats_bit_for_bit_and_learns(tmp_path: Path, recipe: Recipe | None) -> None:
    found = []
    for name in ("a", "b"):
        directory = make_run(tmp_path / name, recipe)
        subprocess.run(work(directory), check=True)
        found.append(evidence(directory))
    assert found[0] == found[1]
    losses = [loss for _, loss, _ in found[0][0]]  # type: ignore[attr-defined]
    assert losses[-1] < losses[0] - 1.0


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = make_run(tmp_path / "whole", RECIPES["delayed"])
    subprocess.run(work(whole), check=True)
    killed = make_run(tmp_path / "killed", RECIPES["delayed"])
    process = subprocess.Popen(work(killed))
    deadline = time.monotonic() + 120
    while len(list(killed.glob("checkpoints/*.safetensors"))) == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run(work(killed), check=True)
    assert evidence(killed) == evidence(whole)


@pytest.mark.parametrize("info", [E4M3, E5M2, E2M1], ids=lambda info: info.name)
def test_rounding_is_the_cpus_bit_for_bit(info: FormatInfo) -> None:
    from fp8migrate.worker.rounding import round_to_format_

    every_bf16 = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    on_cpu, on_gpu = round_to_format_(every_bf16.clone(), info), round_to_format_(every_bf16.cuda(), info).cpu()
    assert torch.equal(on_cpu.nan_to_num(nan=-12345.0), on_gpu.nan_to_num(nan=-12345.0))


def test_an_emulated_layer_gives_what_the_cpu_gives_up_to_accumulation() -> None:
    from fp8migrate.worker.backends.emulated import EmulatedLinear
    from fp8migrate.worker.linear import Linear

    torch.manual_seed(0)
    source = Linear(256, 128)
    torch.nn.init.normal_(source.weight, std=0.02)
    x = torch.randn(64, 256)
    outputs, gradients = [], []
    for device in ("cpu", "cuda"):
        layer = EmulatedLinear(source, dict.fromkeys(GEMMS, CurrentRecipe())).to(device)
        moved = x.to(device).detach().requires_grad_()
        y = layer(moved)
        y.square().sum().backward()
        outputs.append(y.detach().cpu())
        gradients.append(moved.grad.cpu())
        layer.weight.grad = None
    # One BF16 rounding (2^-8 relative) of sums that were accumulated in another order.
    torch.testing.assert_close(outputs[0], outputs[1], rtol=2**-7, atol=1e-3)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0.25, atol=2e-2)
