"""`doctor`: this machine in short. What can run here, and what is missing, each with what to do about it."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from fp8migrate import __version__
from fp8migrate.errors import UsageError
from fp8migrate.facts.gpus import GPUS
from fp8migrate.phases.build import FP8_CAPABILITY
from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.records.schema import Environment
from fp8migrate.trainers.builtin import probe

Device = Literal["auto", "cpu", "cuda"]
# Below this a run's checkpoints may not fit.
_LITTLE_DISK_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Examination:
    """What doctor says. problem: nothing can be trained here as it is."""

    lines: tuple[str, ...]
    problem: bool


def examine(device: str) -> Examination:
    """Look at the machine. Raises UsageError for a device that there is no word for."""
    choices = get_args(Device)
    if device not in choices:
        raise UsageError(f"unknown device {device!r}", where="--device", next_step=f"Allowed: {', '.join(choices)}.")
    lines = [
        _line("ok", "fp8migrate", __version__),
        _line("ok", "Python", f"{sys.version.split()[0]} ({sys.executable})"),
        _line("ok", "cores", str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())),
        _disk(),
    ]
    try:
        environment = probe(device, PythonSourceData(), threads=1)
    except UsageError as error:
        return Examination((*lines, _line("no", "training", f"{error.what}. {error.next_step or ''}".strip())), True)
    return Examination((*lines, *_environment_lines(environment)), False)


def _environment_lines(environment: Environment) -> list[str]:
    lines = [
        _line("ok", "torch", environment.torch),
        _line("ok", "device", _device(environment)),
        _line("ok", "BF16 GEMMs", environment.bf16_gemm),
        _fp8(environment),
        _line("ok", "data", f"python_source, {environment.data_tokens / 1e6:.1f} M byte tokens"),
    ]
    if environment.variables:
        shown = ", ".join(f"{name}={value}" for name, value in environment.variables.items())
        lines.append(_line("!", "variables", f"set, and part of every result: {shown}"))
    return lines


def _device(environment: Environment) -> str:
    if environment.device == "cpu":
        return f"CPU, {environment.device_name}, {environment.cpu_capability}"
    known = next((gpu for gpu in GPUS if environment.device_name in gpu.device_names), None)
    peak = f", {known.bf16_tflops:g} TFLOP/s dense BF16" if known else ", not in the table of GPUs"
    return f"{environment.device_name}, compute capability {environment.compute_capability}{peak}"


def _fp8(environment: Environment) -> str:
    if environment.compute_capability is None:
        return _line("!", "FP8", "emulated: quality can be judged here, speed and memory cannot")
    major, _, minor = environment.compute_capability.partition(".")
    if (int(major), int(minor or 0)) < FP8_CAPABILITY:
        return _line("!", "FP8", "this GPU has no FP8 GEMMs: emulated, quality only")
    return _line("!", "FP8", "this GPU has FP8, this version only emulates it: say candidate.backend: emulated")


def _disk() -> str:
    free = shutil.disk_usage(Path.cwd()).free
    mark = "ok" if free >= _LITTLE_DISK_BYTES else "!"
    return _line(mark, "disk", f"{free / 2**30:.1f} GiB free in {Path.cwd()}")


def _line(mark: str, what: str, found: str) -> str:
    return f"[{mark:>2}] {what:<11} {found}"
