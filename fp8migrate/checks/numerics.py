"""Phase 2: is FP8 right on one checkpoint? Inference first, then one training step, resume and accumulation.

A check here fails only what is clearly broken. How much FP8 costs over a whole run is for the pairs to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

from fp8migrate.checks.check import Check, Need, Results
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.stability import crash_words, is_non_finite
from fp8migrate.checks.words import counted, labels, some
from fp8migrate.evidence.schema import IntegrationEvidence, LayerAgreement


@dataclass(frozen=True)
class Threshold:
    """A number that separates clearly broken from possibly sound, and where it comes from."""

    value: float
    unit: str
    source: str


KL_NATS = Threshold(0.1, "nats", "sound recipes cost +0.25 % of the loss, about 0.005 nats; this is twenty times as much")
TOP1_AGREEMENT = Threshold(0.8, "share", "two sound forwards agree on all but near ties")
OUTPUT_SQNR_DB = Threshold(
    3.0, "dB", "E4M3 operands have about 31 dB each and errors add through depth; at 3 dB half of the output is error"
)
GRADIENT_SQNR_DB = Threshold(
    0.0, "dB", "E5M2 gradients have about 25 dB and errors add through depth; at 0 dB the error is as large as the gradient"
)
GEMM_SQNR_DB = Threshold(
    6.0,
    "dB",
    "a layer by itself: sound FP8 recipes have 23 dB and more on the quickstart's weights, NVFP4 13, a cast without scales 8, "
    "one scale per tensor in four bits 4; at 6 dB a quarter of the energy is error",
)
# How far a forecast from samples of the BF16 run may be off before it is said that it was.
FORECAST_ERROR_DB = Threshold(6.0, "dB", "a factor of two in the noise's amplitude")
ACCUMULATION_ERROR = Threshold(
    0.5, "relative", "keeping one micro-batch of several loses at least √½ of the gradient; FP8 rounding twice stays below"
)


def ran(evidence: IntegrationEvidence) -> Results:
    """Both jobs ended; an error in them is the candidate's, for BF16 had trained this model before."""
    missing = [run for run in evidence.runs if run.outcome is None]
    if missing:
        return [CheckResult("integration_ran", "inconclusive", f"{some(labels(missing))} missing", "TRUNCATED")]
    if bad := [run for run in evidence.runs if is_non_finite(run)]:
        return [
            CheckResult("integration_ran", "fail", f"NaN or Inf in {some(labels(bad))}", "NON_FINITE", evidence=labels(bad))
        ]
    if crashed := [run for run in evidence.runs if run.outcome and run.outcome.cause == "error"]:
        shown = some([f"{run.label} {crash_words(run)}" for run in crashed])
        return [CheckResult("integration_ran", "fail", shown, "CANDIDATE_CRASH", evidence=labels(crashed))]
    if cut := [run for run in evidence.runs if run.outcome and run.outcome.status != "completed"]:
        # Out of memory included: these jobs hold both precisions at once, so it is not the candidate alone.
        shown = some(
            [f"{run.label} {(run.outcome.cause or run.outcome.status).replace('_', ' ')}" for run in cut if run.outcome]
        )
        return [CheckResult("integration_ran", "inconclusive", shown, "TRUNCATED", evidence=labels(cut))]
    return [CheckResult("integration_ran", "pass", f"{counted(len(evidence.runs), 'job')} ran through")]


def inference(evidence: IntegrationEvidence) -> Results:
    """Next-token distributions under an FP8 forward against BF16, on the same weights and tokens."""
    logits = evidence.logits
    assert logits is not None
    numbers = (logits.kl_nats, logits.top1_agreement, logits.loss_bf16, logits.loss_fp8)
    if not all(isfinite(number) for number in numbers):
        bad = tuple(row.name for row in evidence.outputs if not row.finite)
        summary = "NaN or Inf in the logits of the FP8 forward" + (f", first in the output of {bad[0]}" if bad else "")
        return [CheckResult("inference", "fail", summary, "NON_FINITE", evidence=bad)]
    broken = logits.kl_nats > KL_NATS.value or logits.top1_agreement < TOP1_AGREEMENT.value
    summary = (
        f"FP8 forward against BF16: KL {logits.kl_nats:.2g} nats, same top token {100 * logits.top1_agreement:.1f} %, "
        f"loss {logits.loss_bf16:.4f} → {logits.loss_fp8:.4f} ({logits.tokens:,} tokens)"
    )
    status: CheckStatus = "fail" if broken else "pass"
    code = "INFERENCE_MISMATCH" if broken else ""
    return [CheckResult("inference", status, summary, code, measured=logits.kl_nats, limit=KL_NATS.value, unit="nats")]


def outputs(evidence: IntegrationEvidence) -> Results:
    """Output of every linear layer, FP8 against BF16."""
    return [_agreement("outputs", "layer output", evidence.outputs, OUTPUT_SQNR_DB, "OUTPUT_MISMATCH")]


def layers(evidence: IntegrationEvidence) -> Results:
    """Each GEMM of each layer by itself, on the same operands: nothing has added up through depth."""
    return [_agreement("layers", "GEMM", evidence.layers, GEMM_SQNR_DB, "LAYER_MISMATCH")]


def forecast(evidence: IntegrationEvidence) -> Results:
    """The advisor's forecast from the BF16 run against what each GEMM then lost in FP8."""
    errors = _forecast_errors(evidence)
    typical, worst = median(abs(error) for error in errors), max(errors, key=abs)
    summary = f"the advisor foretold {len(errors)} GEMMs to {typical:.1f} dB of SQNR (median error; the largest {worst:+.1f})"
    off = typical > FORECAST_ERROR_DB.value
    status: CheckStatus = "inconclusive" if off else "pass"
    code = "FORECAST_OFF" if off else ""
    return [CheckResult("forecast", status, summary, code, measured=typical, limit=FORECAST_ERROR_DB.value, unit="dB")]


