"""Emulated against real FP8: the same recipe, start and data order run both ways, compared pair by pair."""

from collections.abc import Iterator, Sequence

import numpy as np

from fp8migrate.report.recipe_rows import RecipeRow, RowGap
from fp8migrate.report.words import percent
from fp8migrate.statistics.noninferiority import bounds

_ENDPOINTS = {"gap": "Learned quality", "training": "Training loss", "penalty": "Forward penalty"}
_EMULATED = "emulated:"
# Of an interval with 95 % between its bounds: 2.5 % beyond each.
_ALPHA = 0.025


def emulated_against_real(rows: Sequence[RecipeRow]) -> list[str]:
    """Lines of Markdown: each recipe that has rows of both kinds, with the mean over pairs of emulated less real.

    Empty where no recipe has, or no two of their pairs are the same.
    """
    real = {row.written: row for row in rows if not row.emulated}
    found = [
        (row.written.removeprefix(_EMULATED), name, difference)
        for row in rows
        if row.emulated and row.written.removeprefix(_EMULATED) in real
        for name, difference in _differences(row, real[row.written.removeprefix(_EMULATED)])
    ]
    if not found:
        return []
    lines = ["", "## Emulated less real FP8", "", "| Recipe | Of the BF16 loss | Mean | 95 % interval | Pairs | |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for recipe, name, values in found:
        mean = bounds(values, alpha=_ALPHA)
        agree = "agree" if mean.lower <= 0 <= mean.upper else "differ"
        between = f"{percent(mean.lower)} to {percent(mean.upper)}"
        lines.append(f"| {recipe} | {name} | {percent(mean.mean)} | {between} | {mean.n} | {agree} |")
    lines += [
        "",
        f"Paired by start and data order. By chance alone about one interval in 20 leaves 0 out; here are {len(found)}.",
    ]
    return lines


def _differences(emulated: RecipeRow, real: RecipeRow) -> Iterator[tuple[str, list[float]]]:
    """By endpoint, over the pairs that both have; only where two or more are there and all are finite."""
    for attribute, name in _ENDPOINTS.items():
        one: RowGap | None = getattr(emulated, attribute)
        other: RowGap | None = getattr(real, attribute)
        if one is None or other is None or one.start != other.start:
            continue
        others = dict(other.by_pair)
        values = [value - others[pair] for pair, value in one.by_pair if pair in others]
        if len(values) >= 2 and np.isfinite(values).all():
            yield name, values
