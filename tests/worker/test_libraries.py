"""Loading Transformer Engine in a process of its own, with a package in its place that fails in each way that users meet."""

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fp8migrate.records.machine import Attention
from fp8migrate.worker.libraries import look_at_torchao, look_at_transformer_engine, why_it_does_not_load

# What the loader said on a machine with the system's cuDNN 9.14 beside torch's 9.19.
TWO_CUDNNS = (
    "ImportError: /usr/lib/libcudnn_cnn.so.9: undefined symbol: _ZTIN5cudnn7backend23PagedCacheLoadOperationE, version "
    "libcudnn_graph.so.9"
)
ANOTHER_TORCH = (
    "ImportError: /x/transformer_engine_torch.cpython-311-x86_64-linux-gnu.so: undefined symbol: "
    "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
)

ATTENTION = """
import logging, os, sys
_attention_backends = dict.fromkeys(("use_flash_attention", "use_fused_attention", "use_unfused_attention"))
class DotProductAttention:
    def __init__(self, num_attention_heads, kv_channels, qkv_format, attn_mask_type):
        assert (qkv_format, attn_mask_type) == ("bshd", "causal")
    def __call__(self, query, key, value):
        CHOOSE
        return (query * key * value).flatten(2)
"""


Install = Callable[..., None]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a Transformer Engine on PYTHONPATH: what its import does, what its attention chooses, the cuDNN it reports."""

    def install(importing: str = "", choose: str = "", cudnn: int = 91900, refused: str = "(True, '')") -> None:
        package = tmp_path / "transformer_engine" / "pytorch"
        (package / "attention" / "dot_product_attention").mkdir(parents=True)
        (tmp_path / "transformer_engine" / "__init__.py").touch()
        (package / "attention" / "__init__.py").touch()
        source = ATTENTION.replace("CHOOSE", textwrap.indent(textwrap.dedent(choose or "pass"), " " * 8).strip())
        (package / "attention" / "dot_product_attention" / "__init__.py").write_text(source)
        (package / "__init__.py").write_text(
            f"{importing}\n"
            "from transformer_engine.pytorch.attention.dot_product_attention import DotProductAttention\n"
            "def is_fp8_available(return_reason): return (True, '')\n"
            f"def is_mxfp8_available(return_reason): return {refused}\n"
        )
        (tmp_path / "transformer_engine_torch.py").write_text(f"def get_cudnn_version(): return {cudnn}\n")
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")

    return install


def test_missing() -> None:
    found = look_at_transformer_engine("none")
    assert (found.state, found.version, found.attention) == ("missing", None, None)


@pytest.mark.parametrize(
    ("importing", "state", "detail"),
    [
        (f"raise ImportError({TWO_CUDNNS.removeprefix('ImportError: ')!r})", "two_cudnns", "libcudnn_graph.so.9"),
        (f"raise ImportError({ANOTHER_TORCH.removeprefix('ImportError: ')!r})", "built_for_another_torch", "_ZN3c105Error"),
        ("import transformer_engine_extension_that_is_not_there", "incomplete", "ModuleNotFoundError"),
        ("import os; os._exit(0)", "crashed", "ended the process"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed", "ended by SIGSEGV"),
    ],
)
def test_it_does_not_load(stand_in: Install, importing: str, state: str, detail: str) -> None:
    stand_in(importing)
    found = look_at_transformer_engine("cpu")
    assert (found.state, detail in found.detail) == (state, True), found.detail
    assert found.attention is None


def test_it_hangs(stand_in: Install) -> None:
    stand_in("import time; time.sleep(600)")
    found = look_at_transformer_engine("cpu", timeout_seconds=3)
    assert (found.state, found.detail) == ("hung", "nothing came for 3 s")


def test_its_cudnn_and_what_it_refuses(stand_in: Install) -> None:
    stand_in(choose="_attention_backends['use_fused_attention'] = True", cudnn=91400, refused="(False, 'too old')")
    found = look_at_transformer_engine("cpu")
    assert (found.state, found.cudnn, found.refused) == ("ok", "9.14.0", {"mxfp8": "too old"})


@pytest.mark.parametrize(
    ("choose", "attention"),
    [
        (
            "_attention_backends.update(use_fused_attention=True, fused_attention_backend=1)",
            Attention(backend="fused", detail="1"),
        ),
        (
            "_attention_backends.update(use_flash_attention=True, flash_attention_backend='2.8.3')",
            Attention(backend="flash", detail="2.8.3"),
        ),
        (
            """
            assert os.environ["NVTE_DEBUG_LEVEL"] == "2"
            print("[DEBUG | utils]: Disabling FusedAttention as no backend supports the provided input", file=sys.stderr)
            _attention_backends["use_unfused_attention"] = True
            """,
            Attention(backend="unfused", detail="as no backend supports the provided input"),
        ),
        (
            "pass",
            Attention(backend=None, detail="LookupError: Transformer Engine does not say which backend it took"),
        ),
        ("os.abort()", Attention(backend=None, detail="ended by SIGABRT")),
    ],
)
def test_its_attention(stand_in: Install, choose: str, attention: Attention) -> None:
    stand_in(choose=choose)
    found = look_at_transformer_engine("cpu")
    assert (found.state, found.cudnn) == ("ok", "9.19.0")
    assert found.attention is not None
    assert found.attention.backend == attention.backend
    assert found.attention.detail.startswith(attention.detail)


def test_torchao_is_tried_too() -> None:
    """The development environment has it."""
    found = look_at_torchao()
    assert (found.state, bool(found.version)) == ("ok", True)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        ("RuntimeError: Transformer Engine requires cuDNN 9.12.0 or later, but the cuDNN runtime is 9.10.2.", "two_cudnns"),
        ("OSError: libcudnn.so.9: cannot open shared object file: No such file or directory", "failed"),
        ("OSError: libcudart.so.12: cannot open shared object file: No such file or directory", "built_for_another_torch"),
        ("ImportError: libc10_cuda.so: cannot open shared object file", "no_cuda"),
        ("OSError: libcuda.so.1: cannot open shared object file: No such file or directory", "no_cuda"),
        ("ValueError: of its own", "failed"),
        ("FileNotFoundError: Could not find shared object file for Transformer Engine torch lib.", "incomplete"),
        ("AssertionError: Transformer Engine package version mismatch. Found transformer_engine_torch v2.4", "incomplete"),
    ],
)
def test_words_of_the_loader(error: str, state: str) -> None:
    assert why_it_does_not_load(error) == state
