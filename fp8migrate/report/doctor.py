"""`fp8migrate doctor` for people: the verdict, a table of recipes and backends, why not and what to do, then what was found."""

import textwrap
from collections.abc import Iterator
from typing import get_args

from fp8migrate.evidence.diagnosis import Advice, Answer, Diagnosis
from fp8migrate.facts.backends import BackendName, recipes_of
from fp8migrate.facts.gpus import find_architecture, find_gpu
from fp8migrate.records.machine import Gpu, Library, Machine, version_pair
from fp8migrate.report.inspection import safe_line
from fp8migrate.report.words import clean

_LABEL = 13  # columns of what stands before a finding
_LEAST_WIDTH = 60


def describe_machine(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    """Lines of at most `width` columns, commands apart: those are never broken, so that they can be copied."""
    width = max(width, _LEAST_WIDTH)
    yield from _wrapped(diagnosis.verdict, width)
    yield ""
    notes: dict[Advice, int] = {}
    yield from _table(diagnosis, notes)
    yield ""
    for advice, number in notes.items():
        yield from _advice(f"({number}) ", advice, width)
    if notes:
        yield ""
    for problem in diagnosis.problems:
        yield from _advice("!   ", problem, width)
    if diagnosis.problems:
        yield ""
    for label, found in _findings(diagnosis):
        yield from _wrapped(safe_line(found, 500), width, label.ljust(_LABEL), " " * _LABEL)
    yield from _variables(diagnosis, width)


def _table(diagnosis: Diagnosis, notes: dict[Advice, int]) -> Iterator[str]:
    """One row a recipe. Reasons are numbered as they come, each once."""
    backends = get_args(BackendName)
    order = (*(name for name in backends if name != "emulated"), "emulated")
    answers = {(answer.recipe, answer.backend): answer for answer in diagnosis.answers}
    recipes = recipes_of("emulated")
    first = max(len(name) for name in recipes) + 2
    yield "recipe".ljust(first) + "".join(name.ljust(max(len(name), 8) + 2) for name in order).rstrip()
    for recipe in recipes:
        cells = (_cell(answers[recipe, name], notes).ljust(max(len(name), 8) + 2) for name in order)
        yield (recipe.ljust(first) + "".join(cells)).rstrip()


def _cell(answer: Answer, notes: dict[Advice, int]) -> str:
    if not answer.offered:
        return "-"
    told = answer.why_not
    if told is None and answer.condition:
        told = Advice(what=answer.condition)
    if told is None:
        return "yes"
    number = notes.setdefault(told, len(notes) + 1)
    return f"{'yes' if answer.runs else 'no'} ({number})"


def _advice(mark: str, advice: Advice, width: int) -> Iterator[str]:
    indent = " " * len(mark)
    yield from _wrapped(f"{safe_line(advice.what, 600)}.", width, mark, indent)
    if advice.do:
        yield from _wrapped(safe_line(advice.do, 600), width, indent, indent)
    if advice.command:
        yield f"{indent}  {safe_line(advice.command, 600)}"


def _findings(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    machine, host = diagnosis.machine, diagnosis.host
    for gpu in machine.gpus:
        yield "GPU", _gpu(gpu)
    if not machine.gpus:
        yield "GPU", "none" if host.device != "cpu" else "not looked at (--device cpu)"
    yield "driver", machine.driver or "none"
    yield "torch", _torch(machine)
    yield "TE", _engine(machine)
    yield "torchao", _library(machine.torchao)
    environment = machine.environment
    if environment is not None:
        if environment.device == "cpu":
            yield "device", f"CPU, {environment.device_name}, {environment.cpu_capability}"
        yield "BF16 GEMMs", environment.bf16_gemm
        yield "data", f"python_source, {environment.data_tokens / 1e6:.1f} M byte tokens"
    yield "Python", f"{host.python} ({host.executable}), fp8migrate {host.fp8migrate}"
    yield "cores", str(host.cores)
    yield "disk", f"{host.disk_free_bytes / 2**30:.1f} GiB free in {host.folder}"


def _gpu(gpu: Gpu) -> str:
    capability = version_pair(gpu.compute_capability)
    architecture = find_architecture(capability) if capability else None
    named = architecture.name if architecture else "an architecture that is not known here"
    total = f"{gpu.memory_total_bytes / 2**30:.1f}"
    memory = f"{total} GiB" if gpu.memory_free_bytes is None else f"{gpu.memory_free_bytes / 2**30:.1f} of {total} GiB free"
    known = find_gpu(gpu.name)
    peak = f", at most {known.bf16_tflops:g} TFLOP/s in BF16" if known else ""
    fp8 = f" and {known.fp8_tflops:g} in FP8" if known and known.fp8_tflops else ""
    return f"{gpu.name}, {named}, compute capability {gpu.compute_capability}, {memory}{peak}{fp8}"


def _torch(machine: Machine) -> str:
    if machine.torch.state != "ok":
        return _library(machine.torch)
    parts = [
        f"CUDA {machine.cuda}" if machine.cuda else "built without CUDA",
        f"cuDNN {machine.cudnn}" if machine.cudnn else "",
        f"NCCL {machine.nccl}" if machine.nccl else "",
    ]
    return ", ".join([machine.torch.version or "", *(part for part in parts if part)])


def _engine(machine: Machine) -> str:
    engine = machine.transformer_engine
    if engine.state != "ok":
        return f"Transformer Engine: {_library(engine)}"
    attention = engine.attention
    taken = "not tried" if attention is None or attention.backend is None else attention.backend
    kernel = {"flash": "version ", "fused": "cuDNN's, kernel "}.get(taken, "")
    detail = f" ({kernel}{attention.detail})" if attention and kernel and attention.detail else ""
    cudnn = f", cuDNN {engine.cudnn}" if engine.cudnn else ""
    return f"Transformer Engine {engine.version or 'of unknown version'}{cudnn}, attention: {taken}{detail}"


def _library(library: Library) -> str:
    if library.state == "missing":
        return "not installed"
    version = library.version or "of unknown version"
    if library.state in ("ok", "not_tried"):
        return version if library.state == "ok" else f"{library.version or 'not looked at'}, not tried"
    return f"{version}, does not load ({library.state.replace('_', ' ')})"


def _variables(diagnosis: Diagnosis, width: int) -> Iterator[str]:
    for number, variable in enumerate(diagnosis.variables):
        if number == 0:
            yield ""
            yield from _wrapped("Variables that are set and part of every result; what each changes:", width)
        effect = variable.changes or "set, effect not known here"
        yield from _wrapped(f"{variable.name}={safe_line(variable.value, 80)}: {effect}", width, "  ", "    ")


def _wrapped(text: str, width: int, first: str = "", following: str = "") -> list[str]:
    """Words stay whole: a path or a version that is broken cannot be copied."""
    return textwrap.wrap(
        clean(text),
        width,
        initial_indent=first,
        subsequent_indent=following,
        break_long_words=False,
        break_on_hyphens=False,
    )
