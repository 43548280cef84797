"""The advisor on a CUDA GPU: the training's bits are its own, and its numbers are those of the CPU."""

import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS  # noqa: E402 - after the skip
from fp8migrate.facts.recipes import MIGRATION_RECIPES  # noqa: E402
from fp8migrate.jobs import TensorStats  # noqa: E402
from fp8migrate.records.store import read_run  # noqa: E402
from fp8migrate.records.writer import RunWriter, load_run_file, save_run_file  # noqa: E402
from fp8migrate.worker.linear import CONTRACTION  # noqa: E402
from fp8migrate.worker.tensor_stats import Rows, losses, take  # noqa: E402
from tests.gpu.test_cuda_worker import evidence, make_run, work  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


def watched(directory: Path) -> Path:
    make_run(directory, None)
    run = load_run_file(directory)
    stats = TensorStats(steps=(20, 60), recipes=MIGRATION_RECIPES, max_tokens=256)
    task = run.job.task.model_copy(update={"tensor_stats": stats})
    save_run_file(directory, run.model_copy(update={"job": run.job.model_copy(update={"task": task})}))
    return directory


def test_a_watched_run_learns_the_same_and_leaves_the_same_table_twice(tmp_path: Path) -> None:
    plain, once, twice = make_run(tmp_path / "plain", None), watched(tmp_path / "once"), watched(tmp_path / "twice")
    for directory in (plain, once, twice):
        subprocess.run(work(directory), check=True)
    assert evidence(plain) == evidence(once) == evidence(twice)
    tables = [RunWriter(directory).read_table("tensor_stats-00000060") for directory in (once, twice)]
    assert tables[0] == tables[1]
    assert len(tables[0]) == 6 * len(MIGRATION_RECIPES) - 2
    assert read_run(once).facts["advisor_seconds"] > 0


def test_the_numbers_are_those_of_the_cpu() -> None:
    x = torch.randn(300, 192, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 2, 192)
    here = take(x, 256)
    assert here.column_amax is not None
    there = Rows(here.values.cuda(), here.column_amax.cuda())
    for recipe in MIGRATION_RECIPES:
        for gemm in GEMMS:
            for tensor, operand in zip(GEMM_OPERANDS[gemm], recipe.operands(gemm) or (), strict=False):
                scale = torch.tensor([0.7]) if operand.history else None
                along = CONTRACTION[gemm, tensor]
                on_gpu = losses(there, operand, along, None if scale is None else scale.cuda()).cpu()
                torch.testing.assert_close(on_gpu, losses(here, operand, along, scale), rtol=1e-6, atol=1e-6)
