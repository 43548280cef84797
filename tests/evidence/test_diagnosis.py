"""What doctor concludes on each architecture, from machines that are simulated; expectations worked out by hand."""

import pytest

from fp8migrate.evidence.diagnosis import Answer, Diagnosis, Host, diagnose
from fp8migrate.facts.backends import BackendName
from fp8migrate.records.machine import Attention, Cudnn, Gpu, Library, Machine, TransformerEngine, version_pair
from tests.engine.stage import ENVIRONMENT

HOST = Host(
    fp8migrate="0.1", python="3.11.7", executable="python", cores=2, folder="/runs", disk_free_bytes=2**40, device="auto"
)
ENGINE = TransformerEngine(state="ok", version="2.20.2", cudnn="9.19.0", attention=Attention(backend="fused", detail="1"))
AO_LOADS = Library(state="ok", version="0.18.0")
EVERY = ("delayed", "current", "block", "tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", "nvfp4", "fixed")
AO = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
SYSTEM = Cudnn(path="/usr/lib/libcudnn.so", folder="/usr/lib", version="9.14.0", found_by="the system's libraries")
TORCHS = Cudnn(path="/s p/cudnn/lib/libcudnn.so.9", folder="/s p/cudnn", version="9.19.0", found_by="wheel", torchs=True)


def machine(
    capability: str | None = "9.0",
    *,
    cuda: str | None = "13.0",
    engine: TransformerEngine = ENGINE,
    torchao: Library = AO_LOADS,
    cudnns: tuple[Cudnn, ...] = (),
    free: float = 0.9,
) -> Machine:
    memory = 80 * 2**30
    gpu = Gpu(
        name="a GPU", compute_capability=capability or "", memory_total_bytes=memory, memory_free_bytes=int(memory * free)
    )
    return Machine(
        torch=Library(state="ok", version="2.11.0"),
        cuda=cuda,
        cudnn="9.19.0",
        gpus=(gpu,) if capability else (),
        cudnns=cudnns,
        transformer_engine=engine,
        torchao=torchao,
        environment=ENVIRONMENT,
    )


def diagnosed(found: Machine, host: Host = HOST, **variables: str) -> Diagnosis:
    return diagnose(found, host, variables)


def runs(diagnosis: Diagnosis, backend: BackendName) -> tuple[str, ...]:
    return tuple(answer.recipe for answer in diagnosis.answers if answer.backend == backend and answer.runs)


def answer(diagnosis: Diagnosis, backend: BackendName, recipe: str) -> Answer:
    return next(each for each in diagnosis.answers if (each.backend, each.recipe) == (backend, recipe))


@pytest.mark.parametrize(
    ("capability", "engine", "torchao"),
    [
        (None, (), ()),
        ("8.0", (), ()),
        ("8.6", (), ()),
        ("8.9", ("delayed", "current"), AO),
        ("9.0", ("delayed", "current", "block"), AO),
        ("10.0", ("delayed", "current", "block", "mxfp8", "nvfp4"), AO),
        ("10.3", ("delayed", "current", "block", "mxfp8", "nvfp4"), AO),
        ("12.0", ("delayed", "current", "block", "nvfp4"), AO),
    ],
)
def test_every_architecture(capability: str | None, engine: tuple[str, ...], torchao: tuple[str, ...]) -> None:
    found = diagnosed(machine(capability))
    assert runs(found, "transformer_engine") == engine
    assert runs(found, "torchao") == torchao
    assert runs(found, "emulated") == EVERY
    assert (found.can_train, found.problems) == (True, ())
    if engine:
        expected = f"with transformer_engine: {', '.join(engine)}; with torchao: {', '.join(torchao)}."
        assert expected in found.verdict
    else:
        assert (
            found.verdict == "This machine can judge FP8 in emulation alone: the quality of every recipe, not speed or memory."
        )
    # Whoever is told no is told what to do.
    assert all(each.why_not is not None and each.why_not.do for each in found.answers if each.offered and not each.runs)


def test_mxfp8_on_hopper() -> None:
    told = answer(diagnosed(machine("9.0")), "transformer_engine", "mxfp8").why_not
    assert told is not None
    assert told.what == "needs compute capability 10.0 (Blackwell) or newer, this GPU has 9.0 (Hopper)"
    assert told.do == "Use delayed, current and block here, or say candidate.backend: emulated."


def test_nvfp4_on_rtx_blackwell_has_a_condition() -> None:
    assert "disable_rht" in answer(diagnosed(machine("12.0")), "transformer_engine", "nvfp4").condition
    assert answer(diagnosed(machine("10.0")), "transformer_engine", "nvfp4").condition == ""


def test_a_gpu_that_is_newer_than_the_tables() -> None:
    assert runs(diagnosed(machine("13.0")), "transformer_engine") == ("delayed", "current", "block", "nvfp4")


@pytest.mark.parametrize(
    ("state", "says", "command"),
    [
        ("missing", "is not installed", "pip install --no-build-isolation 'transformer-engine[pytorch]'"),
        ("incomplete", "not installed whole", "pip install --no-build-isolation 'transformer-engine[pytorch]'"),
        (
            "built_for_another_torch",
            "is built for another torch than 2.11.0",
            "pip install --no-build-isolation --no-cache-dir --no-deps --force-reinstall transformer-engine-torch==2.20.2",
        ),
        ("two_cudnns", "two cuDNNs meet", "export CUDNN_PATH='/s p/cudnn'"),
        ("no_cuda", "finds no CUDA", ""),
        ("crashed", "ends the process", "python -c 'import torch, transformer_engine.pytorch'"),
        ("hung", "does not come back", "python -c 'import torch, transformer_engine.pytorch'"),
        ("failed", "does not load", "python -c 'import torch, transformer_engine.pytorch'"),
    ],
)
def test_a_library_that_does_not_load(state: str, says: str, command: str) -> None:
    engine = TransformerEngine.model_validate({"state": state, "version": "2.20.2", "detail": "its words"})
    found = diagnosed(machine(engine=engine, cudnns=(SYSTEM, TORCHS)))
    told = answer(found, "transformer_engine", "delayed").why_not
    assert told is not None
    assert says in told.what
    assert (told.command, bool(told.do)) == (command, True)
    assert "with torchao" in found.verdict
    assert "transformer_engine" not in found.verdict


