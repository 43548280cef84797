"""The options of `compare` as a policy: what a command line says, in the words of a policy file."""

from collections.abc import Sequence
from typing import Any, get_args

import orjson
from pydantic import ValidationError

from fp8migrate.errors import UsageError
from fp8migrate.plan.policy import EvidenceName, Policy
from fp8migrate.plan.schema import NAMED_MARGINS
from fp8migrate.records.readers.base import parse_columns

_LOSSES = ("validation_loss", "training_loss")


def policy_of(
    *,
    logs: Sequence[str],
    runs: str,
    skip_runs: str,
    against: Sequence[str],
    against_runs: str,
    against_skip_runs: str,
    floor: Sequence[str],
    margin: str,
    serve: str,
    serve_margin: str,
    forward_penalty: str,
    endpoint: Sequence[str],
    min_speedup: float | None,
    max_memory: float | None,
    attest: Sequence[str],
    require: Sequence[str],
    format_name: str,
    columns: Sequence[str],
    name: str,
) -> Policy:
    """UsageError where an option is not what it may be."""
    if serve_margin and serve != "fp8":
        raise UsageError(
            "has no effect without --serve fp8", where="--serve-margin", next_step="Add --serve fp8, or leave it away."
        )
    metrics: dict[str, Any] = {loss: {} for loss in _endpoints(endpoint)}
    if min_speedup is not None:
        metrics["speed"] = {"at_least": min_speedup}
    if max_memory is not None:
        metrics["memory"] = {"at_most": max_memory}
    content = {
        "name": name,
        "baseline": {"logs": logs, "runs": runs, "skip_runs": skip_runs},
        "candidate": {"logs": against, "runs": against_runs, "skip_runs": against_skip_runs},
        "floor": {"logs": floor} if floor else None,
        "format": format_name,
        "columns": parse_columns(columns),
        "margin": margin if margin in NAMED_MARGINS else margin_of(margin, "--margin"),
        "serve": serve,
        "serve_margin": margin_of(serve_margin, "--serve-margin") if serve_margin else None,
        "forward_penalty": fraction(forward_penalty, "--forward-penalty") if forward_penalty else None,
        "metrics": metrics,
        "require": [_evidence(word, "--require") for text in require for word in text.split(",")],
        "attest": dict(_attested(text) for text in attest),
    }
    try:
        return Policy.model_validate_json(orjson.dumps(content))
    except ValidationError as error:
        raise _refused(error) from None


def fraction(text: str, option: str, also: str = "") -> float:
    """`0.005` or `0.5%` as a fraction."""
    number = text.strip().removesuffix("%")
    try:
        value = float(number) / (100 if number != text.strip() else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 0.5:
        next_step = f"Allowed: {also}a fraction from 0 to 0.5 (0.005), or percent (0.5%)."
        raise UsageError(f"{text!r} is no fraction", where=option, next_step=next_step)
    return value


# A margin this wide passes nearly anything. Who writes 0.25 most likely means 0.25 %.
WIDE_MARGIN = 0.05


def margin_of(text: str, option: str) -> float:
    """A margin as a fraction; a wide one must be written in percent, so that 0.25 is not taken for 25 %."""
    value = fraction(text, option, f"{', '.join(NAMED_MARGINS)}, or ")
    if value >= WIDE_MARGIN and not text.strip().endswith("%"):
        next_step = f"Write {text.strip()}% if that is meant, or {100 * value:g}% for a margin that wide."
        raise UsageError(f"{text!r} is a margin of {100 * value:g} %", where=option, next_step=next_step)
    return value


def _endpoints(words: Sequence[str]) -> list[str]:
    found = [word for text in words for word in text.split(",")]
    for word in found:
        if word not in _LOSSES:
            raise UsageError(f"no endpoint {word!r}", where="--endpoint", next_step=f"Allowed: {', '.join(_LOSSES)}.")
    return found


def _evidence(word: str, option: str) -> str:
    allowed = get_args(EvidenceName)
    if word not in allowed:
        raise UsageError(f"no evidence {word!r}", where=option, next_step=f"Allowed: {', '.join(allowed)}.")
    return word


def _attested(text: str) -> tuple[str, str]:
    name, _, said = text.partition("=")
    who, colon, what = said.partition(":")
    if not (who.strip() and colon and what.strip()):
        next_step = "Write it as NAME='WHO: WHAT', for example fp8='J. Doe: kernel trace of run 7'."
        raise UsageError(f"{text!r} does not say who says what", where="--attest", next_step=next_step)
    return _evidence(name.strip(), "--attest"), said.strip()


def _refused(error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "compare"
    what = str(first.get("ctx", {}).get("error") or first["msg"])
    return UsageError(what, where=where, next_step="See `fp8migrate compare --help`.")
