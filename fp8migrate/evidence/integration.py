"""What one forward check and one training step left: tables of agreement between BF16 and FP8 on the same weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from fp8migrate.evidence.advice import Advice, gemm_forecasts
from fp8migrate.evidence.runs import run_fact
from fp8migrate.evidence.schema import (
    GemmAgreement,
    IntegrationEvidence,
    LayerAgreement,
    LayerKernels,
    LogitAgreement,
    StepKernel,
)
from fp8migrate.jobs import Job
from fp8migrate.plan.schema import Plan
from fp8migrate.records.schema import Conversion, Record

Row = Mapping[str, Any]


def integration_evidence(
    plan: Plan, jobs: Sequence[Job], records: Mapping[str, Record], advised: Advice | None = None
) -> IntegrationEvidence:
    """Tables of the integration jobs among `jobs`, by name. What no job left is None or empty. advised: of the BF16 run."""
    forecasts = {} if advised is None else gemm_forecasts(advised, plan)
    runs = [(job, records.get(job.digest)) for job in jobs if job.role.design == "integration"]
    left = [record for _, record in runs if record]
    equalities = {str(row["name"]): row for row in _table(left, "equalities")}
    accumulation = equalities.get("accumulation")
    return IntegrationEvidence(
        runs=tuple(run_fact(job, record) for job, record in runs),
        conversion=_conversion(left),
        logits=next((LogitAgreement(**row) for row in _table(left, "logits")), None),
        outputs=tuple(LayerAgreement(**row) for row in _table(left, "outputs")),
        gradients=tuple(LayerAgreement(**row) for row in _table(left, "gradients")),
        layers=tuple(
            GemmAgreement(**row, forecast_db=forecasts.get((row["layer"], row["gemm"]))) for row in _table(left, "layers")
        ),
        resume_mismatches=tuple(equalities["resume"]["mismatches"]) if "resume" in equalities else None,
        accumulation_error=None if accumulation is None else float(accumulation["fp8_error"]),
        accumulation_error_bf16=None if accumulation is None else float(accumulation["bf16_error"]),
        require_fp8=plan.parity.require_fp8,
        emulated=any(job.task.precision.backend == "emulated" for job, _ in runs),
        layer_kernels=tuple(LayerKernels(**{**row, "names": tuple(row["names"])}) for row in _table(left, "layer_kernels")),
        step_kernels=tuple(StepKernel(**row) for row in _table(left, "step_kernels")),
        micro_batches=plan.training.global_batch_size // plan.training.micro_batch_size,
    )


def _table(records: Sequence[Record], name: str) -> tuple[Row, ...]:
    return next((rows for record in records if (rows := record.tables.get(name, ()))), ())


def _conversion(records: Sequence[Record]) -> Conversion | None:
    """The conversion that proves least FP8 among the jobs that told theirs."""
    found = [record.conversion for record in records if record.conversion is not None]
    return min(found, key=lambda conversion: conversion.proof, default=None)
