"""doctor as it is printed: how wide, what first, and what is left of it where torch is not there."""

import subprocess
from pathlib import Path

import pytest

from fp8migrate.engine import doctor
from fp8migrate.errors import UsageError
from fp8migrate.records.machine import Attention, Library, Machine, TransformerEngine
from fp8migrate.report.doctor import describe_machine
from fp8migrate.trainers import builtin
from tests.evidence.test_diagnosis import ENGINE, SYSTEM, TORCHS, diagnosed, machine

SMI = """#!/bin/sh
echo "NVIDIA H200, 9.0, 143771, 143000, 580.65.06"
"""


def printed(found: Machine, width: int = 80, **variables: str) -> list[str]:
    return list(describe_machine(diagnosed(found, **variables), width))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("capability", [None, "8.0", "9.0", "10.0", "12.0"])
def test_it_fits(capability: str | None, width: int) -> None:
    engine = ENGINE.model_copy(update={"cudnn": "9.14.0", "attention": Attention(backend="unfused")})
    lines = printed(machine(capability, engine=engine, cudnns=(SYSTEM, TORCHS)), width, NVTE_FUSED_ATTN="0")
    assert max(len(line) for line in lines) <= width
    assert lines[0].startswith("This machine can judge FP8")


def test_hopper_whole() -> None:
    lines = printed(machine("9.0", torchao=Library(state="missing")), 120, NVTE_FP8_DPA_BWD="0")
    assert lines[:18] == [
        "This machine can judge FP8 with transformer_engine: delayed, current, block. "
        "Emulated, for quality alone: every recipe.",
        "",
        "recipe              transformer_engine  torchao   emulated",
        "delayed             yes                 -         yes",
        "current             yes                 -         yes",
        "block               yes                 -         yes",
        "tensorwise          -                   no (1)    yes",
        "rowwise             -                   no (1)    yes",
        "rowwise_with_gw_hp  -                   no (1)    yes",
        "mxfp8               no (2)              -         yes",
        "nvfp4               no (2)              -         yes",
        "fixed               -                   -         yes",
        "",
        "(1) torchao is not installed.",
        "    Install it:",
        "      pip install torchao",
        "(2) needs compute capability 10.0 (Blackwell) or newer, this GPU has 9.0 (Hopper).",
        "    Use delayed, current and block here, or say candidate.backend: emulated.",
    ]
    text = "\n".join(lines)
    assert "GPU          a GPU, Hopper, compute capability 9.0, 72.0 of 80.0 GiB free" in text
    assert "Transformer Engine 2.20.2, cuDNN 9.19.0, attention: fused (cuDNN's, kernel 1)" in text
    assert "NVTE_FP8_DPA_BWD=0: 0: backward of FP8 attention in BF16" in text


def test_a_condition_is_a_yes() -> None:
    text = "\n".join(printed(machine("12.0")))
    assert "nvfp4               yes (2)" in text
    assert "(2) only with disable_rht: true and disable_stochastic_rounding: true." in text


def test_commands_are_never_broken() -> None:
    far = TORCHS.model_copy(update={"folder": "/somewhere/" + "very-far/" * 12 + "cudnn"})
    engine = TransformerEngine(state="two_cudnns", version="2.20.2", detail="x")
    lines = printed(machine(engine=engine, cudnns=(SYSTEM, far)), 80)
    assert f"      export CUDNN_PATH={far.folder}" in lines


def test_what_a_library_says_cannot_paint_the_terminal() -> None:
    engine = TransformerEngine(state="failed", version="2.20.2", detail="\x1b[31mred")
    assert "\x1b" not in "".join(printed(machine(engine=engine)))


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> Machine:
        raise UsageError("the built-in trainer needs PyTorch", next_step="pip install 'fp8migrate[train]'")

    monkeypatch.setattr(builtin, "examine", refuse)
    monkeypatch.setattr(doctor, "_version", lambda package: None)


def test_without_torch_the_drivers_tool_names_the_gpu(no_torch: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = doctor.examine("auto")
    (gpu,) = found.machine.gpus
    assert (gpu.name, gpu.compute_capability, found.machine.driver) == ("NVIDIA H200", "9.0", "580.65.06")
    assert gpu.memory_total_bytes == 143771 * 2**20
    assert (found.can_train, "PyTorch is not installed" in found.verdict) == (False, True)
    assert any("compute capability 10.0" in line for line in describe_machine(found, 80))
    assert doctor.examine("cpu").machine.gpus == ()


@pytest.mark.parametrize(
    "answer", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 1), "No devices were found\n", "", "a, b, c\n"]
)
def test_without_torch_and_without_the_drivers_tool(
    no_torch: None, monkeypatch: pytest.MonkeyPatch, answer: Exception | str
) -> None:
    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        if isinstance(answer, Exception):
            raise answer
        return subprocess.CompletedProcess((), 0, answer, "")

    monkeypatch.setattr(subprocess, "run", run)
    found = doctor.examine("auto")
    assert (found.machine.gpus, found.can_train) == ((), False)


def test_torch_that_does_not_load_is_told_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: str) -> Machine:
        raise UsageError("this machine cannot run the plan: OSError: libcudart.so.13")

    monkeypatch.setattr(builtin, "examine", refuse)
    found = doctor.examine("cpu")
    assert not found.can_train
    assert "libcudart.so.13" in found.verdict


def test_a_device_there_is_no_word_for() -> None:
    with pytest.raises(UsageError, match="unknown device"):
        doctor.examine("tpu")
