"""What this machine is: the part of every run's identity that the plan does not hold."""

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import torch

import fp8migrate
from fp8migrate.plan.schema import PythonSourceData
from fp8migrate.records.schema import Environment
from fp8migrate.worker.data import load_corpus
from fp8migrate.worker.gemm import gemm_for
from fp8migrate.worker.runtime import choose_device

# Variables that change kernels, recipes or the order of sums.
_VARIABLE_PREFIXES = ("NVTE_", "TORCH_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "OMP_", "MKL_", "ATEN_", "DNNL_", "ONEDNN_")
# Set per job by the engine, and which GPU of several a job got does not change its numbers.
_SET_PER_JOB = {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG"}
# What training depends on: this package's code that a worker runs. Reports and statistics may change without redoing runs.
_TRAINING_CODE = (
    "worker",
    "facts",
    "jobs.py",
    "settings.py",
    "plan/schema.py",
    "sizing/flops.py",
    "sizing/fused.py",
    "sizing/policy.py",
    "sizing/units.py",
)


def probe(device_name: str, data: PythonSourceData) -> Environment:
    """Look at the machine, the software and the data. Raises UsageError where the device or the data is not there."""
    device = choose_device(device_name)
    corpus = load_corpus(data)
    on_gpu = device.type == "cuda"
    return Environment(
        fp8migrate=fp8migrate.__version__,
        source_sha256=source_sha256(),
        python=platform.python_version(),
        torch=torch.__version__,
        device="cuda" if on_gpu else "cpu",
        device_name=torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        compute_capability="{}.{}".format(*torch.cuda.get_device_capability(device)) if on_gpu else None,
        cuda=torch.version.cuda if on_gpu else None,
        driver=driver_version() if on_gpu else None,
        transformer_engine=_version("transformer-engine"),
        torchao=_version("torchao"),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        bf16_gemm=gemm_for(device).description,
        data_sha256=corpus.sha256,
        data_tokens=corpus.num_tokens,
        held_out_tokens=sum(len(text) for _, text in corpus.validation),
        variables=_variables(),
    )


def source_sha256() -> str:
    """Of the code that trains, by path and content."""
    root = Path(fp8migrate.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for name in _TRAINING_CODE for path in _python_files(root / name)):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _python_files(place: Path) -> list[Path]:
    return list(place.rglob("*.py")) if place.is_dir() else [place]


def _variables() -> dict[str, str]:
    names = sorted(name for name in os.environ if name.startswith(_VARIABLE_PREFIXES) and name not in _SET_PER_JOB)
    return {name: os.environ[name] for name in names}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    """The processor's name as Linux gives it, else the platform's word for it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def driver_version() -> str | None:
    """The NVIDIA driver's, as Linux tells it; None where there is none or it is not Linux."""
    version = Path("/proc/driver/nvidia/version")
    if not version.exists():
        return None
    words = version.read_text(errors="replace").split()
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), None)
