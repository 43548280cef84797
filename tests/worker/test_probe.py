"""What a run's identity covers: the code that trains, the data, the variables that change kernels."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fp8migrate
from fp8migrate.errors import UsageError
from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.worker import probe as module
from fp8migrate.worker.probe import probe, source_sha256
from tests.worker import runs

# Modules that a worker loads and that its numbers pass through unchanged (tests/records), or that it speaks with.
WITHOUT_EFFECT = {"fp8migrate", "fp8migrate.errors", "fp8migrate.plan", "fp8migrate.records", "fp8migrate.sizing"}

_MODULES = "import sys, fp8migrate.worker.__main__; print(*(name for name in sys.modules if name.startswith('fp8migrate')))"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package for `source_sha256` to look at."""
    root = Path(fp8migrate.__file__).parent
    for path in root.rglob("*.py"):
        copy = tmp_path / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(module.fp8migrate, "__file__", str(tmp_path / "__init__.py"))
    return tmp_path


def loaded_modules() -> set[str]:
    ended = subprocess.run([sys.executable, "-c", _MODULES], check=True, capture_output=True, text=True, timeout=120)
    return set(ended.stdout.split())


def file_of(name: str) -> Path:
    path = Path(*name.split(".")[1:])
    root = Path(fp8migrate.__file__).parent
    return path / "__init__.py" if (root / path).is_dir() else path.with_suffix(".py")


def test_every_module_that_a_worker_loads_is_digested_or_without_effect(code: Path) -> None:
    """A new import fails here until someone has decided which it is."""
    before = source_sha256()
    loaded = loaded_modules()
    assert {"fp8migrate.worker.scaling", "fp8migrate.worker.tasks.train", "fp8migrate.facts.recipes"} <= loaded
    not_digested = set()
    for name in loaded:
        path = code / file_of(name)
        content = path.read_bytes()
        path.write_bytes(content + b"# changed\n")
        if source_sha256() == before:
            not_digested.add(name)
        path.write_bytes(content)
    assert source_sha256() == before
    assert {name for name in not_digested if not name.startswith("fp8migrate.records.")} == WITHOUT_EFFECT


@pytest.mark.parametrize("name", ["report/html.py", "statistics/drift.py", "checks/parity.py", "verdict.py", "cli.py"])
def test_what_only_judges_and_tells_may_change(code: Path, name: str) -> None:
    before = source_sha256()
    (code / name).write_text("# another way to tell it\n")
    assert source_sha256() == before


def test_a_new_name_or_file_in_the_worker_is_another_code(code: Path) -> None:
    before = source_sha256()
    (code / "worker" / "scaling.py").rename(code / "worker" / "scaling2.py")
    renamed = source_sha256()
    (code / "worker" / "new.py").write_text("")
    assert len({before, renamed, source_sha256()}) == 3


def test_the_digest_is_the_same_in_every_process() -> None:
    command = "from fp8migrate.worker.probe import source_sha256; print(source_sha256())"
    ended = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True, timeout=120)
    assert ended.stdout.strip() == source_sha256()
    assert len(source_sha256()) == 64


def test_the_environment_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVTE_FLASH_ATTN", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("HOME_MADE", "1")
    found = probe("cpu", runs.DATA)
    corpus = runs.corpus()
    assert (found.data_sha256, found.data_tokens) == (corpus.sha256, corpus.num_tokens)
    assert found.held_out_tokens == sum(len(text) for _, text in corpus.validation)
    assert (found.device, found.cuda, found.compute_capability) == ("cpu", None, None)
    assert found.torch == torch.__version__
    assert found.source_sha256 == source_sha256()
    assert found.variables["NVTE_FLASH_ATTN"] == "0"
    assert not {"OMP_NUM_THREADS", "HOME_MADE"} & found.variables.keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU here")
def test_cuda_without_a_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch sees no CUDA GPU"):
        probe("cuda", PythonSourceData())
