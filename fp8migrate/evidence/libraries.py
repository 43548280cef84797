"""Why a library cannot be used, in words, and what to do about it."""

import shlex

from fp8migrate.facts.backends import BackendName
from fp8migrate.records.machine import Cudnn, Library, Machine

_NAMES: dict[BackendName, str] = {"transformer_engine": "Transformer Engine", "torchao": "torchao"}
_INSTALL: dict[BackendName, str] = {
    "transformer_engine": "pip install --no-build-isolation 'transformer-engine[pytorch]'",
    "torchao": "pip install torchao",
}
_IMPORT: dict[BackendName, str] = {
    "transformer_engine": "python -c 'import torch, transformer_engine.pytorch'",
    "torchao": "python -c 'import torchao.float8'",
}
_NEEDS_CUDA = "Install an NVIDIA driver, and a torch that is built with CUDA."


def library_advice(backend: BackendName, library: Library, machine: Machine) -> tuple[str, str, str] | None:
    """What is wrong with a library, what to do, and the command for it ("" where there is none); None: it loads."""
    name = _NAMES[backend]
    known = f"{name} {library.version}" if library.version else name
    if library.state == "ok":
        return None
    if library.state == "missing":
        return f"{name} is not installed", "Install it:", _INSTALL[backend]
    if library.state == "incomplete":
        return f"{known} is not installed whole: {library.detail}", "Install all its parts:", _INSTALL[backend]
    if library.state == "built_for_another_torch":
        return _another_torch(backend, known, library, machine)
    if library.state == "two_cudnns":
        return _two_cudnns(known, library, machine)
    if library.state == "no_cuda":
        return f"{known} finds no CUDA: {library.detail}", _NEEDS_CUDA, ""
    why = {"crashed": "ends the process that loads it", "hung": "does not come back from loading"}.get(library.state)
    detail = f": {library.detail}" if library.detail else ""
    return f"{known} {why or 'does not load'}{detail}", "See all that it says:", _IMPORT[backend]


def own_cudnn(cudnns: tuple[Cudnn, ...]) -> Cudnn | None:
    """The cuDNN that torch came with; None: torch takes the system's."""
    return next((each for each in cudnns if each.torchs), None)


def give_torchs_cudnn(cudnns: tuple[Cudnn, ...], torchs: Cudnn) -> str:
    """The shell line that makes Transformer Engine take torch's. CUDNN_HOME comes before CUDNN_PATH where it leads to one."""
    variable = "CUDNN_HOME" if cudnns[0].found_by == "CUDNN_HOME" else "CUDNN_PATH"
    return f"export {variable}={shlex.quote(torchs.folder)}"


def _another_torch(backend: BackendName, known: str, library: Library, machine: Machine) -> tuple[str, str, str]:
    what = f"{known} is built for another torch than {machine.torch.version}: {library.detail}"
    if machine.cuda is None:
        return what, "This torch has no CUDA: install one that is built with CUDA.", ""
    if backend == "torchao":
        return what, "Install the torchao that its compatibility table names for this torch.", ""
    version = f"=={library.version}" if library.version else ""
    command = f"pip install --no-build-isolation --no-cache-dir --no-deps --force-reinstall transformer-engine-torch{version}"
    return what, "Build its extension again, for this torch:", command


def _two_cudnns(known: str, library: Library, machine: Machine) -> tuple[str, str, str]:
    what = f"{known} does not load, for two cuDNNs meet: {library.detail}"
    torchs = own_cudnn(machine.cudnns)
    if torchs is None:
        return what, "Leave one cuDNN where Transformer Engine looks: CUDNN_PATH, CUDA_HOME, the system's libraries.", ""
    return what, "Give it the one that torch came with:", give_torchs_cudnn(machine.cudnns, torchs)
