"""`doctor`: look at this machine, with torch or as far as it goes without, and conclude what can run here."""

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Literal, get_args

from fp8migrate import __version__
from fp8migrate.errors import UsageError, UserError
from fp8migrate.evidence.diagnosis import Diagnosis, Host, diagnose
from fp8migrate.records.machine import Gpu, Library, LibraryState, Machine, TransformerEngine
from fp8migrate.report.words import clean
from fp8migrate.trainers import builtin

Device = Literal["auto", "cpu", "cuda"]
_SMI = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total,memory.free,driver_version", "--format=csv,noheader,nounits")
_SMI_TIMEOUT_SECONDS = 20


def examine(device: str) -> Diagnosis:
    """Look at the machine. Raises UsageError for a device that there is no word for."""
    choices = get_args(Device)
    if device not in choices:
        raise UsageError(f"unknown device {device!r}", where="--device", next_step=f"Allowed: {', '.join(choices)}.")
    try:
        machine = builtin.examine(device)
    except UserError as error:
        machine = _without_worker(device, f"{error.what}. {error.next_step or ''}".strip())
    variables = {clean(name): clean(value) for name, value in os.environ.items()}
    return diagnose(machine, _host(device), variables)


def _host(device: str) -> Host:
    folder = Path.cwd()
    return Host(
        fp8migrate=__version__,
        python=sys.version.split()[0],
        executable=clean(sys.executable),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        folder=clean(str(folder)),
        disk_free_bytes=shutil.disk_usage(folder).free,
        device=device,
    )


def _without_worker(device: str, why: str) -> Machine:
    """What can be known where torch is missing or does not load: GPUs from the driver's own tool, versions from packages."""
    version = _version("torch")
    gpus, driver = ((), None) if device == "cpu" else _from_driver()
    state: LibraryState = "failed" if version else "missing"
    engine, torchao = _version("transformer-engine"), _version("torchao")
    return Machine(
        torch=Library(state=state, version=version, detail=why),
        driver=driver,
        gpus=gpus,
        transformer_engine=TransformerEngine(state="not_tried" if engine else "missing", version=engine),
        torchao=Library(state="not_tried" if torchao else "missing", version=torchao),
        failed={} if state == "missing" else {"training": why},
    )


def _from_driver() -> tuple[tuple[Gpu, ...], str | None]:
    """GPUs and the driver's version by nvidia-smi; none where it is not there or says nothing that is understood."""
    try:
        told = subprocess.run(_SMI, capture_output=True, text=True, errors="replace", timeout=_SMI_TIMEOUT_SECONDS, check=True)
        rows = [[cell.strip() for cell in line.split(",")] for line in told.stdout.strip().splitlines()]
        gpus = tuple(
            Gpu(
                name=clean(name),
                compute_capability=capability,
                memory_total_bytes=int(float(total) * 2**20),
                memory_free_bytes=int(float(free) * 2**20),
            )
            for name, capability, total, free, _ in rows
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return (), None
    return gpus, rows[0][4] if rows else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
