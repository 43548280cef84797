"""A stub in the place of Transformer Engine, for tests that ask for it."""

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def transformer_engine_stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`transformer_engine` is that of tests/fake_te, on a machine that says it has a GPU; gone again afterwards."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "fake_te"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformer_engine"]:
        del sys.modules[name]
