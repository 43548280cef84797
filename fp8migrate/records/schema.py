"""A run as it is written (`run.json`, `metrics.jsonl`, `evals.jsonl`, `tables/`) and as it is read back (`Record`).

Non-finite numbers are written as the strings "NaN", "Infinity", "-Infinity" and read back as such: JSON has no NaN, and a
loss that is NaN must not turn into one that is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.jobs import Forward, Job
from fp8migrate.settings import Settings

SCHEMA_VERSION = 1

Status = Literal["running", "completed", "failed", "interrupted"]
# non_finite: NaN or Inf loss or gradient norm. stalled: logged nothing for too long and was stopped. killed: ended by a
# signal from outside, the out-of-memory killer included. disk: a write failed. start_missing: its start checkpoint never came.
Cause = Literal["non_finite", "out_of_memory", "error", "stalled", "killed", "disk", "start_missing"]


class Environment(Settings):
    """Where a run ran: everything outside the plan that its numbers depend on. From the worker's probe."""

    fp8migrate: str
    source_sha256: str = Field(description="of the code that trains: worker, facts, job and plan models")
    python: str
    torch: str
    device: Literal["cpu", "cuda"]
    device_name: str
    compute_capability: str | None = Field(None, description="CUDA compute capability, 9.0 for Hopper")
    cuda: str | None = None
    driver: str | None = None
    transformer_engine: str | None = None
    torchao: str | None = None
    cpu_capability: str = Field(description="instruction set torch chose: AVX2, AVX512, ...")
    bf16_gemm: str = Field(description="how BF16 GEMMs run: native, or float32 over BF16-rounded operands")
    data_sha256: str = Field(description="of the data source's text")
    data_tokens: int
    held_out_tokens: int | None = Field(None, description="of those, the ones that no run trains on; none where not known")
    variables: dict[str, str] = Field(default_factory=dict, description="NVTE_*, TORCH_*, CUDA_*, NCCL_*, OMP_*, MKL_* as set")


class LayerConversion(Settings):
    """One GEMM site of the model: what it got, and why."""

    name: str
    shape: tuple[int, int] = Field(description="(out_features, in_features); (0, 0) for products of activations in attention")
    flops_share: float = Field(description="of the model's GEMM FLOPs, forward and both backward GEMMs")
    gemms: tuple[Gemm, ...] = Field((), description="those that run in low precision; empty: kept in BF16")
    reason: str = Field(description="why it was kept in BF16; the recipe's name where converted")

    @property
    def converted(self) -> bool:
        return bool(self.gemms)

    @property
    def kept_gemms(self) -> tuple[Gemm, ...]:
        """Of a converted layer, those that run in BF16 all the same."""
        return tuple(gemm for gemm in GEMMS if gemm not in self.gemms) if self.gemms else ()

    @property
    def low_precision_share(self) -> float:
        """Of the model's GEMM FLOPs: a linear layer's three GEMMs cost the same."""
        return self.flops_share * len(self.gemms) / len(GEMMS)


class Conversion(Settings):
    """What was requested and what really got FP8."""

    requested: str
    effective: str
    layers: tuple[LayerConversion, ...]
    fp8_flops_share: float
    unmatched_filters: tuple[str, ...] = ()
    notes: tuple[str, ...] = Field((), description="what the plan keeps in BF16 that no GEMM is, and so was never in FP8")
    quantized_tensors: int | None = Field(None, description="tensors quantised while the run went on: the proof that FP8 ran")
    not_in_fp8: tuple[str, ...] = Field((), description="converted layers of which some or every pass ran without FP8")

    @property
    def proof(self) -> tuple[bool, float, int]:
        """How far it proves that FP8 ran, to find the weakest of several: the least."""
        return not self.not_in_fp8, self.fp8_flops_share, -1 if self.quantized_tensors is None else self.quantized_tensors


class Outcome(Settings):
    status: Status
    cause: Cause | None = None
    detail: str = ""
    last_step: int = Field(0, ge=0)
    exit_code: int | None = None
    wall_seconds: float = Field(0.0, ge=0)
    attempts: int = Field(1, ge=1, description="times this job was started; more than one: it was resumed")


class RunFile(Settings):
    """`run.json`, replaced as a whole at each change."""

    schema_version: int = SCHEMA_VERSION
    key: str = Field(description="digest of job and environment: names the run directory")
    job: Job
    environment: Environment
    conversion: Conversion | None = None
    facts: dict[str, Any] = Field(
        default_factory=dict,
        description="initial_weights_sha256, data_sha256 (of the batches consumed), parameters, repeats, ...",
    )
    outcome: Outcome


@dataclass(frozen=True, eq=False)
class Series:
    """One quantity over steps. `steps` rise strictly; `values` may hold NaN and Inf where the run really logged them."""

    name: str
    unit: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    expected_last_step: int | None = None
    averaging: int = 1

    @property
    def complete(self) -> bool:
        """Whether the last expected step is there."""
        return self.expected_last_step is None or (self.steps.size > 0 and int(self.steps[-1]) >= self.expected_last_step)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One held-out evaluation: mean loss in nats per token, and the sums per document for its standard error."""

    step: int
    forward: Forward
    loss: float
    tokens: int
    document_nll: NDArray[np.float64]
    document_tokens: NDArray[np.int64]
    documents_sha256: str


@dataclass(frozen=True, eq=False)
class Record:
    """A run as read back. `directory` is for people; everything decided on is in the fields.

    series: "loss" (training loss, nats per token), "grad_norm", "learning_rate", "step_seconds", by name.
    tables: rows by table name ("gradients", "logits", "layers", ...), from `tables/<name>.jsonl`.
    unreadable_lines: torn or malformed lines that were read past.
    """

    key: str
    job: Job
    environment: Environment
    outcome: Outcome
    conversion: Conversion | None
    facts: Mapping[str, Any]
    series: Mapping[str, Series]
    evaluations: tuple[Evaluation, ...]
    tables: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    unreadable_lines: int = 0
    directory: str = ""

    def evaluation(self, forward: Forward, step: int) -> Evaluation | None:
        return next((e for e in self.evaluations if e.forward == forward and e.step == step), None)
