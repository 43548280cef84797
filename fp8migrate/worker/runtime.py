"""The process a worker runs in: device, threads, determinism, and being told to stop."""

import gc
import os
import signal
from dataclasses import dataclass
from types import FrameType

import torch

from fp8migrate.errors import UsageError


def choose_device(wanted: str) -> torch.device:
    """`auto` takes a GPU where there is one. Raises UsageError for `cuda` without a GPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("launch.device is cuda, and torch sees no CUDA GPU", next_step="Say launch.device: auto or cpu.")
    if wanted == "cuda" or (wanted == "auto" and torch.cuda.is_available()):
        return torch.device("cuda", 0)
    return torch.device("cpu")


def make_deterministic(threads: int) -> None:
    """Same inputs, same bits: fixed thread count, deterministic kernels, no TF32, no reduced-precision sums in BF16 GEMMs."""
    # Set, not left to the shell: it chooses kernels, and what a shell says would stand in no record.
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.set_num_threads(threads)
    # What use_deterministic_algorithms(True) does, without importing the compiler to tell it too: a second of each job's start.
    torch.set_deterministic_debug_mode("error")
    # Else every new tensor is filled before it is written: a tenth of a small model's step, against bugs that kernels have not.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@dataclass
class StopSignal:
    """Whether the run should end after the step at hand: a SIGTERM or SIGINT came."""

    requested: bool = False

    def listen(self) -> "StopSignal":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)
        return self

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


def release_memory(device: torch.device) -> None:
    """What no object holds any more goes back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def in_words(error: Exception) -> str:
    """Its kind and first line, for a list of what failed."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