def test_transformer_engine_has_the_last_word() -> None:
    engine = ENGINE.model_copy(update={"refused": {"block": "CUDA 12.9 or newer"}})
    told = answer(diagnosed(machine(engine=engine)), "transformer_engine", "block").why_not
    assert told is not None
    assert "CUDA 12.9" in told.what


def test_two_cudnns_that_load_all_the_same() -> None:
    engine = ENGINE.model_copy(update={"cudnn": "9.14.0", "attention": Attention(backend="unfused")})
    found = diagnosed(machine(engine=engine, cudnns=(SYSTEM, TORCHS)))
    clash, attention = found.problems
    assert "Transformer Engine has loaded 9.14.0 (/usr/lib/libcudnn.so, by the system's libraries), torch 9.19.0" in clash.what
    assert clash.command == attention.command == "export CUDNN_PATH='/s p/cudnn'"
    assert "unfused" in attention.what


def test_two_cudnns_are_foreseen_before_anything_is_installed() -> None:
    missing = TransformerEngine(state="missing")
    named = SYSTEM.model_copy(update={"found_by": "CUDNN_HOME"})
    (clash,) = diagnosed(machine(engine=missing, cudnns=(named, TORCHS))).problems
    assert "would load 9.14.0" in clash.what
    assert clash.command == "export CUDNN_HOME='/s p/cudnn'"
    assert diagnosed(machine(engine=missing, cudnns=(TORCHS, SYSTEM))).problems == ()
    assert diagnosed(machine(None, engine=missing, cudnns=(SYSTEM, TORCHS))).problems == ()


def test_the_clash_is_gone_once_both_load_the_same() -> None:
    assert diagnosed(machine(cudnns=(SYSTEM, TORCHS))).problems == ()


def test_unfused_attention() -> None:
    engine = ENGINE.model_copy(update={"attention": Attention(backend="unfused", detail="due to a mask")})
    (by_hand,) = diagnosed(machine(engine=engine), NVTE_FUSED_ATTN="0").problems
    assert by_hand.command == "unset NVTE_FUSED_ATTN"
    (unknown,) = diagnosed(machine(engine=engine)).problems
    assert "due to a mask" in unknown.what
    assert "NVTE_DEBUG_LEVEL=2" in unknown.command


def test_what_else_is_a_problem() -> None:
    old = ENGINE.model_copy(update={"version": "2.4.0", "attention": Attention(backend=None, detail="ended by SIGSEGV")})
    little = HOST.model_copy(update={"disk_free_bytes": 2**30})
    found = diagnosed(machine(engine=old, free=0.1).model_copy(update={"failed": {"NCCL": "OSError: x"}}), little)
    tried, version, memory, disk, nccl = (problem.what for problem in found.problems)
    assert "could not be tried: ended by SIGSEGV" in tried
    assert "2.4.0 is older than 2.20" in version
    assert "8.0 of 80.0 GiB free" in memory
    assert "1.0 GiB of disk" in disk
    assert nccl == "could not look at NCCL: OSError: x"


def test_a_driver_whose_gpu_torch_does_not_see() -> None:
    hidden = machine(None).model_copy(update={"driver": "580.65"})
    (unseen,) = diagnosed(hidden).problems
    assert "torch (CUDA 13.0) sees no GPU" in unseen.what
    (without,) = diagnosed(hidden.model_copy(update={"cuda": None})).problems
    assert "built without CUDA" in without.what
    assert diagnosed(hidden, HOST.model_copy(update={"device": "cpu"})).problems == ()


def test_without_torch_the_hardware_is_judged_all_the_same() -> None:
    bare = machine("9.0").model_copy(update={"torch": Library(state="missing"), "environment": None, "cuda": None})
    found = diagnosed(bare)
    assert not found.can_train
    assert found.verdict.startswith("This machine cannot train as it is: PyTorch is not installed.")
    mxfp8, block = (answer(found, "transformer_engine", recipe).why_not for recipe in ("mxfp8", "block"))
    assert mxfp8 is not None
    assert "10.0 (Blackwell)" in mxfp8.what
    assert block is not None
    assert block.command == "pip install 'fp8migrate[train]'"


def test_variables_that_change_numbers_and_those_nobody_knows() -> None:
    found = diagnosed(machine(), NVTE_FP8_DPA_BWD="0", NVTE_OF_TOMORROW="1", CUDA_VISIBLE_DEVICES="0", HOME="/root")
    assert [(each.name, each.value, each.changes is None) for each in found.variables] == [
        ("NVTE_FP8_DPA_BWD", "0", False),
        ("NVTE_OF_TOMORROW", "1", True),
    ]


@pytest.mark.parametrize(
    ("text", "pair"),
    [("12.9", (12, 9)), ("2.20.2", (2, 20)), ("13.0+cu130", (13, 0)), ("2.20rc1", (2, 20)), (None, None), ("9", None)],
)
def test_versions(text: str | None, pair: tuple[int, int] | None) -> None:
    assert version_pair(text) == pair


def test_the_document_comes_back_as_it_was() -> None:
    found = diagnosed(machine(cudnns=(SYSTEM, TORCHS)), NCCL_ALGO="Ring")
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found
