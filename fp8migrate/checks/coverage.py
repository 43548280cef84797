"""Did the candidate run in FP8? By what was converted, by what was quantised, and by whether anything changed at all."""

from fp8migrate.checks.check import Check, Results
from fp8migrate.checks.schema import CheckResult
from fp8migrate.checks.words import counted, some
from fp8migrate.evidence.schema import Comparison, IntegrationEvidence
from fp8migrate.records.schema import Conversion

NAME = "fp8_active"


def comparison_coverage(comparison: Comparison) -> Results:
    """Conversion, quantised tensors, and no pair with a difference of exactly zero."""
    fault = conversion_fault(comparison.conversion)
    if fault is None and comparison.identical_pairs:
        fault = f"{counted(comparison.identical_pairs, 'pair')} with the same loss at every step, bit for bit"
    return _judged(fault, comparison.conversion, comparison.require_fp8)


def integration_coverage(evidence: IntegrationEvidence) -> Results:
    return _judged(conversion_fault(evidence.conversion), evidence.conversion, evidence.require_fp8)


def conversion_fault(conversion: Conversion | None) -> str | None:
    """Why this is not proof of FP8, or None where it is."""
    if conversion is None:
        return "no run says what was converted"
    if conversion.fp8_flops_share <= 0:
        return f"no GEMM was converted ({conversion.requested} was asked for)"
    if conversion.quantized_tensors is None:
        return "no run says how many tensors it quantised"
    if conversion.quantized_tensors <= 0:
        return "layers were converted, yet no tensor was quantised while the run went on"
    return None


def _judged(fault: str | None, conversion: Conversion | None, require_fp8: bool) -> Results:
    share = conversion.fp8_flops_share if conversion else None
    if fault and not require_fp8:
        summary = f"{fault}; accepted, the plan says require_fp8: false (an A/A test)"
        return [CheckResult(NAME, "pass", summary, measured=share, unit="share")]
    if fault:
        return [CheckResult(NAME, "inconclusive", fault, code="FP8_NOT_ACTIVE", measured=share, limit=0.0, unit="share")]
    assert conversion is not None
    converted = sum(layer.converted for layer in conversion.layers)
    summary = (
        f"{100 * conversion.fp8_flops_share:.1f} % of the GEMM FLOPs in FP8, "
        f"{converted} of {len(conversion.layers)} GEMM sites, {counted(conversion.quantized_tensors or 0, 'tensor')} quantised"
    )
    results = [CheckResult(NAME, "pass", summary, measured=share, limit=0.0, unit="share")]
    if conversion.unmatched_filters:
        summary = f"keep_bf16 names no layer: {some(conversion.unmatched_filters)}"
        results.append(CheckResult("keep_bf16", "inconclusive", summary, code="FILTER_UNMATCHED", advisory=True))
    return results


CHECKS = (Check(NAME, comparison_coverage),)
INTEGRATION_CHECKS = (Check(NAME, integration_coverage),)
