"""Evidence of the baseline and the integration phase."""

import numpy as np
import pytest

from fp8migrate.evidence.baseline import baseline_evidence, tokens_to_loss
from fp8migrate.evidence.integration import integration_evidence
from fp8migrate.records.schema import Series
from tests.simulation import Scenario, integration_records, make_plan, simulate, without_table


def test_baseline_as_simulated() -> None:
    e = simulate(Scenario(tau=0.001), "baseline")
    found = baseline_evidence(e.plan, e.jobs, e.records)
    assert found.initial_validation_loss == pytest.approx(np.log(256), rel=0.02)
    assert found.final_validation_loss is not None
    assert found.final_validation_loss < 2.2
    assert len(found.floor) == 4
    assert np.std([delta.value for delta in found.floor]) < 0.003
    assert found.tokens_per_second == 8192 / 0.25
    assert found.margin == e.plan.parity.margin_fraction
    assert found.loss is not None
    assert found.loss.steps.size == 600


def test_a_baseline_that_is_not_there() -> None:
    e = simulate(design="baseline")
    found = baseline_evidence(e.plan, e.jobs, {})
    assert (found.loss, found.final_validation_loss, found.floor) == (None, None, ())
    assert all(run.outcome is None for run in found.runs)


def test_tokens_to_loss_by_hand() -> None:
    steps = np.arange(1, 1001)
    falling = Series("loss", "nats per token", steps, np.maximum(5.0 - 0.004 * steps, 2.0))
    found = dict(tokens_to_loss(falling, 100))
    # The mean of the last 10 steps falls to 3.0 (1.5 × the final 2.0) where step 504.5 is its centre, at step 505 … 509.
    assert found[3.0] == pytest.approx(50_450, abs=500)
    assert list(found) == sorted(found, reverse=True)
    assert tokens_to_loss(Series("loss", "", steps, np.full(1000, np.nan)), 100) == ()


def test_integration_as_left() -> None:
    plan = make_plan()
    jobs, records = integration_records(plan)
    found = integration_evidence(plan, jobs, records)
    assert found.logits is not None
    assert found.logits.penalty == pytest.approx(0.0025)
    assert (len(found.outputs), len(found.gradients), len(found.layers)) == (4, 4, 12)
    assert found.resume_mismatches == ()
    assert (found.accumulation_error, found.accumulation_error_bf16) == (0.02, 0.004)
    assert found.conversion is not None
    assert found.emulated


def test_integration_that_left_nothing() -> None:
    plan = make_plan()
    jobs, records = integration_records(plan, tables=without_table("equalities") | without_table("logits"))
    found = integration_evidence(plan, jobs, records)
    assert (found.logits, found.resume_mismatches, found.accumulation_error) == (None, None, None)
    nothing = integration_evidence(plan, jobs, {})
    assert (nothing.outputs, nothing.gradients, nothing.conversion) == ((), (), None)
