"""What `doctor` concludes from what was found: each recipe on each backend, yes or no, why, and what to do about it."""

from collections.abc import Iterator, Mapping
from typing import get_args

from pydantic import Field

from fp8migrate.evidence.libraries import give_torchs_cudnn, library_advice, own_cudnn
from fp8migrate.facts.backends import BackendName, find_support, instead, limit, recipes_of, shortfall
from fp8migrate.facts.variables import find_variable, is_told
from fp8migrate.records.machine import Attention, Cudnn, Machine, version_pair
from fp8migrate.settings import Settings

SCHEMA_VERSION = 1
# What fp8migrate's own Transformer Engine backend is written for.
_LEAST_TRANSFORMER_ENGINE = (2, 20)
# Below this a run's checkpoints may not fit.
_LITTLE_DISK_BYTES = 2 * 2**30
# Less free memory than this share of a GPU's says that somebody else is on it.
_LITTLE_FREE_MEMORY = 0.5


class Advice(Settings):
    """What is wrong, and what to do. command: to be given as it stands, empty where there is none."""

    what: str
    do: str = ""
    command: str = ""


class Answer(Settings):
    """Whether a recipe runs on a backend here. condition: the only settings that it runs under."""

    recipe: str
    backend: BackendName
    offered: bool = Field(description="false: the backend has no such recipe on any machine")
    runs: bool
    condition: str = ""
    why_not: Advice | None = None


class SetVariable(Settings):
    """A variable that is set. changes: in words; none: its effect is not known here."""

    name: str
    value: str
    changes: str | None


class Host(Settings):
    """The process that asks, and its machine. Sizes in bytes."""

    fp8migrate: str
    python: str
    executable: str
    cores: int | None
    folder: str
    disk_free_bytes: int
    device: str = Field(description="that was asked about: auto, cpu, cuda")


class Diagnosis(Settings):
    """`doctor --json` prints this."""

    schema_version: int = SCHEMA_VERSION
    verdict: str
    can_train: bool
    answers: tuple[Answer, ...]
    problems: tuple[Advice, ...]
    variables: tuple[SetVariable, ...]
    host: Host
    machine: Machine


def diagnose(machine: Machine, host: Host, variables: Mapping[str, str]) -> Diagnosis:
    """Judge what was found. variables: the environment as it is set."""
    can_train = machine.torch.state == "ok" and machine.environment is not None
    answers = tuple(
        _answer(machine, backend, recipe, can_train) for recipe in recipes_of("emulated") for backend in get_args(BackendName)
    )
    return Diagnosis(
        verdict=_verdict(answers, can_train),
        can_train=can_train,
        answers=answers,
        problems=tuple(_problems(machine, host, variables)),
        variables=tuple(_set(name, variables[name]) for name in sorted(variables) if is_told(name)),
        host=host,
        machine=machine,
    )


def _answer(machine: Machine, backend: BackendName, recipe: str, can_train: bool) -> Answer:
    support = find_support(backend, recipe)
    if support is None:
        return Answer(recipe=recipe, backend=backend, offered=False, runs=False)
    capability, cuda = machine.capability, version_pair(machine.cuda)
    missing = shortfall(support, capability, cuda)
    why_not: Advice | None = None
    if missing is not None:
        why_not = Advice(what=missing, do=_sentence(instead(backend, capability, cuda)))
    elif not can_train:
        why_not = _no_training(machine)
    elif backend != "emulated":
        why_not = _library(machine, backend, recipe)
    condition = limit(backend, recipe, capability) or ""
    return Answer(recipe=recipe, backend=backend, offered=True, runs=why_not is None, condition=condition, why_not=why_not)


def _library(machine: Machine, backend: BackendName, recipe: str) -> Advice | None:
    found = machine.torchao if backend == "torchao" else machine.transformer_engine
    told = library_advice(backend, found, machine)
    if told is not None:
        return Advice(what=told[0], do=told[1], command=told[2])
    refused = machine.transformer_engine.refused.get(recipe) if backend == "transformer_engine" else None
    if refused is not None:
        return Advice(what=f"Transformer Engine refuses it here: {refused}", do="Say candidate.backend: emulated.")
    return None


def _no_training(machine: Machine) -> Advice:
    if machine.torch.state == "missing":
        return Advice(what="PyTorch is not installed", do="Install it:", command="pip install 'fp8migrate[train]'")
    return Advice(what=f"nothing can be trained here: {machine.failed.get('training') or machine.torch.detail}")


def _verdict(answers: tuple[Answer, ...], can_train: bool) -> str:
    if not can_train:
        reason = next((answer.why_not.what for answer in answers if answer.backend == "emulated" and answer.why_not), "")
        return (
            f"This machine cannot train as it is: {reason}. Finished runs can be judged from their logs (fp8migrate compare)."
        )
    parts = []
    for backend in ("transformer_engine", "torchao"):
        runs = [answer.recipe for answer in answers if answer.backend == backend and answer.runs]
        if runs:
            parts.append(f"with {backend}: {', '.join(runs)}")
    if not parts:
        return "This machine can judge FP8 in emulation alone: the quality of every recipe, not speed or memory."
    return f"This machine can judge FP8 {'; '.join(parts)}. Emulated, for quality alone: every recipe."


