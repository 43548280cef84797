"""Forward check and one-step check: the tables that the integration phase reads."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fp8migrate.checks import judge_integration
from fp8migrate.evidence.integration import integration_evidence
from fp8migrate.evidence.schema import IntegrationEvidence
from fp8migrate.facts.recipes import FixedRecipe
from fp8migrate.jobs import DataOrder, ForwardCheck, Job, OneStep, Precision
from fp8migrate.plan.schema import Design, Plan, ScratchDesign
from fp8migrate.records.store import read_run
from fp8migrate.records.writer import checkpoint_path, load_run_file, save_run_file
from fp8migrate.worker.tasks.agreement import agreement
from fp8migrate.worker.tasks.forward_check import compare_logits
from tests.worker import runs
from tests.worker.runs import BF16, CURRENT, DELAYED, OFF, carry_out, make_run, train_task

PLAN = Plan(name="tiny", model=runs.MODEL, data=runs.DATA, training=runs.TRAINING, design=Design(scratch=ScratchDesign()))
LAYERS = {f"layers.{i}.{part}" for i in range(2) for part in ("attention.query", "attention.key", "attention.value")}
LAYERS |= {f"layers.{i}.{part}" for i in range(2) for part in ("attention.output", "mlp.gate", "mlp.up", "mlp.down")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = train_task(BF16, last_step=24, validate_at=(), checkpoint_at=(24,))
    return checkpoint_path(carry_out(make_run(tmp_path_factory.mktemp("start") / "trained", task)), 24)


def examine(folder: Path, precision: Precision, start: Path | None) -> IntegrationEvidence:
    """What the phase learns from both jobs."""
    jobs: list[Job] = []
    records = {}
    for kind in (ForwardCheck, OneStep):
        task = kind(
            model=runs.MODEL,
            data=runs.DATA,
            training=runs.TRAINING,
            precision=precision,
            data_order=DataOrder(split="unseen", seed=0),
        )
        directory = make_run(folder / kind.__name__, task)
        given = load_run_file(directory)
        role = given.job.role.model_copy(update={"design": "integration"})
        save_run_file(directory, given.model_copy(update={"job": given.job.model_copy(update={"role": role})}))
        record = read_run(carry_out(directory, start))
        jobs.append(record.job)
        records[record.job.digest] = record
    return integration_evidence(PLAN, jobs, records)


@pytest.mark.parametrize("precision", [CURRENT, DELAYED], ids=["current", "delayed"])
def test_a_sound_recipe_on_trained_weights(precision: Precision, tmp_path: Path, trained: Path) -> None:
    found = examine(tmp_path, precision, trained)
    assert found.logits is not None
    assert found.logits.tokens == runs.DATA.validation_tokens
    assert 0 < found.logits.kl_nats < 0.02
    assert found.logits.top1_agreement > 0.9
    assert found.logits.loss_bf16 < math.log(256) - 1
    assert abs(found.logits.penalty) < 0.01
    assert {row.name for row in found.outputs} == LAYERS | {"lm_head"}
    assert all(row.finite and row.cosine > 0.99 and 15 < row.sqnr_db < 60 for row in found.outputs)
    assert {row.name for row in found.gradients} >= {f"{name}.weight" for name in LAYERS} | {"embedding.weight", "norm.weight"}
    assert all(row.finite and row.cosine > 0.95 and row.reference_norm > 0 for row in found.gradients)
    assert found.resume_mismatches == ()
    assert found.accumulation_error is not None
    assert found.accumulation_error_bf16 is not None
    assert found.accumulation_error_bf16 < 0.01
    assert found.accumulation_error < 0.1
    assert found.conversion is not None
    assert {layer.name for layer in found.conversion.layers if layer.converted} == LAYERS
    assert found.conversion.quantized_tensors
    assert [r.name for r in judge_integration(found) if r.status == "fail"] == []


def test_fp8_off_agrees_to_the_bit(tmp_path: Path, trained: Path) -> None:
    found = examine(tmp_path, OFF, trained)
    assert found.logits is not None
    assert (found.logits.kl_nats, found.logits.top1_agreement, found.logits.penalty) == (0.0, 1.0, 0.0)
    assert all(row.sqnr_db == math.inf for row in (*found.outputs, *found.gradients))
    assert found.resume_mismatches == ()
    assert found.accumulation_error == found.accumulation_error_bf16


def test_gradients_that_all_underflow_are_told_not_a_crash(tmp_path: Path) -> None:
    """E2M1 without a scale rounds every gradient of the loss to zero, from the last layer on."""
    found = examine(tmp_path, Precision(backend="emulated", recipe=FixedRecipe(format="e2m1")), None)
    assert all(row.fp8_norm == 0 < row.reference_norm for row in found.gradients)
    assert found.accumulation_error == 0.0
    assert found.resume_mismatches == ()


def row(reference: list[float], measured: list[float]) -> dict[str, Any]:
    return agreement("a", torch.tensor(reference), torch.tensor(measured))


def test_agreement_by_hand() -> None:
    found = row([3.0, 4.0], [3.0, 4.5])
    assert found["sqnr_db"] == pytest.approx(20.0)  # 25 / 0.25
    assert found["cosine"] == pytest.approx((9 + 18) / (5 * math.sqrt(29.25)))
    assert (found["reference_norm"], found["fp8_norm"], found["finite"]) == (5.0, math.sqrt(29.25), True)


@pytest.mark.parametrize(
    ("reference", "measured", "decibels", "cosine", "finite"),
    [
        ([1.0, 2.0], [1.0, 2.0], math.inf, 1.0, True),
        ([0.0, 0.0], [0.0, 0.0], math.inf, 1.0, True),
        ([0.0, 0.0], [0.0, 1.0], -math.inf, 0.0, True),
        ([1.0, 2.0], [0.0, 0.0], 0.0, 0.0, True),
        ([1.0, 2.0], [1.0, math.inf], -math.inf, math.nan, False),
        ([1.0, 2.0], [1.0, math.nan], math.nan, 0.0, False),
    ],
)
def test_agreement_at_its_edges(
    reference: list[float], measured: list[float], decibels: float, cosine: float, finite: bool
) -> None:
    found = row(reference, measured)
    np.testing.assert_equal(found["sqnr_db"], decibels)
    assert found["finite"] is finite
    assert found["cosine"] == pytest.approx(cosine, nan_ok=True)


def test_logits_by_hand() -> None:
    """p = (1/2, 1/2) against q = (3/4, 1/4): KL = ½ ln(2/3) + ½ ln 2."""
    bf16, fp8 = torch.tensor([[[0.0, 0.0]]]), torch.tensor([[[0.75, 0.25]]]).log()
    found = compare_logits(bf16, fp8, torch.tensor([[1]]))
    assert found["kl_nats"] == pytest.approx(0.5 * math.log(4 / 3))
    assert found["loss_bf16"] == pytest.approx(math.log(2))
    assert found["loss_fp8"] == pytest.approx(math.log(4))
    assert (found["top1_agreement"], found["tokens"]) == (1.0, 1)
