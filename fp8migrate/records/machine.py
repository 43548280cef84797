"""What `doctor` finds on a machine: GPUs, libraries and whether they load, as the worker tells it in one JSON line."""

import re
from typing import Literal

from pydantic import Field

from fp8migrate.records.schema import Environment
from fp8migrate.settings import Settings

LibraryState = Literal[
    "ok", "missing", "incomplete", "built_for_another_torch", "two_cudnns", "no_cuda", "crashed", "hung", "failed", "not_tried"
]
AttentionBackend = Literal["flash", "fused", "unfused"]


class Gpu(Settings):
    """One GPU as the driver gives it. Memory in bytes."""

    name: str
    compute_capability: str = Field(description="9.0 for Hopper")
    memory_total_bytes: int
    memory_free_bytes: int | None = None


class Cudnn(Settings):
    """A cuDNN that lies on this machine. version: of its file or package, as far as either tells."""

    path: str
    folder: str = Field(description="what CUDNN_PATH would be set to for this one")
    version: str | None
    found_by: str = Field(description="the variable or place that leads to it first")
    torchs: bool = Field(False, description="it lies in the package that torch came with")


class Library(Settings):
    """A library, and whether it loads here. detail: in its own words why not."""

    state: LibraryState
    version: str | None = None
    detail: str = ""


class Attention(Settings):
    """What Transformer Engine took for a small causal BF16 attention, forward and backward. None: it could not be tried."""

    backend: AttentionBackend | None
    detail: str = Field("", description="the backend's version; why it could not be tried; why fused was switched off")


class TransformerEngine(Library):
    """cudnn: the version that it loaded. refused: recipes it says it cannot run here, with its reason."""

    cudnn: str | None = None
    refused: dict[str, str] = Field(default_factory=dict)
    attention: Attention | None = None


class Machine(Settings):
    """Everything found. `failed`: what could not be looked at, and why; the rest stands all the same."""

    torch: Library
    cuda: str | None = Field(None, description="that torch was built with")
    cudnn: str | None = Field(None, description="that torch loads")
    nccl: str | None = None
    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()
    cudnns: tuple[Cudnn, ...] = Field((), description="in the order in which Transformer Engine looks for them")
    transformer_engine: TransformerEngine = TransformerEngine(state="not_tried")
    torchao: Library = Library(state="not_tried")
    environment: Environment | None = Field(None, description="what runs would be recorded under; none: nothing can train here")
    failed: dict[str, str] = Field(default_factory=dict)

    @property
    def capability(self) -> tuple[int, int] | None:
        """Of the GPU that jobs would take, the first."""
        return version_pair(self.gpus[0].compute_capability) if self.gpus else None


def version_pair(text: str | None) -> tuple[int, int] | None:
    """'12.9' → (12, 9); None for what is no version."""
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None
