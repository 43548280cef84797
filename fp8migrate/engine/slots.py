"""How many jobs run at once, and on which GPU each."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fp8migrate.plan.schema import Launch

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_QUERY_SECONDS = 20


@dataclass(frozen=True)
class Slots:
    """`count` jobs at once; with several `gpus` each job sees one of them alone."""

    count: int
    gpus: tuple[str, ...] = ()

    def variables(self, in_use: Sequence[str]) -> Mapping[str, str]:
        """Environment variables of the next job: the GPU that the fewest running jobs use. in_use: one entry a job."""
        if len(self.gpus) < 2:
            return {}
        return {VISIBLE_DEVICES: min(self.gpus, key=lambda gpu: (in_use.count(gpu), self.gpus.index(gpu)))}


def slots(launch: Launch, device: Literal["cpu", "cuda"]) -> Slots:
    """One job per GPU, or as many as the cores carry; launch.max_parallel where the plan says so."""
    if device == "cuda":
        gpus = visible_gpus()
        return Slots(launch.max_parallel or max(1, len(gpus)), gpus)
    return Slots(launch.max_parallel or max(1, usable_cores() // launch.threads_per_job))


def usable_cores() -> int:
    """Cores that this process may use: fewer than the machine has in a container or under a scheduler."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def visible_gpus() -> tuple[str, ...]:
    """GPUs as CUDA_VISIBLE_DEVICES names them; where it is not set, as nvidia-smi lists them (empty where it cannot)."""
    named = os.environ.get(VISIBLE_DEVICES)
    if named is not None:
        return tuple(name.strip() for name in named.split(",") if name.strip() and name.strip() != "-1")
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        listed = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_QUERY_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.stdout.splitlines() if line.strip().isdigit())
