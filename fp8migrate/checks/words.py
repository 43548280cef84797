"""How checks write numbers: short, with a sign, in percent of the loss."""

from collections.abc import Sequence
from math import isfinite

from fp8migrate.evidence.schema import Cell, Endpoint, RunFact

ENDPOINT_WORDS: dict[Endpoint, str] = {
    "validation_loss": "validation loss",
    "validation_loss_fp8": "validation loss served in FP8",
    "logged_validation_loss": "validation loss as logged",
    "training_loss": "training loss",
    "forward_penalty": "FP8 forward penalty",
}


def percent(value: float, *, signed: bool = True) -> str:
    """0.00014 → `+0.014 %`. Three decimals below 1 %, two above."""
    if not isfinite(value):
        return "no bound"
    scaled = 100 * value
    digits = 3 if abs(scaled) < 1 else 2
    text = f"{scaled:+.{digits}f}" if signed else f"{scaled:.{digits}f}"
    return text.replace("-", "−") + " %"


def limit(value: float) -> str:
    """A margin as it was written: 0.0025 → `0.25 %`."""
    return f"{100 * value:.4g} %"


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def metric_of(endpoint: Endpoint) -> str:
    """The name by which a gate policy knows an endpoint."""
    return endpoint.removeprefix("logged_")


def counted_runs(cell: Cell) -> str:
    """`4 pairs`, or `3 against 5 runs` of unpaired groups."""
    if cell.groups is None:
        return counted(len(cell.deltas), "pair")
    baseline, candidate = (len(side) for side in cell.groups)
    return f"{baseline} against {counted(candidate, 'run')}"


def some(names: Sequence[str], most: int = 3) -> str:
    """`a, b, c and 4 more`."""
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def labels(runs: Sequence[RunFact]) -> tuple[str, ...]:
    return tuple(run.label for run in runs)


def short(text: str, most: int = 16) -> str:
    """A long value (a digest) by its head."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
