"""Everything that `doctor` asks of this machine. What cannot be looked at is told as such, and never hides the rest."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from fp8migrate.errors import UsageError
from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.records.machine import Cudnn, Gpu, Library, Machine, TransformerEngine
from fp8migrate.records.schema import Environment
from fp8migrate.worker.cudnn import decoded, find_cudnns
from fp8migrate.worker.libraries import Where, look_at_torchao, look_at_transformer_engine
from fp8migrate.worker.probe import driver_version, probe

_Found = TypeVar("_Found")


def examine(device: str) -> Machine:
    """Look at GPUs, libraries and the environment that runs would be recorded under. device: auto, cpu or cuda."""
    failed: dict[str, str] = {}

    def look(name: str, at: Callable[[], _Found], otherwise: _Found) -> _Found:
        try:
            return at()
        except UsageError as error:
            # What is wrong and what to do are lines of their own.
            failed[name] = ". ".join(line.strip().rstrip(".") for line in str(error).splitlines())
        except Exception as error:  # noqa: BLE001 - each item fails by itself
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return otherwise

    gpus = () if device == "cpu" else look("GPUs", _gpus, tuple[Gpu, ...]())
    where: Where = "cuda" if gpus else "none"
    no_engine, no_torchao = TransformerEngine(state="failed"), Library(state="failed")
    no_environment: Environment | None = None
    return Machine(
        torch=Library(state="ok", version=torch.__version__),
        cuda=torch.version.cuda,
        gpus=gpus,
        cudnn=look("cuDNN", _cudnn, None),
        cudnns=look("cuDNNs on disk", lambda: find_cudnns(os.environ, purelib=_beside_torch()), tuple[Cudnn, ...]()),
        nccl=look("NCCL", _nccl, None),
        driver=look("driver", driver_version, None),
        transformer_engine=look("Transformer Engine", lambda: look_at_transformer_engine(where), no_engine),
        torchao=look("torchao", look_at_torchao, no_torchao),
        environment=look("training", lambda: probe(device, PythonSourceData()), no_environment),
        failed=failed,
    )


def _beside_torch() -> Path:
    """Where packages that torch came with lie."""
    return Path(torch.__file__).resolve().parent.parent


def _gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    return tuple(_gpu(index) for index in range(torch.cuda.device_count()))


def _gpu(index: int) -> Gpu:
    properties = torch.cuda.get_device_properties(index)
    try:
        free: int | None = torch.cuda.mem_get_info(index)[0]
    except RuntimeError:  # it takes a context, for which a full GPU has no room
        free = None
    return Gpu(
        name=properties.name,
        compute_capability=f"{properties.major}.{properties.minor}",
        memory_total_bytes=properties.total_memory,
        memory_free_bytes=free,
    )


def _cudnn() -> str | None:
    cudnn: Any = torch.backends.cudnn
    version = cudnn.version() if cudnn.is_available() else None
    return None if version is None else decoded(version)


def _nccl() -> str | None:
    if not (torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available()):
        return None
    nccl: Any = torch.cuda.nccl
    return ".".join(str(part) for part in nccl.version())