def _problems(machine: Machine, host: Host, variables: Mapping[str, str]) -> Iterator[Advice]:
    if host.device != "cpu":
        yield from _unseen_gpu(machine)
    clash = _clash(machine)
    if clash is not None:
        yield clash
    engine = machine.transformer_engine
    if engine.attention is not None:
        yield from _attention(engine.attention, clash, variables)
    version = version_pair(engine.version)
    if engine.state == "ok" and version is not None and version < _LEAST_TRANSFORMER_ENGINE:
        what = f"Transformer Engine {engine.version} is older than 2.20, which fp8migrate is written for"
        command = "pip install --no-build-isolation --upgrade 'transformer-engine[pytorch]'"
        yield Advice(what=what, do="Update it:", command=command)
    yield from _memory(machine)
    if host.disk_free_bytes < _LITTLE_DISK_BYTES:
        what = f"{host.disk_free_bytes / 2**30:.1f} GiB of disk are free in {host.folder}: checkpoints may not fit"
        yield Advice(what=what, do="Run in a folder with more room.")
    for name, why in machine.failed.items():
        yield Advice(what=f"could not look at {name}: {why}")


def _unseen_gpu(machine: Machine) -> Iterator[Advice]:
    if machine.driver is None or machine.gpus or machine.torch.state != "ok":
        return
    if machine.cuda is None:
        what = f"there is an NVIDIA driver ({machine.driver}), and this torch ({machine.torch.version}) is built without CUDA"
        yield Advice(what=what, do="Install a torch that is built with CUDA.")
        return
    what = f"there is an NVIDIA driver ({machine.driver}), and torch (CUDA {machine.cuda}) sees no GPU"
    yield Advice(what=what, do="Look at nvidia-smi and CUDA_VISIBLE_DEVICES; the driver may be too old for that CUDA.")


def _clash(machine: Machine) -> Advice | None:
    """Two cuDNNs of different versions in one process, seen or foreseen."""
    engine, torchs = machine.transformer_engine, own_cudnn(machine.cudnns)
    wanted = machine.cudnn or (torchs.version if torchs else None)
    if engine.state == "two_cudnns":
        return None  # told where it says why nothing runs on it
    if engine.state == "ok":
        taken, verb = engine.cudnn, "has loaded"
    elif machine.cudnns and torchs is not None and machine.cudnns[0] != torchs and machine.gpus:
        taken, verb = machine.cudnns[0].version, "would load"
    else:
        return None
    if taken is None or wanted is None or taken == wanted:
        return None
    what = (
        f"two cuDNNs: Transformer Engine {verb} {taken}{_where(machine.cudnns, taken)}, torch {wanted}; "
        "its import fails, or its fused attention is switched off without a word"
    )
    if torchs is None:
        return Advice(what=what, do="Leave one of the two where Transformer Engine looks: CUDNN_PATH, CUDA_HOME, the system's.")
    return Advice(what=what, do="Give it the one that torch came with:", command=give_torchs_cudnn(machine.cudnns, torchs))


def _where(cudnns: tuple[Cudnn, ...], version: str) -> str:
    found = next((each for each in cudnns if each.version == version), None)
    return f" ({found.path}, by {found.found_by})" if found else ""


def _attention(attention: Attention, clash: Advice | None, variables: Mapping[str, str]) -> Iterator[Advice]:
    if attention.backend is None:
        yield Advice(
            what=f"Transformer Engine's attention could not be tried: {attention.detail}",
            do="Training with its own Linear layers alone does not need it.",
        )
    if attention.backend != "unfused":
        return
    reason = f" ({attention.detail})" if attention.detail else ""
    what = f"Transformer Engine takes its unfused attention{reason}: slow, and its memory grows with the square of the length"
    if variables.get("NVTE_FUSED_ATTN") == "0":
        yield Advice(what=what, do="Fused attention is switched off by hand:", command="unset NVTE_FUSED_ATTN")
    elif clash is not None:
        yield Advice(what=what, do="The two cuDNNs are why.", command=clash.command)
    else:
        command = "NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 python your_training.py"
        yield Advice(what=what, do="Transformer Engine says why it refuses each other backend:", command=command)


def _memory(machine: Machine) -> Iterator[Advice]:
    for number, gpu in enumerate(machine.gpus):
        if gpu.memory_free_bytes is not None and gpu.memory_free_bytes < _LITTLE_FREE_MEMORY * gpu.memory_total_bytes:
            free, total = gpu.memory_free_bytes / 2**30, gpu.memory_total_bytes / 2**30
            what = f"GPU {number} has {free:.1f} of {total:.1f} GiB free: another program is on it"
            yield Advice(what=what, do="See which, or choose another GPU by CUDA_VISIBLE_DEVICES:", command="nvidia-smi")


def _set(name: str, value: str) -> SetVariable:
    known = find_variable(name)
    return SetVariable(name=name, value=value, changes=known.changes if known else None)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
