"""Failures that users meet, brought about on a machine with a Hopper GPU: what the program says then, and its exit code.

Every command runs in a process of its own, as a user gives it, and is printed with what it said. FAILURES_OUT=FILE collects
the same as Markdown.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

import fp8migrate  # noqa: E402 - after the skips
from fp8migrate.errors import ExitCode  # noqa: E402
from fp8migrate.worker.cudnn import find_cudnns  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

CHECKOUT = Path(fp8migrate.__file__).resolve().parents[1]
TIMEOUT_SECONDS = 300.0
# Of the compiled extension's symbols one that torch defines, and a name of the same length that no torch does.
SYMBOL, NO_SYMBOL = b"_ZN3c106detail14torchCheckFailEPKcS2_jS2_", b"_ZN3c106detail14torchCheckGoneEPKcS2_jS2_"
# What stays free beside the memory that a test holds: a worker's CUDA context and a small micro-batch, no large one.
LEFT_BYTES = 6 * 2**30
CUDNN_VARIABLES = ("CUDNN_PATH", "CUDNN_HOME", "LD_LIBRARY_PATH")

PLAN: dict[str, Any] = {
    "model": {"num_layers": 1, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 2, "ffn_hidden_size": 256},
    "data": {"kind": "python_source", "validation_tokens": 8192},
    "training": {
        "num_steps": 24,
        "sequence_length": 64,
        "micro_batch_size": 4,
        "global_batch_size": 4,
        "learning_rate": 1e-3,
        "warmup_steps": 4,
        "beta2": 0.7,
    },
    "candidate": {"backend": "transformer_engine", "recipe": {"kind": "delayed", "amax_history_len": 4}},
    "design": {"branch": {"at": 0.5, "pairs": 2}, "floor_pairs": 2},
    "phases": {"small_scale": {"shrink": 1}},
    "launch": {"device": "cuda", "max_parallel": 4},
}


@dataclass(frozen=True)
class Ended:
    """How a command ended. text: standard output and standard error, lines joined where the terminal's width broke them."""

    code: int
    text: str


