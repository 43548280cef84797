"""Checks of the baseline and the integration phase."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fp8migrate.checks import judge_baseline, judge_integration
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.baseline import baseline_evidence
from fp8migrate.evidence.integration import integration_evidence
from fp8migrate.records.schema import Cause
from fp8migrate.verdict import decide, phase_state
from tests.simulation import SOUND_TABLES, Scenario, integration_records, make_plan, simulate, without_table

Tables = dict[str, tuple[dict[str, Any], ...]]


def baseline(scenario: Scenario | None = None) -> tuple[CheckResult, ...]:
    e = simulate(scenario, "baseline")
    return judge_baseline(baseline_evidence(e.plan, e.jobs, e.records))


def integration(scenario: Scenario | None = None, tables: Tables | None = None, **parity: Any) -> tuple[CheckResult, ...]:
    plan = make_plan(**parity)
    jobs, records = integration_records(plan, scenario, tables)
    return judge_integration(integration_evidence(plan, jobs, records))


def problem(results: tuple[CheckResult, ...]) -> tuple[str, str]:
    found = decide(results)
    return found.name, found.code


def test_a_sound_baseline_passes() -> None:
    assert phase_state(baseline()) == "passed"
    floor = next(result for result in baseline() if result.check == "baseline_floor")
    assert floor.advisory
    assert "4 pairs have 80 % power" in floor.summary


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(flat_baseline=True),
        Scenario(zero_gradients=True),
        Scenario(non_finite=((("baseline", 0, None), 30),)),
        Scenario(silent_nan=((("baseline", 0, None), 30),)),
    ],
)
def test_an_unhealthy_baseline(scenario: Scenario) -> None:
    assert problem(baseline(scenario)) == ("INCONCLUSIVE", "BASELINE_UNHEALTHY")
    assert phase_state(baseline(scenario)) == "inconclusive"


def test_a_validation_loss_that_did_not_fall() -> None:
    e = simulate(design="baseline")
    found = baseline_evidence(e.plan, e.jobs, e.records)
    assert problem(judge_baseline(replace(found, final_validation_loss=5.4))) == ("INCONCLUSIVE", "BASELINE_UNHEALTHY")
    assert problem(judge_baseline(replace(found, final_validation_loss=None))) == ("INCONCLUSIVE", "TRUNCATED")


@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(cut=((("baseline", 0, None), 30, "killed"),)),
        Scenario(missing=(("floor", 1, None),)),
        Scenario(missing=(("baseline", 0, None),)),
    ],
)
def test_a_baseline_cut_short(scenario: Scenario) -> None:
    assert problem(baseline(scenario)) == ("INCONCLUSIVE", "TRUNCATED")


def test_a_baseline_out_of_memory_says_what_fits() -> None:
    e = simulate(Scenario(cut=((("baseline", 0, None), 0, "out_of_memory"),)), "baseline")
    found = baseline_evidence(e.plan, e.jobs, e.records)
    first, *others = found.runs
    assert first.outcome is not None
    detail = "CUDA out of memory. Tried to allocate 2 GiB; micro_batch_size: 4 fits, with the same global batch"
    told = replace(first, outcome=first.outcome.model_copy(update={"detail": detail}))
    verdict = decide(judge_baseline(replace(found, runs=(told, *others))))
    assert (verdict.name, verdict.code) == ("INCONCLUSIVE", "OUT_OF_MEMORY")
    assert "out of memory at step 0 (micro_batch_size: 4 fits, with the same global batch)" in verdict.why


def test_a_nan_in_the_floor_is_said_and_does_not_decide() -> None:
    results = baseline(Scenario(non_finite=((("floor", 1, None), 30),)))
    assert phase_state(results) == "passed"


def test_a_sound_integration_passes() -> None:
    assert phase_state(integration()) == "passed"
    assert problem(integration()) == ("INCONCLUSIVE", "NOT_JUDGED")


def changed(table: str, **values: Any) -> Tables:
    """The sound table with its last row changed."""
    return {table: (*SOUND_TABLES[table][:-1], {**SOUND_TABLES[table][-1], **values})}


RESUMED = {"name": "resume", "mismatches": ["layers.0.mlp.up.amax_history"]}


@pytest.mark.parametrize(
    ("tables", "code"),
    [
        ({"equalities": (RESUMED, SOUND_TABLES["equalities"][1])}, "RESUME_MISMATCH"),
        (changed("gradients", fp8_norm=0.0, sqnr_db=0.0, cosine=0.0), "GRADIENT_LOST"),
        (changed("gradients", sqnr_db=-3.0), "GRADIENT_MISMATCH"),
        (changed("gradients", finite=False, sqnr_db=np.nan), "NON_FINITE"),
        (changed("outputs", finite=False), "NON_FINITE"),
        (changed("outputs", sqnr_db=1.0), "OUTPUT_MISMATCH"),
        (changed("layers", sqnr_db=4.0), "LAYER_MISMATCH"),
        (changed("layers", finite=False, sqnr_db=np.nan), "NON_FINITE"),
        (changed("logits", kl_nats=np.nan), "NON_FINITE"),
        (changed("logits", kl_nats=0.7), "INFERENCE_MISMATCH"),
        (changed("logits", top1_agreement=0.4), "INFERENCE_MISMATCH"),
        (changed("equalities", fp8_error=0.9), "ACCUMULATION_MISMATCH"),
        (changed("equalities", fp8_error=np.inf), "NON_FINITE"),
    ],
)
def test_what_is_clearly_broken_fails(tables: Tables, code: str) -> None:
    results = integration(tables=tables)
    assert problem(results) == ("FAIL", code)
    assert phase_state(results) == "failed"


def test_nan_logits_name_the_first_layer_that_is_not_finite() -> None:
    outputs = tuple({**row, "finite": number == 0} for number, row in enumerate(SOUND_TABLES["outputs"]))
    broken = integration(tables={**changed("logits", kl_nats=np.nan), "outputs": outputs})
    found = next(result for result in broken if result.check == "inference")
    names = [row["name"] for row in outputs]
    assert found.summary.endswith(f"first in the output of {names[1]}")
    assert found.evidence == tuple(names[1:])


def test_a_layer_kept_in_bf16_has_infinite_sqnr() -> None:
    assert phase_state(integration(tables=changed("outputs", sqnr_db=np.inf))) == "passed"


def test_a_gradient_that_is_zero_in_both_is_no_loss() -> None:
    both = changed("gradients", fp8_norm=0.0, reference_norm=0.0, sqnr_db=np.inf)
    assert phase_state(integration(tables=both)) == "passed"


@pytest.mark.parametrize("table", ["logits", "outputs", "layers", "gradients", "equalities"])
def test_a_missing_table_is_never_a_pass(table: str) -> None:
    results = integration(tables=without_table(table))
    assert problem(results) == ("INCONCLUSIVE", "TRUNCATED")
    assert phase_state(results) == "inconclusive"


def test_nothing_at_all() -> None:
    plan = make_plan()
    jobs, _ = integration_records(plan)
    assert problem(judge_integration(integration_evidence(plan, jobs, {}))) == ("INCONCLUSIVE", "TRUNCATED")
    assert problem(judge_integration(integration_evidence(plan, (), {}))) == ("INCONCLUSIVE", "TRUNCATED")


def test_nothing_converted() -> None:
    assert problem(integration(Scenario(coverage=0.0))) == ("INCONCLUSIVE", "FP8_NOT_ACTIVE")
    assert problem(integration(Scenario(quantized_tensors=0))) == ("INCONCLUSIVE", "FP8_NOT_ACTIVE")
    assert phase_state(integration(Scenario(coverage=0.0), require_fp8=False)) == "passed"


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("error", ("FAIL", "CANDIDATE_CRASH")),
        ("non_finite", ("FAIL", "NON_FINITE")),
        ("out_of_memory", ("INCONCLUSIVE", "TRUNCATED")),
        ("killed", ("INCONCLUSIVE", "TRUNCATED")),
        ("start_missing", ("INCONCLUSIVE", "TRUNCATED")),
    ],
)
def test_a_job_that_ends_badly(cause: Cause, expected: tuple[str, str]) -> None:
    assert problem(integration(Scenario(cut=((("candidate", 0, None), 1, cause),)))) == expected
