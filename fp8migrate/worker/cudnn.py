"""Which cuDNNs lie here, in the order in which Transformer Engine looks for one. Nothing is loaded.

Transformer Engine 2.20, common/__init__.py, _load_cuda_library: the folders of four variables and /usr/local/cuda, searched to
the bottom, then the loader's own places, and only then the wheel that torch came with. torch takes the wheel.
"""

import re
import sysconfig
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from fp8migrate.records.machine import Cudnn

_VARIABLES = ("CUDNN_HOME", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH")
_TOOLKIT = Path("/usr/local/cuda")
# Where the loader looks on the usual Linux systems when LD_LIBRARY_PATH names nothing.
_LOADER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
_WHEELS = ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn")
_VERSION = re.compile(r"\.so\.(\d+\.\d+\.\d+)")


def find_cudnns(
    variables: Mapping[str, str],
    toolkit: Path = _TOOLKIT,
    loader: tuple[str, ...] = _LOADER_FOLDERS,
    purelib: Path | None = None,
) -> tuple[Cudnn, ...]:
    """Each cuDNN once, the one that Transformer Engine would take first. purelib: where torch lies; None: this Python's."""
    site = purelib or Path(sysconfig.get_path("purelib"))
    found: dict[Path, Cudnn] = {}
    for each in (*_by_variables(variables, toolkit), *_by_loader(variables, loader), *_by_wheel(site)):
        place = Path(each.path).resolve()
        before = found.setdefault(place, each)
        if each.torchs and before is not each:  # the package knows more of it
            found[place] = before.model_copy(update={"version": each.version, "torchs": True})
    return tuple(found.values())


def _by_variables(variables: Mapping[str, str], toolkit: Path) -> Iterator[Cudnn]:
    for name, folder in (*((name, variables.get(name)) for name in _VARIABLES), (str(toolkit), str(toolkit))):
        if not folder:
            continue
        files = [path for path in Path(folder).glob("**/libcudnn.so*") if "stub" not in str(path)]
        if files:
            yield _cudnn(max(files, key=lambda path: path.name), Path(folder), name)


def _by_loader(variables: Mapping[str, str], loader: tuple[str, ...]) -> Iterator[Cudnn]:
    named = [folder for folder in variables.get("LD_LIBRARY_PATH", "").split(":") if folder]
    for folder in (*named, *loader):
        # The loader is asked for this name alone, without a number; a runtime package without it is not found.
        path = Path(folder) / "libcudnn.so"
        if path.exists():
            yield _cudnn(path, Path(folder), "LD_LIBRARY_PATH" if folder in named else "the system's libraries")
            return


def _by_wheel(site: Path) -> Iterator[Cudnn]:
    for folder in (site / "nvidia" / "cudnn", site / "nvidia" / "cu13", site / "nvidia" / "cu12"):
        files = sorted(folder.glob("lib/libcudnn.so*"))
        if files:
            yield Cudnn(path=str(files[-1]), folder=str(folder), version=_wheel_version(site), found_by="wheel", torchs=True)
            return


def _cudnn(path: Path, folder: Path, found_by: str) -> Cudnn:
    named = _VERSION.search(path.resolve().name) or _VERSION.search(path.name)
    return Cudnn(path=str(path), folder=str(folder), version=named[1] if named else None, found_by=found_by)


def _wheel_version(site: Path) -> str | None:
    for distribution in metadata.distributions(path=[str(site)]):
        if (distribution.metadata["Name"] or "").lower().replace("_", "-") in _WHEELS:
            return ".".join(distribution.version.split(".")[:3])
    return None


def decoded(encoded: int) -> str:
    """cuDNN's own number as a version: 91900 → 9.19.0. Before cuDNN 9 the major number stood three digits up."""
    unit = 10_000 if encoded >= 90_000 else 1_000
    return f"{encoded // unit}.{encoded % unit // 100}.{encoded % 100}"
