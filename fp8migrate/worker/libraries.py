"""Whether Transformer Engine and torchao load here, and why not: each is tried in a process of its own (trial.py)."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from fp8migrate.records.log_tail import last_words
from fp8migrate.records.machine import Attention, Library, LibraryState, TransformerEngine
from fp8migrate.records.parent import PARENT_VARIABLE
from fp8migrate.worker.cudnn import decoded
from fp8migrate.worker.trial import STEP

Where = Literal["cuda", "cpu", "none"]
TIMEOUT_SECONDS = 180.0
_LONGEST_DETAIL = 400
# Symbols of torch in the compiler's spelling, and libraries that come with one torch or one CUDA alone.
_OF_TORCH = re.compile(
    r"undefined symbol: \S*(c10|2at\d|5torch|caffe2|THP|aoti_torch)|lib(torch\w*|cudart|cublas\w*)\.so\S*: cannot"
)
_WITHOUT_CUDA = re.compile(r"lib(cuda|c10_cuda)\.so|CUDA driver|no CUDA-capable device|NVIDIA driver", re.IGNORECASE)
_OF_CUDNN = re.compile(r"undefined symbol.*cudnn|cudnn\S*\.so\S*: undefined|CUDNN_STATUS|requires cuDNN", re.IGNORECASE)
_PARTS = re.compile(r"ModuleNotFoundError|Could not find|package version mismatch", re.IGNORECASE)


@dataclass
class _Trial:
    """How a trial ended. steps: what it told; words: the end of what it wrote besides."""

    steps: dict[str, Any] = field(default_factory=dict)
    ended: Literal["well", "crashed", "hung"] = "well"
    how: str = ""
    written: str = ""


def look_at_transformer_engine(where: Where, timeout_seconds: float = TIMEOUT_SECONDS) -> TransformerEngine:
    """Load it, ask it what it refuses, and run its attention once on `where`."""
    trial = _run("transformer_engine", where, timeout_seconds)
    state, detail = _state(trial)
    version = trial.steps.get("version")
    if state != "ok":
        return TransformerEngine(state=state, version=version, detail=detail)
    encoded = trial.steps.get("cudnn")
    return TransformerEngine(
        state="ok",
        version=version,
        cudnn=decoded(encoded) if isinstance(encoded, int) else None,
        refused=trial.steps.get("refused", {}),
        attention=None if where == "none" else _attention(trial),
    )


def look_at_torchao(timeout_seconds: float = TIMEOUT_SECONDS) -> Library:
    """Load its FP8 training."""
    trial = _run("torchao", "none", timeout_seconds)
    state, detail = _state(trial)
    return Library(state=state, version=trial.steps.get("version"), detail=detail)


def why_it_does_not_load(error: str) -> LibraryState:
    """Classify what an import raised."""
    if _OF_CUDNN.search(error):
        return "two_cudnns"
    if _OF_TORCH.search(error):
        return "built_for_another_torch"
    if _WITHOUT_CUDA.search(error):
        return "no_cuda"
    return "incomplete" if _PARTS.search(error) else "failed"


def _state(trial: _Trial) -> tuple[LibraryState, str]:
    if trial.steps.get("missing"):
        return "missing", ""
    if "error" in trial.steps:
        error = str(trial.steps["error"])
        return why_it_does_not_load(error), _one_line(error)
    if trial.steps.get("loaded"):
        return "ok", ""  # what came after has a place of its own
    if trial.ended == "well":
        return "crashed", _one_line(f"the import ended the process; {last_words(trial.written)}")
    return trial.ended, _one_line(f"{trial.how}; {last_words(trial.written)}")


def _attention(trial: _Trial) -> Attention:
    found = trial.steps.get("attention")
    if found is not None:
        refused = _why_not_fused(trial.written) if found["backend"] == "unfused" else ""
        return Attention(backend=found["backend"], detail=_one_line(refused or found["detail"]))
    if "attention_error" in trial.steps:
        return Attention(backend=None, detail=_one_line(trial.steps["attention_error"]))
    return Attention(backend=None, detail=_one_line(f"{trial.how}; {last_words(trial.written)}"))


def _why_not_fused(written: str) -> str:
    """Transformer Engine's own reason, from what it logs at its highest level."""
    reasons = [
        line.partition("Disabling FusedAttention")[2] for line in written.splitlines() if "Disabling FusedAttention" in line
    ]
    return reasons[-1].strip() if reasons else ""


def _run(library: str, where: Where, timeout_seconds: float) -> _Trial:
    """Start a trial and take in what it tells. Never raises for what the trial does."""
    command = (sys.executable, "-P", "-m", "fp8migrate.worker.trial", library, where)
    # Why an attention backend was not taken is said at this level alone; nothing but the log depends on it.
    variables = os.environ | {"NVTE_DEBUG": "1", "NVTE_DEBUG_LEVEL": "2", PARENT_VARIABLE: str(os.getpid())}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=variables,
        start_new_session=True,
    )
    trial = _Trial()
    try:
        told, trial.written = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        _kill(process)
        told, trial.written = process.communicate()
        trial.ended, trial.how = "hung", f"nothing came for {timeout_seconds:g} s"
    if trial.ended != "hung" and process.returncode:
        trial.ended, trial.how = "crashed", _how(process.returncode)
    trial.steps = _steps(told)
    return trial


def _kill(process: subprocess.Popen[str]) -> None:
    """Whatever it started too: a compiler that it left behind would keep our pipes open."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    names = {member.value: member.name for member in signal.Signals}
    return f"ended by {names.get(-code, f'signal {-code}')}"


def _steps(told: str) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    for line in told.splitlines():
        if line.startswith(f"{STEP} "):
            try:
                steps |= json.loads(line.removeprefix(STEP))
            except (ValueError, TypeError):
                continue  # torn by the crash that follows
    return steps


def _one_line(text: str) -> str:
    words = " ".join(text.split()).strip("; ")
    return words if len(words) <= _LONGEST_DETAIL else f"{words[: _LONGEST_DETAIL - 1]}…"