class Failure:
    """One failure: commands given in `folder` under the same conditions, printed and collected under one heading."""

    def __init__(self, heading: str, how: str, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        """how: what was done to bring it about, in one sentence. variables: the whole environment; None: this process's."""
        self._folder, self._variables = folder, environment() if variables is None else variables
        _tell(f"\n## {heading}\n\n{how}\n")

    def plan(self, name: str, **sections: Mapping[str, object]) -> str:
        """Write the tiny plan with these keys of its sections changed; the file's name."""
        changed = {key: {**PLAN[key], **sections[key]} if key in sections else PLAN[key] for key in PLAN}
        (self._folder / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **changed}, sort_keys=False))
        return f"{name}.yaml"

    def give(self, *arguments: str) -> Ended:
        """Give a command, and tell what came of it. No failure that users meet may end in a traceback."""
        ended = subprocess.run(
            [sys.executable, "-m", "fp8migrate", *arguments],
            cwd=self._folder,
            env=dict(self._variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        code = ExitCode(ended.returncode) if ended.returncode in iter(ExitCode) else None
        named = f" ({code.name})" if code is not None else ""
        command = " ".join(("fp8migrate", *arguments))
        _tell(f"```text\n$ {command}\n{self._anywhere(ended.stdout.rstrip())}\n```\n\nExit code {ended.returncode}{named}.\n")
        assert "Traceback" not in ended.stdout
        return Ended(ended.returncode, " ".join(ended.stdout.split()))

    def _anywhere(self, said: str) -> str:
        """The same without folders that only this machine has."""
        packages = str(Path(torch.__file__).parents[1])
        for folder, name in ((str(self._folder), "work"), (packages, "site-packages"), (sys.executable, "python3")):
            said = said.replace(folder, name)
        return said


def _tell(markdown: str) -> None:
    print(markdown)
    if collected := os.environ.get("FAILURES_OUT"):
        with Path(collected).open("a", encoding="utf-8") as file:
            file.write(f"{markdown}\n")


def environment(**changes: str) -> dict[str, str]:
    """This process's, for commands that are given in another folder: the checkout first, every folder by its whole path."""
    folders = [str(CHECKOUT), *(str(folder.absolute()) for folder in _python_path())]
    return os.environ | {"PYTHONPATH": os.pathsep.join(folders), "COLUMNS": "120", "NO_COLOR": "1"} | changes


def _python_path() -> list[Path]:
    return [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def transformer_engines_site() -> Path:
    """The folder that Transformer Engine is installed in, where PYTHONPATH leads to it: only then can another stand in."""
    spec = importlib.util.find_spec("transformer_engine")
    if spec is None or spec.origin is None:
        pytest.skip("Transformer Engine is not installed")
    site = Path(spec.origin).parent.parent
    if site.resolve() not in [folder.resolve() for folder in _python_path()]:
        pytest.skip(f"Transformer Engine lies in {site}, which is not on PYTHONPATH: it cannot be hidden")
    return site


def site_without(site: Path, folder: Path, pattern: str) -> dict[str, str]:
    """`folder` made of links to all that lies in `site` but what the pattern names; the environment with it in site's place."""
    folder.mkdir()
    for entry in site.iterdir():
        if not fnmatch(entry.name, pattern):
            (folder / entry.name).symlink_to(entry)
    folders = [folder if each.resolve() == site.resolve() else each.absolute() for each in _python_path()]
    return environment(PYTHONPATH=os.pathsep.join(map(str, (CHECKOUT, *folders))))


@contextmanager
def gpu_memory_held(left_bytes: int) -> Iterator[float]:
    """Meanwhile so many bytes of the GPU are free and this process has the others; how many GiB those are."""
    size = max(0, torch.cuda.mem_get_info()[0] - left_bytes)
    held = torch.empty(size, dtype=torch.uint8, device="cuda")
    try:
        yield size / 2**30
    finally:
        del held
        torch.cuda.empty_cache()


def test_transformer_engine_is_missing(tmp_path: Path) -> None:
    variables = site_without(transformer_engines_site(), tmp_path / "site", "transformer_engine*")
    how = "Installed packages without `transformer_engine*`; the plan says `candidate.backend: transformer_engine`."
    failure = Failure("Transformer Engine is missing", how, tmp_path, variables)
    looked = failure.give("doctor")
    assert looked.code == ExitCode.PASS  # emulation runs
    assert "Transformer Engine is not installed. Install it: pip install --no-build-isolation" in looked.text
    refused = failure.give("run", failure.plan("missing"))
    assert refused.code == ExitCode.USAGE
    assert "delayed runs on Transformer Engine, which is not installed here" in refused.text
    assert "fp8migrate doctor says how" in refused.text


def test_transformer_engine_is_built_for_another_torch(tmp_path: Path) -> None:
    site = transformer_engines_site()
    variables = site_without(site, tmp_path / "site", "transformer_engine_torch*.so")
    extensions = list(site.glob("transformer_engine_torch*.so"))
    if len(extensions) != 1 or SYMBOL + b"\0" not in (code := extensions[0].read_bytes()):
        pytest.skip(f"no extension in {site} that needs {SYMBOL.decode()}")
    (tmp_path / "site" / extensions[0].name).write_bytes(code.replace(SYMBOL + b"\0", NO_SYMBOL + b"\0"))
    how = "In `transformer_engine_torch*.so` a symbol of torch is renamed, so that this torch has none of that name."
    failure = Failure("Transformer Engine is built for another torch", how, tmp_path, variables)
    looked = failure.give("doctor")
    assert looked.code == ExitCode.PASS  # emulation runs
    assert f"is built for another torch than {torch.__version__}" in looked.text
    assert f"undefined symbol: {NO_SYMBOL.decode()}" in looked.text
    assert "Build its extension again, for this torch: pip install --no-build-isolation" in looked.text
    refused = failure.give("run", failure.plan("another_torch"))
    assert refused.code == ExitCode.USAGE
    assert f"Transformer Engine does not load beside torch {torch.__version__}" in refused.text
    assert f"undefined symbol: {NO_SYMBOL.decode()}" in refused.text
    assert "fp8migrate doctor tells why" in refused.text


def test_two_cudnns(tmp_path: Path) -> None:
    if importlib.util.find_spec("transformer_engine") is None:
        pytest.skip("Transformer Engine is not installed")
    variables = {name: value for name, value in environment().items() if name not in CUDNN_VARIABLES}
    found = find_cudnns(variables, purelib=Path(torch.__file__).resolve().parents[1])
    torchs = next((each for each in found if each.torchs), None)
    if torchs is None or found[0].torchs or found[0].version == torchs.version:
        listed = ", ".join(f"{each.version} in {each.folder}" for each in found)
        pytest.skip(f"Transformer Engine would take torch's cuDNN or one of its version here: {listed or 'none found'}")
    how = f"Without {', '.join(CUDNN_VARIABLES)} Transformer Engine takes cuDNN {found[0].version}, torch {torchs.version}."
    failure = Failure("Two cuDNNs", how, tmp_path, variables)
    looked = failure.give("doctor")
    assert looked.code == ExitCode.PASS  # emulation runs
    assert re.search(r"two cuDNNs(: Transformer Engine has loaded| meet: )", looked.text)
    assert f"Give it the one that torch came with: export CUDNN_PATH={torchs.folder}" in looked.text
    if "does not load, for two cuDNNs meet" in looked.text:
        refused = failure.give("run", failure.plan("two_cudnns"))
        assert refused.code == ExitCode.USAGE
        assert "fp8migrate doctor tells why" in refused.text


@pytest.mark.parametrize("kind", ["mxfp8", "nvfp4"])
def test_a_recipe_of_blackwell(tmp_path: Path, kind: str) -> None:
    capability = torch.cuda.get_device_capability()
    if capability >= (10, 0):
        pytest.skip("this GPU runs it")
    how = f"The plan says `candidate.recipe: {{kind: {kind}}}`, on a GPU of compute capability {capability[0]}.{capability[1]}."
    failure = Failure(f"{kind} on Hopper", how, tmp_path)
    refused = failure.give("run", failure.plan(kind, candidate={"recipe": {"kind": kind}}))
    assert refused.code == ExitCode.USAGE
    assert f"{kind} on transformer_engine needs compute capability 10.0 (Blackwell) or newer" in refused.text
    assert "use delayed, current and block here, or say candidate.backend: emulated" in refused.text


def test_out_of_memory(tmp_path: Path) -> None:
    model = {"num_layers": 8, "hidden_size": 512, "num_heads": 8, "num_kv_heads": 8, "ffn_hidden_size": 1536}
    alone = {"max_parallel": 1}  # what fits was tried for one job
    training = {"sequence_length": 512, "micro_batch_size": 256, "global_batch_size": 256}
    with gpu_memory_held(LEFT_BYTES) as held:
        how = f"Another process holds {held:.1f} GiB, {LEFT_BYTES / 2**30:g} are free. Then what was said to fit is tried."
        failure = Failure("Out of memory", how, tmp_path)
        ended = failure.give("run", failure.plan("too_large", model=model, training=training, launch=alone))
        assert ended.code == ExitCode.INCONCLUSIVE
        assert "INCONCLUSIVE (OUT_OF_MEMORY" in ended.text
        assert "Put what fits into the plan" in ended.text
        fits = re.search(r"baseline-p0-baseline out of memory at step 0 \(micro_batch_size: (\d+) fits", ended.text)
        assert fits is not None
        training["micro_batch_size"] = int(fits[1])
        ended = failure.give("baseline", failure.plan("fits", model=model, training=training, launch=alone))
        assert "out of memory" not in ended.text
        assert ended.code in (ExitCode.PASS, ExitCode.INCONCLUSIVE)  # 24 steps may be too few to learn


def test_a_shape_that_fp8_gemms_do_not_take(tmp_path: Path) -> None:
    odd = {"ffn_hidden_size": 250}
    how = "The plan says `model.ffn_hidden_size: 250`; FP8 GEMMs take multiples of 16."
    failure = Failure("A shape that is not divisible by 16", how, tmp_path)
    told = failure.give("plan", failure.plan("kept", model=odd))
    assert told.code == ExitCode.PASS
    assert "3 of 8 linear layers of the model stay in BF16 for their shape" in told.text
    assert "layers.*.mlp.gate, layers.*.mlp.up (out_features 250 is not a multiple of 16)" in told.text
    assert "candidate.odd_shapes: pad runs them in FP8, padded with zeros." in told.text
    told = failure.give("plan", failure.plan("padded", model=odd, candidate={"odd_shapes": "pad"}))
    assert told.code == ExitCode.PASS
    assert "3 of 8 linear layers of the model run in FP8 padded with zeros" in told.text
    assert "out_features 250 → 256" in told.text


def test_no_shape_that_fp8_gemms_take(tmp_path: Path) -> None:
    how = "As before with `keep_bf16: [lm_head, attention]`; then 33 tokens a pass, where FP8 GEMMs take multiples of 8."
    failure = Failure("No layer is left whose shape FP8 GEMMs take", how, tmp_path)
    kept = {"keep_bf16": ["lm_head", "attention"]}
    features = failure.plan("features", model={"ffn_hidden_size": 250}, candidate=kept)
    tokens = failure.plan("tokens", training={"sequence_length": 33, "micro_batch_size": 1})
    whys = ("out_features 250 is not a multiple of 16", "micro_batch_size × sequence_length = 33 is not a multiple of 8")
    for plan, why in zip((features, tokens), whys, strict=True):
        refused = failure.give("run", plan)
        assert refused.code == ExitCode.USAGE
        assert re.search(rf"{plan}:\d+: every layer of the model stays in BF16", refused.text)
        assert why in refused.text
        assert "Say candidate.odd_shapes: pad, or change the shapes" in refused.text


def test_nan_in_the_first_step_of_bf16(tmp_path: Path) -> None:
    how = "The plan says `model.init_std: 1e38`, near float32's greatest number: BF16 itself breaks, so nothing is said of FP8."
    failure = Failure("NaN in the first step, in BF16", how, tmp_path)
    ended = failure.give("run", failure.plan("nan_in_bf16", model={"init_std": 1e38}))
    assert ended.code == ExitCode.INCONCLUSIVE
    assert re.search(r"baseline-p0-baseline: failed \(non_finite\) .* is (nan|inf) at step [01]\b", ended.text)
    assert "INCONCLUSIVE (BASELINE_UNHEALTHY" in ended.text
    assert re.search(r"baseline-p0-baseline is not finite at step [01]\b", ended.text)
    assert "Make the BF16 run train" in ended.text


def test_nan_in_the_first_step_of_fp8(tmp_path: Path) -> None:
    how = "The plan says `candidate.recipe: {kind: fixed, scale: 1e-46}`, emulated: below float32's least number, so 0 / 0."
    failure = Failure("NaN in the first step, in FP8 alone", how, tmp_path)
    candidate = {"backend": "emulated", "recipe": {"kind": "fixed", "scale": 1e-46}}
    plan = failure.plan("nan_in_fp8", candidate=candidate, design={"branch": None, "scratch": {"pairs": 1}})
    for force in ((), ("--force",)):
        ended = failure.give("run", *force, plan)
        assert ended.code == ExitCode.FAIL
        assert "FAIL (NON_FINITE" in ended.text
        assert "NaN or Inf in the logits of the FP8 forward, first in the output of layers.0." in ended.text
        assert "Keep the layers named in BF16" in ended.text
    assert re.search(r"small_scale-scratch-p0-candidate: failed \(non_finite\) .* is nan at step [01]\b", ended.text)
