"""Numbers and names as people read them. Every format of the report says the same thing in the same words."""

import math
import re
from collections.abc import Mapping

from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.schema import Endpoint, RunFact
from fp8migrate.jobs import Arm, DesignName

ARM_WORDS: Mapping[Arm, str] = {
    "baseline": "baseline (BF16)",
    "candidate": "candidate",
    "control": "control (FP8 off)",
    "floor": "floor (BF16 + 1 ulp)",
    "sensitivity": "bad recipe (positive control)",
}
SHORT_ARM_WORDS: Mapping[Arm, str] = {
    "baseline": "baseline",
    "candidate": "candidate",
    "control": "control",
    "floor": "floor",
    "sensitivity": "bad recipe",
}
ENDPOINT_WORDS: Mapping[Endpoint, str] = {
    "validation_loss": "Validation loss, BF16 forward",
    "validation_loss_fp8": "Validation loss, FP8 forward",
    "logged_validation_loss": "Validation loss, as logged",
    "training_loss": "Training loss, each arm's own forward",
    "forward_penalty": "FP8 forward penalty",
}
ENDPOINT_MEANING: Mapping[Endpoint, str] = {
    "validation_loss": "learned quality",
    "validation_loss_fp8": "what a model served in FP8 shows",
    "logged_validation_loss": "held-out loss; under which forward is not known",
    "training_loss": "as logged during training",
    "forward_penalty": "the candidate's weights, FP8 forward against BF16",
}
DESIGN_WORDS: Mapping[DesignName, str] = {
    "baseline": "Baseline",
    "integration": "Integration",
    "screen": "Screen",
    "long_screen": "Long screen",
    "branch": "Branch",
    "scratch": "From scratch",
    "groups": "Finished runs",
    "items": "Item evaluations",
}
# Units in which a number is a fraction of something, and is told in percent. A gap has a sign, a share has none.
GAP_UNITS = frozenset({"relative"})
SHARE_UNITS = frozenset({"share"})

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def clean(text: str) -> str:
    """Text that every format can carry: what XML forbids (control characters, lone surrogates) becomes U+FFFD."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n").replace("\r", "\n"))


def number(value: float, digits: int = 4) -> str:
    """A number with `digits` significant digits, a true minus sign, and words for what is not finite."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def percent(value: float | None, *, signed: bool = True, unit: bool = True) -> str:
    """0.00014 -> "+0.014 %". Three decimals below 1 %, fewer above, more where the number would round to zero."""
    if value is None:
        return "—"
    suffix = " %" if unit else ""
    if not math.isfinite(value):
        return number(value) + suffix
    scaled = value * 100
    size = abs(scaled)
    if size >= 1e5:
        digits = f"{size:.2e}"
    elif size and size < 0.001:
        digits = f"{size:.1g}" if size >= 1e-4 else f"{size:.0e}"
    else:
        digits = f"{size:.{3 if size < 1 else 2 if size < 10 else 1}f}"
    sign = "−" if scaled < 0 else "+" if signed and scaled > 0 else ""
    return sign + digits.replace("-", "−") + suffix


def decibels(value: float) -> str:
    """24.66 -> "24.7 dB"."""
    return f"{value:.1f} dB".replace("-", "−") if math.isfinite(value) else f"{number(value)} dB"


def share(value: float | None) -> str:
    """A part of a whole: 0.923 -> "92.3 %"."""
    if value is None:
        return "—"
    return f"{value * 100:.1f} %" if math.isfinite(value) else number(value)


def limit(value: float) -> str:
    """A margin: percent without a sign or needless zeros: 0.0025 -> "0.25 %"."""
    return f"{number(value * 100)} %"


def bounds(lower: float | None, upper: float | None) -> str:
    """The two one-sided 95 % bounds as "[−0.051, +0.079] %"; a dash where there are too few pairs for any."""
    if lower is None or upper is None:
        return "—"
    return f"[{percent(lower, unit=False)}, {percent(upper, unit=False)}] %"


def measured(result: CheckResult) -> str:
    """What a check measured. Only what has an interval can lie on either side of zero, and gets a sign."""
    return _in_unit(result.measured, result.unit, signed=result.interval is not None)


def held_against(result: CheckResult) -> str:
    """The check's limit."""
    if result.limit is not None and result.unit in GAP_UNITS:
        return limit(result.limit)
    return _in_unit(result.limit, result.unit, signed=False)


def _in_unit(value: float | None, unit: str, *, signed: bool) -> str:
    if value is None:
        return "—"
    if unit in GAP_UNITS:
        return percent(value, signed=signed)
    if unit in SHARE_UNITS:
        return share(value)
    if unit == "points":
        return f"{signed_number(100 * value) if signed else f'{100 * value:.3g}'} points"
    if unit == "probability":
        return f"p = {number(value, 2)}"
    return f"{number(value)} {unit}".rstrip()


def interval(result: CheckResult) -> str:
    """A check's interval; one pair has an infinite one, which is none."""
    if result.interval is None:
        return "—"
    low, high = result.interval
    if not (math.isfinite(low) or math.isfinite(high)):
        return "no bounds"
    if result.unit in GAP_UNITS:
        return bounds(low, high)
    if result.unit in SHARE_UNITS:
        return f"[{share(low)}, {share(high)}]"
    if result.unit == "points":
        return f"[{signed_number(100 * low)}, {signed_number(100 * high)}] points"
    return f"[{number(low)}, {number(high)}] {result.unit}".rstrip()


def signed_number(value: float) -> str:
    """−1.23, with the sign as people write it."""
    return f"{value:+.2f}".replace("-", "−")


def duration(seconds: float) -> str:
    """How long something took, in the two largest units that matter."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def start(fraction: float | None, design: DesignName) -> str:
    """Where the pairs of one cell start."""
    if design == "groups":
        return "as they are"
    if fraction is None:
        return "from the initial weights" if design == "scratch" else "from its checkpoint"
    return f"from {number(fraction * 100)} %"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def middle_cut(text: str, width: int) -> str:
    """Long names keep both ends: what a layer is stands at the end, where it is at the start."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def how_it_ended(run: RunFact) -> str:
    """One run's outcome in a few words, a missing run included."""
    outcome = run.outcome
    if run.fault and run.non_finite_at is None:
        return run.fault
    if outcome is None:
        return "missing"
    words = outcome.status if outcome.cause is None else f"{outcome.status}: {outcome.cause.replace('_', ' ')}"
    if outcome.status == "completed" and outcome.last_step < run.expected_last_step:
        words = "cut short"
    if run.non_finite_at is not None and outcome.cause != "non_finite":
        words += f", not finite at step {number(run.non_finite_at)}"
    if run.missing_steps:
        words += f", {plural(run.missing_steps, 'step')} missing"
    if outcome.attempts > 1:
        words += f" (started {outcome.attempts} times)"
    return words
