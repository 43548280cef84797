"""From the points that a reader collected to series whose steps rise: resumes, repeats, digits, missing values."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fp8migrate.records.collect import MAX_STEP, Collector, Column, RawRun
from fp8migrate.records.logs import LogRecord, LogSeries, Overlap, Quantity
from fp8migrate.records.quantities import Meaning, meaning
from fp8migrate.records.source import Source

Array = NDArray[np.float64]

# More steps back than this are no resumes: the log is out of order.
MAX_RESUMES = 100
NO_COLUMNS: Mapping[str, str] = {}


def assemble(
    collected: Collector, source: Source, format_name: str, columns: Mapping[str, str] = NO_COLUMNS
) -> tuple[LogRecord, ...]:
    """The runs of one log that hold any point. columns: names in the log by ours, where a user gave them."""
    runs = [run for run in collected.runs if run.columns]
    found = []
    seen: dict[str, int] = {}
    for number, run in enumerate(runs, 1):
        name = run.name or (f"{source.name}#{number}" if len(runs) > 1 else source.name)
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            name = f"{name}#{seen[name]}"
        series, unused, notes = _series(run, columns)
        more = [f"run {number} of {len(runs)} in this file"] if len(runs) > 1 and not run.name else []
        found.append(
            LogRecord(
                source=source.name,
                name=name,
                format=format_name,
                series=series,
                expected_last_step=run.expected_last_step,
                failure=run.failure,
                crash=run.crash,
                settings=run.settings,
                settings_from=(source.name,) if run.settings else (),
                notes=(*more, *collected.notes, *run.notes, *notes),
                unused=unused,
                lines=source.num_lines,
                not_understood=collected.not_understood + source.long_lines,
                example=collected.example or (f"{source.long_lines} very long lines" if source.long_lines else ""),
            )
        )
    return tuple(found)


def _series(run: RawRun, columns: Mapping[str, str]) -> tuple[dict[Quantity, LogSeries], tuple[str, ...], list[str]]:
    """One series a quantity: of several columns of one, the best-ranked, then the one with most points."""
    candidates: dict[Quantity, list[tuple[Meaning, str, Column]]] = {}
    unused = list(run.unused)
    for label, column in run.columns.items():
        known = meaning(label)
        # Only then do its points count without those that are missing.
        column.settle()
        if known is None:
            unused.append(label)
        else:
            candidates.setdefault(known.quantity, []).append((known, label, column))
    found: dict[Quantity, LogSeries] = {}
    notes = []
    for quantity, several in candidates.items():
        several.sort(key=lambda item: (item[0].rank, -item[2].points))
        known, label, column = several[0]
        one, problems = _one(quantity, columns.get(label, label), known, column)
        if one is not None:
            found[quantity] = one
        notes += problems
        unused += [label for _, label, _ in several[1:]]
    return found, tuple(unused), notes


def _one(quantity: Quantity, label: str, known: Meaning, column: Column) -> tuple[LogSeries | None, list[str]]:
    steps, values, digits = column.numbers()
    notes = [f"{label}: {column.missing} values missing or no numbers"] if column.missing else []
    with np.errstate(invalid="ignore"):
        usable = (steps >= 0) & (steps <= MAX_STEP)
    if not usable.all():
        left = int((~usable).sum())
        notes.append(f"{label}: {left} points left out, their step is negative, not finite or above 2^53")
        steps, values = steps[usable], values[usable]
    if steps.size == 0:
        return None, [*notes, f"{label}: no value"]
    order, overlaps, repeated, disordered = later_counts(steps)
    overlaps = tuple(_replaced(overlap, steps, values, order) for overlap in overlaps)
    series = LogSeries(
        name=quantity,
        label=label,
        unit=known.unit,
        axis=column.axis,
        steps=steps[order],
        values=values[order] * known.factor,
        digits=digits,
        averaging=column.averaging,
        overlaps=overlaps,
        repeated=repeated,
        disordered=disordered,
    )
    return series, notes


def _replaced(overlap: Overlap, steps: Array, values: Array, order: NDArray[np.int64]) -> Overlap:
    """What a resume replaced: whether it was finite, and how far above the values that count."""
    kept = np.zeros(steps.size, dtype=bool)
    kept[order] = True
    old = np.flatnonzero(~kept & (steps >= overlap.first) & (steps <= overlap.last))
    if not old.size:
        return overlap
    broken = old[~np.isfinite(values[old])]
    latest = old[np.isfinite(values[old])][-10:]
    counting = np.interp(steps[latest], steps[order], values[order]) if order.size and latest.size else np.empty(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        above = values[latest] / counting - 1 if counting.size else counting
    above = above[np.isfinite(above)]
    return replace(
        overlap,
        non_finite=float(steps[broken[0]]) if broken.size else None,
        excess=float(np.median(above)) if above.size else None,
    )


def later_counts(steps: Array) -> tuple[NDArray[np.int64], tuple[Overlap, ...], int, int]:
    """Indices of the points that count, in rising order of steps, with the overlaps, repeats and disorder left behind.

    Where the steps go back, the run was resumed: everything from there on replaces what was logged at or after that step.
    """
    back = np.flatnonzero(np.diff(steps) <= 0)
    if back.size == 0:
        return np.arange(steps.size), (), 0, 0
    repeats = back[steps[back] == steps[back + 1]]
    resumes = back[steps[back] > steps[back + 1]]
    if resumes.size > MAX_RESUMES:
        # A stable sort puts the later of two points at one step last.
        order = np.argsort(steps, kind="stable")
        last = np.append(np.diff(steps[order]) > 0, True)
        return order[last], (), int((~last).sum()), int(resumes.size)
    overlaps = []
    keep = np.ones(steps.size, dtype=bool)
    for index in resumes:
        start, stop = steps[index + 1], steps[index]
        replaced = np.flatnonzero(keep[: index + 1] & (steps[: index + 1] >= start))
        keep[replaced] = False
        overlaps.append(Overlap(float(start), float(stop), int(replaced.size)))
    kept = np.flatnonzero(keep)
    last = np.append(np.diff(steps[kept]) > 0, True)
    return kept[last], tuple(overlaps), int(repeats.size), 0
