"""Did the candidate run in FP8? By what was converted, by what was quantised, and by whether anything changed at all."""

from fp8migrate.checks.check import Check, Need, Results
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
    missing = _layers_without(comparison.conversion)
    return missing or _judged(fault, comparison.conversion, comparison.require_fp8)


def _layers_without(conversion: Conversion | None) -> Results:
    """Of runs that we started each converted layer says whether every one of its passes was in FP8."""
    if conversion is None or not conversion.not_in_fp8:
        return []
    summary = f"{counted(len(conversion.not_in_fp8), 'layer')} ran without FP8: {some(conversion.not_in_fp8)}"
    return [CheckResult(NAME, "fail", summary, code="BF16_KERNELS", evidence=conversion.not_in_fp8)]


def integration_coverage(evidence: IntegrationEvidence) -> Results:
    missing = _layers_without(evidence.conversion)
    return missing or _judged(conversion_fault(evidence.conversion), evidence.conversion, evidence.require_fp8)


def kernels(evidence: IntegrationEvidence) -> Results:
    """The kernels that a GPU ran: of every converted layer by itself, and of a whole training step."""
    asked = sum(layer.asked + layer.forward_again for layer in evidence.layer_kernels) * evidence.micro_batches
    if bad := [layer for layer in evidence.layer_kernels if layer.low_precision_gemms < layer.asked]:
        shown = some([f"{each.layer} {each.low_precision_gemms} of {each.asked}" for each in bad])
        summary = f"{counted(len(bad), 'layer')} with fewer GEMM kernels in FP8 than asked for: {shown}"
        names = tuple(dict.fromkeys(name for layer in bad for name in layer.names))
        return [CheckResult("kernels", "fail", summary, "BF16_KERNELS", evidence=names)]
    low = [kernel for kernel in evidence.step_kernels if kernel.kind in ("fp8_gemm", "fp4_gemm")]
    ran, gemms = sum(kernel.calls for kernel in low), [k for k in evidence.step_kernels if "gemm" in k.kind]
    if ran < asked:
        summary = f"a training step ran {ran} FP8 GEMM kernels, the layers' GEMMs are {asked}"
        return [CheckResult("kernels", "fail", summary, "BF16_KERNELS", measured=float(ran), limit=float(asked))]
    share = sum(kernel.microseconds for kernel in low) / sum(kernel.microseconds for kernel in gemms)
    summary = (
        f"a training step ran {ran} FP8 GEMM kernels ({100 * share:.0f} % of the time in GEMMs), "
        f"{len(evidence.layer_kernels)} layers each all that was asked"
    )
    return [CheckResult("kernels", "pass", summary, measured=float(ran), limit=float(asked), unit="kernels")]


def no_fp8_kernels(evidence: IntegrationEvidence) -> str | None:
    """Emulation and A/A tests have none to look for."""
    if evidence.emulated:
        return "FP8 is emulated: there are no FP8 kernels"
    conversion = evidence.conversion
    nothing = conversion is None or conversion.fp8_flops_share == 0
    return "no layer is in FP8" if nothing and not evidence.require_fp8 else None


KERNELS: Need[IntegrationEvidence] = Need(
    "the profile of the kernels that ran", lambda e: bool(e.layer_kernels and e.step_kernels), "FP8_NOT_ACTIVE"
)


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
INTEGRATION_CHECKS = (Check(NAME, integration_coverage), Check("kernels", kernels, (KERNELS,), skip=no_fp8_kernels))
