"""Coverage by kernels: asked for FP8 and got BF16 is a FAIL, a profile that is missing no pass."""

from dataclasses import replace

import pytest

from fp8migrate.checks import judge_integration
from fp8migrate.checks.coverage import comparison_coverage
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.integration import integration_evidence
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import IntegrationEvidence, LayerKernels, StepKernel
from fp8migrate.verdict import decide
from tests.simulation import integration_records, make_plan, simulate

FP8, BF16 = "nvjet_sm90_qqtst_256x128_128x4_TNT", "nvjet_sm90_tst_256x128_64x4_TNT"


def evidence(*layers: tuple[int, int], step_calls: int, micro_batches: int = 2) -> IntegrationEvidence:
    """layers: (asked, ran in FP8). step_calls: FP8 GEMM kernels of the whole step."""
    plan = make_plan()
    jobs, records = integration_records(plan)
    found = integration_evidence(plan, jobs, records)
    rows = tuple(LayerKernels(f"layers.{n}", asked, ran, 3 - ran, 0, (FP8, BF16)) for n, (asked, ran) in enumerate(layers))
    step = (
        StepKernel(FP8, "fp8_gemm", step_calls, 300.0),
        StepKernel(BF16, "gemm", 9, 100.0),
        StepKernel("add", "other", 5, 50.0),
    )
    return replace(found, emulated=False, layer_kernels=rows, step_kernels=step, micro_batches=micro_batches)


def kernels(found: IntegrationEvidence) -> CheckResult:
    return next(result for result in judge_integration(found) if result.check == "kernels")


def test_all_that_was_asked_ran() -> None:
    found = kernels(evidence((3, 3), (1, 1), step_calls=8))
    assert (found.status, found.measured, found.limit) == ("pass", 8.0, 8.0)
    assert "75 % of the time in GEMMs" in found.summary


@pytest.mark.parametrize(
    ("layers", "step_calls", "said"),
    [
        (((3, 3), (3, 2)), 12, "layers.1 2 of 3"),
        (((3, 0), (3, 3)), 12, "layers.0 0 of 3"),
        (((3, 3), (3, 3)), 11, "ran 11 FP8 GEMM kernels, the layers' GEMMs are 12"),
    ],
)
def test_bf16_where_fp8_was_asked_for_fails(layers: tuple[tuple[int, int], ...], step_calls: int, said: str) -> None:
    found = evidence(*layers, step_calls=step_calls)
    result = kernels(found)
    assert (result.status, result.code) == ("fail", "BF16_KERNELS")
    assert said in result.summary
    assert decide(judge_integration(found)).name == "FAIL"


@pytest.mark.parametrize(("step_calls", "status"), [(8, "pass"), (7, "fail")])
def test_a_recomputed_forward_is_to_run_in_fp8_too(step_calls: int, status: str) -> None:
    found = evidence((3, 3), (3, 3), step_calls=step_calls, micro_batches=1)
    again = tuple(replace(layer, forward_again=True) for layer in found.layer_kernels)
    result = kernels(replace(found, layer_kernels=again))
    assert (result.status, result.measured, result.limit) == (status, float(step_calls), 8.0)


@pytest.mark.parametrize("missing", ["layer_kernels", "step_kernels"])
def test_without_a_profile_nothing_is_proved(missing: str) -> None:
    found = replace(evidence((3, 3), step_calls=6), **{missing: ()})
    assert kernels(found).code == "FP8_NOT_ACTIVE"
    assert decide(judge_integration(found)).name == "INCONCLUSIVE"


def test_emulation_has_no_kernels_to_look_for() -> None:
    assert kernels(replace(evidence(step_calls=0), emulated=True)).status == "skipped"


def test_a_run_that_says_a_layer_ran_without_fp8_fails() -> None:
    e = simulate(design="branch")
    comparison = compare(e.plan, "branch", e.jobs, e.records)
    assert comparison.conversion is not None
    conversion = comparison.conversion.model_copy(update={"not_in_fp8": ("layers.0.mlp.up",)})
    (found,) = comparison_coverage(replace(comparison, conversion=conversion))
    assert (found.status, found.code, found.evidence) == ("fail", "BF16_KERNELS", ("layers.0.mlp.up",))
