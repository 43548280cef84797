"""`compare`: what is paired, what is measured, what is missing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fp8migrate.evidence.pairs import compare, significant_digits
from fp8migrate.evidence.schema import Cell, Comparison
from fp8migrate.jobs import DesignName
from tests.simulation import Experiment, Scenario, simulate


def compared(scenario: Scenario | None = None, design: DesignName = "branch", **plan_changes: object) -> Comparison:
    return of(simulate(scenario, design, **plan_changes))


def of(e: Experiment) -> Comparison:
    return compare(e.plan, e.design, e.jobs, e.records)


def cell(
    comparison: Comparison, endpoint: str = "validation_loss", arm: str = "candidate", fraction: float | None = None
) -> Cell:
    found = comparison.cell(arm, endpoint, fraction)  # type: ignore[arg-type]
    assert found is not None
    return found


QUIET = Scenario(tau=0.0, step_sd_nats=0.0, document_sd=0.0)


def test_endpoints_show_the_truth_that_was_put_in() -> None:
    comparison = compared(replace(QUIET, gap=0.01, penalty=0.002, sensitivity_gap=0.05))
    np.testing.assert_allclose(cell(comparison).values, 0.01)
    np.testing.assert_allclose(cell(comparison, "validation_loss_fp8").values, 1.01 * 1.002 - 1)
    np.testing.assert_allclose(cell(comparison, "forward_penalty").values, 0.002)
    np.testing.assert_allclose(cell(comparison, "training_loss").values, 0.012, rtol=1e-6)
    np.testing.assert_allclose(cell(comparison, arm="sensitivity").values, 0.05)
    np.testing.assert_allclose(cell(comparison, arm="floor").values, 0.0, atol=1e-12)
    assert cell(comparison).sampling_error == pytest.approx(0.0, abs=1e-12)
    assert cell(comparison, "training_loss").sampling_error is None


def test_a_screen_has_a_cell_for_each_fraction() -> None:
    comparison = compared(design="screen")
    assert comparison.fractions == (0.3, 0.6, 0.9)
    for fraction in comparison.fractions:
        assert [delta.pair for delta in cell(comparison, fraction=fraction).deltas] == [0, 1, 2, 3]


def test_the_sampling_error_is_that_of_the_documents() -> None:
    comparison = compared(replace(QUIET, document_sd=0.004))
    # 64 documents whose own gaps have SD 0.4 %.
    assert cell(comparison).sampling_error == pytest.approx(0.004 / 8, rel=0.25)


def test_one_record_serves_several_roles() -> None:
    """The candidate under the known-bad recipe is the same job as the sensitivity arm: one record, two arms."""
    e = simulate(Scenario(sensitivity_gap=0.02), recipe={"kind": "current", "format": "e2m1"})
    sensitivity = [job for job in e.jobs if job.role.arm == "sensitivity"]
    same = [job.model_copy(update={"role": job.role.model_copy(update={"arm": "candidate"})}) for job in sensitivity]
    others = [job for job in e.jobs if job.role.arm in ("baseline", "sensitivity")]
    comparison = compare(e.plan, "branch", [*others, *same], e.records)
    np.testing.assert_array_equal(cell(comparison).values, cell(comparison, arm="sensitivity").values)


def test_the_training_window_is_the_last_tenth_or_fifty_points() -> None:
    e = simulate(QUIET, num_steps=600)
    digest = next(job.digest for job in e.jobs if job.role.arm == "candidate" and job.role.pair == 0)
    loss = e.records[digest].series["loss"]
    loss.values[:-50] += 1.0
    before = cell(of(e), "training_loss").values[0]
    loss.values[-50:] *= 1.01
    assert before == pytest.approx(QUIET.penalty, rel=1e-6)
    assert cell(of(e), "training_loss").values[0] == pytest.approx(1.01 * (1 + QUIET.penalty) - 1, rel=1e-6)


def test_what_is_missing_stands_in_the_runs_and_has_no_delta() -> None:
    comparison = compared(Scenario(missing=(("candidate", 2, None),), cut=((("baseline", 1, None), 40, "killed"),)))
    assert [delta.pair for delta in cell(comparison).deltas] == [0, 3]
    missing = [run for run in comparison.runs if run.outcome is None]
    assert [(run.arm, run.pair) for run in missing] == [("candidate", 2)]
    (cut,) = [run for run in comparison.runs if run.outcome and run.outcome.cause == "killed"]
    assert (cut.arm, cut.outcome and cut.outcome.last_step, cut.expected_last_step) == ("baseline", 340, 600)


def test_nothing_at_all() -> None:
    e = simulate()
    comparison = compare(e.plan, "branch", e.jobs, {})
    assert comparison.cells == comparison.curves == comparison.audit == ()
    assert len(comparison.runs) == len(e.jobs)
    empty = compare(e.plan, "branch", (), {})
    assert (empty.planned_pairs, empty.fractions, empty.runs) == (4, (None,), ())


def test_a_nan_is_a_nan_and_not_missing() -> None:
    comparison = compared(Scenario(silent_nan=((("candidate", 1, None), 17),)))
    (bad,) = [run for run in comparison.runs if run.non_finite_at is not None]
    assert (bad.arm, bad.pair, bad.non_finite_at) == ("candidate", 1, 317)


def test_a_missing_step_is_counted() -> None:
    e = simulate()
    record = next(r for r in e.records.values() if r.job.role.arm == "candidate")
    loss = record.series["loss"]
    keep = np.arange(loss.steps.size) != 100
    e.records[record.key] = replace(record, series={"loss": replace(loss, steps=loss.steps[keep], values=loss.values[keep])})
    assert sum(run.missing_steps for run in of(e).runs) == 1


def test_without_a_planned_validation_the_training_loss_decides() -> None:
    e = simulate()
    jobs = [job.model_copy(update={"task": job.task.model_copy(update={"validate_at": ()})}) for job in e.jobs]
    assert compare(e.plan, "branch", jobs, {}).primary == ("training_loss",)
    assert of(e).primary == ("validation_loss",)
    assert compared(serve="fp8").primary == ("validation_loss", "validation_loss_fp8")


def test_the_audit_finds_precision_alone() -> None:
    comparison = compared()
    assert not [row for row in comparison.audit if row.status == "unknown"]
    assert all(row.expected for row in comparison.audit if row.status == "different")
    assert any(row.setting == "task.precision.recipe.kind" for row in comparison.audit)


@pytest.mark.parametrize(
    ("scenario", "setting"),
    [
        (Scenario(different_data=True), "facts.data_sha256"),
        (Scenario(different_documents=True), "validation.documents_sha256"),
        (Scenario(other_torch=True), "environment.torch"),
    ],
)
def test_the_audit_finds_what_spoils_a_pair(scenario: Scenario, setting: str) -> None:
    spoiling = [row.setting for row in compared(scenario).audit if row.status == "different" and not row.expected]
    assert spoiling == [setting]


def test_an_a_a_candidate_may_start_one_ulp_away() -> None:
    comparison = compared(recipe={"kind": "bf16"}, require_fp8=False)
    different = {row.setting for row in comparison.audit if row.status == "different"}
    assert different == {"task.one_ulp", "facts.initial_weights_sha256"}
    assert all(row.expected for row in comparison.audit if row.status == "different")


def test_the_least_converted_candidate_speaks_for_all() -> None:
    e = simulate()
    digest = next(job.digest for job in e.jobs if job.role.arm == "candidate" and job.role.pair == 3)
    record = e.records[digest]
    assert record.conversion
    e.records[digest] = replace(record, conversion=record.conversion.model_copy(update={"quantized_tensors": 0}))
    found = of(e).conversion
    assert found
    assert found.quantized_tensors == 0
    e.records[digest] = replace(record, conversion=None)
    assert of(e).conversion is None


def test_a_candidate_of_which_a_layer_ran_without_fp8_speaks_for_all() -> None:
    """Also where it quantised more tensors than another."""
    e = simulate()
    digests = [job.digest for job in e.jobs if job.role.arm == "candidate"]
    changes: list[dict[str, Any]] = [{"not_in_fp8": ("layers.0.mlp.up",)}, {"quantized_tensors": 1}]
    for digest, change in zip(digests, changes, strict=False):
        record = e.records[digest]
        assert record.conversion
        e.records[digest] = replace(record, conversion=record.conversion.model_copy(update=change))
    found = of(e).conversion
    assert found
    assert found.not_in_fp8 == ("layers.0.mlp.up",)


def test_schedules_that_have_not_decayed_are_told() -> None:
    e = simulate(design="screen")
    assert of(e).decayed
    jobs = [job.model_copy(update={"task": job.task.model_copy(update={"cooldown": None})}) for job in e.jobs]
    assert not compare(e.plan, "screen", jobs, {}).decayed
    short = simulate(design="scratch")
    jobs = [job.model_copy(update={"task": job.task.model_copy(update={"last_step": 599})}) for job in short.jobs]
    assert not compare(short.plan, "scratch", jobs, {}).decayed


def test_identical_pairs_are_counted() -> None:
    assert compared(Scenario(identical=True)).identical_pairs == 4
    assert compared().identical_pairs == 0


@pytest.mark.parametrize(
    ("values", "digits"),
    [([2.04, 1.99], 3), ([1.0379230e1], 7), ([2.5], 2), ([float("nan"), 2.1], 2), ([float("nan")], 9), ([1 / 3, 2.0], 9)],
)
def test_significant_digits(values: list[float], digits: int) -> None:
    assert significant_digits(values) == digits


def test_digits_of_a_log() -> None:
    assert compared(Scenario(digits=4)).step_digits == 4
    assert compared().step_digits is None
