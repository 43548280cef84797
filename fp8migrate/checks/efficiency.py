"""Is it worth it? Speed, memory and gradient norm of finished runs, and the worth-it verdict (PARITY.md 8)."""

from collections.abc import Callable
from math import isfinite

from fp8migrate.checks.check import Check, Results
from fp8migrate.checks.parity import extra_training
from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.words import percent
from fp8migrate.evidence.efficiency import Metric
from fp8migrate.evidence.schema import Comparison, Efficiency

# PARITY.md 8: what a move must gain at equal quality, unless the policy says otherwise.
WORTH = 1.05

_WORDS = {"speed": "speed", "memory": "peak memory", "grad_norm": "gradient norm"}
_FAIL = {"speed": "TOO_SLOW", "memory": "TOO_MUCH_MEMORY", "grad_norm": "GRADIENTS_GREW"}
_OPEN = {"speed": "SPEED_UNKNOWN", "memory": "MEMORY_UNKNOWN", "grad_norm": "GRADIENTS_UNKNOWN"}


def _judge(metric: Metric) -> Callable[[Comparison], Results]:
    """Candidate / baseline of one measure; held against a limit where the policy has one, told where it has not."""

    def measure(comparison: Comparison) -> Results:
        found, most = _found(comparison, metric), _limit(comparison, metric)
        if found is not None:
            return [_measure(found, most)]
        summary = f"{_WORDS[metric]}: not every run logs it, so that the limit {most:g} cannot be judged"
        return [CheckResult(metric, "inconclusive", summary, _OPEN[metric], metric=metric)]

    return measure


def _absent(metric: Metric) -> Callable[[Comparison], str | None]:
    """Nothing to say where the logs lack it, unless a policy gates on it."""

    def reason(comparison: Comparison) -> str | None:
        lacking = _found(comparison, metric) is None and _limit(comparison, metric) is None
        return f"no {_WORDS[metric]} in every log" if lacking else None

    return reason


def _found(comparison: Comparison, metric: str) -> Efficiency | None:
    measured = comparison.groups.efficiency if comparison.groups else ()
    return next((one for one in measured if one.metric == metric), None)


def _limit(comparison: Comparison, metric: str) -> float | None:
    return comparison.groups.limits.get(metric) if comparison.groups else None


def _measure(one: Efficiency, most: float | None) -> CheckResult:
    b = one.bounds
    ratio = f"{b.mean:.3g} × the baseline's"
    if one.metric == "speed":
        ratio = f"{b.mean:.3g} × as fast as BF16" + (f", {percent(b.mean - 1)}" if b.mean < 2 else "")
    if isfinite(b.lower) and isfinite(b.upper):
        ratio += f", from {b.lower:.3g} to {b.upper:.3g}"
    how = "one run in an arm: spread within it" if one.within else f"{len(one.baseline)} against {len(one.candidate)} runs"
    summary = f"{_WORDS[one.metric]}: {ratio} ({how}; {one.excluded})"
    status, code = _against(one, most)
    interval = (b.lower, b.upper) if isfinite(b.lower) and isfinite(b.upper) else None
    return CheckResult(
        one.metric,
        status,
        summary + ("" if most is None else f"; limit {most:g}"),
        code,
        measured=b.mean,
        limit=most,
        unit="ratio",
        interval=interval,
        advisory=most is None,
        metric=one.metric,
    )


def _against(one: Efficiency, most: float | None) -> tuple[CheckStatus, str]:
    """Passes or fails with its whole interval, else it is open."""
    if most is None:
        return "pass", ""
    lower, upper = one.bounds.lower, one.bounds.upper
    if one.metric == "speed":
        good, bad = lower >= most, upper < most
    else:
        good, bad = upper <= most, lower > most
    if good:
        return "pass", ""
    return ("fail", _FAIL[one.metric]) if bad else ("inconclusive", _OPEN[one.metric])


def worth_it(comparison: Comparison) -> Results:
    """Speed-up at equal quality: its lower bound over the BF16 training that makes up for the gap's upper bound."""
    asked, measured = _limit(comparison, "worth_it"), _found(comparison, "speed")
    least, advisory = WORTH if asked is None else asked, asked is None
    cell = next((c for e in comparison.primary if (c := comparison.cell("candidate", e, None)) and c.finite), None)
    if cell is None or measured is None or not (isfinite(cell.bounds.upper) and isfinite(measured.bounds.lower)):
        why = "speed and loss are needed of at least two runs in each arm"
        return [_worth("inconclusive", "WORTH_UNKNOWN", f"worth unknown: {why}", least, advisory=advisory)]
    speed, gap = measured.bounds, cell.bounds
    most, fewest = (_extra(comparison, bound) for bound in (gap.upper, gap.lower))
    if most is None or fewest is None:
        why = "the loss curve does not tell what a gap costs in tokens"
        return [_worth("inconclusive", "WORTH_UNKNOWN", f"worth unknown: {why}", least, advisory=advisory)]
    low, high = speed.lower / (1 + most), speed.upper / (1 + fewest)
    cost = f"the gap's upper bound costs {percent(most)} tokens" if most else "at no cost in tokens"
    said = f"speed-up at equal quality {low:.3g} to {high:.3g}, asked {least:g} ({cost})"
    if low > least:
        return [_worth("pass", "WORTH_IT", f"worth it: {said}", least, (low, high), advisory=advisory)]
    if high < least:
        return [_worth("fail", "NOT_WORTH_IT", f"not worth it: {said}", least, (low, high), advisory=advisory)]
    return [_worth("inconclusive", "WORTH_UNKNOWN", f"worth unknown: {said}", least, (low, high), advisory=advisory)]


def _extra(comparison: Comparison, gap: float) -> float | None:
    return 0.0 if gap <= 0 else extra_training(comparison, gap, None)


def _worth(
    status: CheckStatus, code: str, summary: str, limit: float, interval: tuple[float, float] | None = None, *, advisory: bool
) -> CheckResult:
    measured = interval[0] if interval else None
    return CheckResult(
        "worth_it", status, summary, code, measured, limit, "ratio", interval, advisory=advisory, metric="worth_it"
    )


def no_speed(comparison: Comparison) -> str | None:
    """Without a speed there is nothing to weigh; a policy that gates on it is told so."""
    lacking = _found(comparison, "speed") is None and _limit(comparison, "worth_it") is None
    return "no speed in every log, so that nothing can be said on its worth" if lacking else None


CHECKS = (
    Check("speed", _judge("speed"), skip=_absent("speed")),
    Check("memory", _judge("memory"), skip=_absent("memory")),
    Check("grad_norm", _judge("grad_norm"), skip=_absent("grad_norm")),
    Check("worth_it", worth_it, skip=no_speed),
)