def _forecast_errors(evidence: IntegrationEvidence) -> list[float]:
    """Measured less foretold, where both are numbers."""
    pairs = [(row.sqnr_db, row.forecast_db) for row in evidence.layers if row.forecast_db is not None]
    return [measured - foretold for measured, foretold in pairs if isfinite(measured) and isfinite(foretold)]


def nothing_foretold(evidence: IntegrationEvidence) -> str | None:
    return None if _forecast_errors(evidence) else "the advisor foretold nothing"


def nothing_in_fp8(evidence: IntegrationEvidence) -> str | None:
    """An A/A test has no layer in FP8 to look at."""
    conversion = evidence.conversion
    aa_test = not evidence.require_fp8 and conversion is not None and conversion.fp8_flops_share == 0
    return "no layer is in FP8" if aa_test else None


def gradients(evidence: IntegrationEvidence) -> Results:
    """Gradient of every parameter after one step; a gradient that FP8 rounds to zero is lost, whatever its size."""
    lost = [row.name for row in evidence.gradients if row.finite and row.fp8_norm == 0 and row.reference_norm > 0]
    if lost:
        summary = f"zero in FP8 and not in BF16: the gradients of {some(lost)}"
        return [CheckResult("gradients", "fail", summary, "GRADIENT_LOST", evidence=tuple(lost))]
    return [_agreement("gradients", "gradient", evidence.gradients, GRADIENT_SQNR_DB, "GRADIENT_MISMATCH")]


def _agreement(check: str, what: str, rows: Sequence[LayerAgreement], least: Threshold, code: str) -> CheckResult:
    if bad := [row.name for row in rows if not row.finite]:
        return CheckResult(check, "fail", f"NaN or Inf in the {what} of {some(bad)}", "NON_FINITE", evidence=tuple(bad))
    worst = min(rows, key=lambda row: row.sqnr_db)
    below = [row.name for row in rows if row.sqnr_db < least.value]
    summary = f"worst {what} {worst.sqnr_db:.1f} dB SQNR ({worst.name}) of {len(rows)}"
    if below:
        summary += f"; {counted(len(below), what)} below {least.value:g} dB, where {least.source.split('; ')[-1]}"
    status: CheckStatus = "fail" if below else "pass"
    return CheckResult(
        check,
        status,
        summary,
        code if below else "",
        measured=worst.sqnr_db,
        limit=least.value,
        unit="dB",
        evidence=tuple(below) or (worst.name,),
    )


def resume(evidence: IntegrationEvidence) -> Results:
    """Save, load, step gives the same bits as not having stopped."""
    differing = evidence.resume_mismatches
    assert differing is not None
    if differing:
        summary = (
            f"save, load and step differs from not having stopped in {counted(len(differing), 'tensor')}: {some(differing)}"
        )
        return [
            CheckResult("resume", "fail", summary, "RESUME_MISMATCH", measured=float(len(differing)), limit=0.0, unit="tensors")
        ]
    return [
        CheckResult(
            "resume",
            "pass",
            "save, load and step: the same bits as not having stopped",
            measured=0.0,
            limit=0.0,
            unit="tensors",
        )
    ]


def accumulation(evidence: IntegrationEvidence) -> Results:
    """The gradient of N micro-batches equals that of one batch, as far as FP8 rounding lets it."""
    error, reference = evidence.accumulation_error, evidence.accumulation_error_bf16
    assert error is not None
    if not isfinite(error):
        return [CheckResult("accumulation", "fail", "NaN or Inf in an accumulated gradient", "NON_FINITE")]
    broken = error > ACCUMULATION_ERROR.value
    beside = "" if reference is None else f" (BF16: {reference:.2g})"
    summary = f"N micro-batches against one batch: relative error of the gradient {error:.2g}{beside}"
    status: CheckStatus = "fail" if broken else "pass"
    code = "ACCUMULATION_MISMATCH" if broken else ""
    return [CheckResult("accumulation", status, summary, code, measured=error, limit=ACCUMULATION_ERROR.value, unit="relative")]


RUNS: Need[IntegrationEvidence] = Need("any integration job", lambda e: bool(e.runs), "TRUNCATED")
LOGITS: Need[IntegrationEvidence] = Need("the comparison of logits", lambda e: e.logits is not None, "TRUNCATED")
OUTPUTS: Need[IntegrationEvidence] = Need("the comparison of layer outputs", lambda e: bool(e.outputs), "TRUNCATED")
GRADIENTS: Need[IntegrationEvidence] = Need("the comparison of gradients", lambda e: bool(e.gradients), "TRUNCATED")
LAYERS: Need[IntegrationEvidence] = Need("the comparison of layers by themselves", lambda e: bool(e.layers), "TRUNCATED")
RESUME: Need[IntegrationEvidence] = Need("the resume test", lambda e: e.resume_mismatches is not None, "TRUNCATED")
ACCUMULATION: Need[IntegrationEvidence] = Need("the accumulation test", lambda e: e.accumulation_error is not None, "TRUNCATED")

CHECKS = (
    Check("integration_ran", ran, (RUNS,)),
    Check("inference", inference, (LOGITS,)),
    Check("outputs", outputs, (OUTPUTS,)),
    Check("layers", layers, (LAYERS,), skip=nothing_in_fp8),
    Check("forecast", forecast, skip=nothing_foretold, advisory=True),
    Check("gradients", gradients, (GRADIENTS,)),
    Check("resume", resume, (RESUME,)),
    Check("accumulation", accumulation, (ACCUMULATION,)),
)
