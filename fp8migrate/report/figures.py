"""Which figures a report has: evidence → panels → inline SVG, each with words for those who do not see it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from fp8migrate.evidence.schema import BaselineEvidence, Cell, Comparison, LayerAgreement, PairCurves
from fp8migrate.records.schema import Series
from fp8migrate.report import plots
from fp8migrate.report.cells import Gap
from fp8migrate.report.curves import (
    Line,
    band_of,
    block_edges,
    block_medians,
    first_non_finite,
    gap_of,
    line_of,
    mean_of,
)
from fp8migrate.report.plots import HALF, NARROW, WIDE, Canvas, CurvePanel, Level
from fp8migrate.report.svg import figure_style, inline_svg
from fp8migrate.report.words import ENDPOINT_WORDS, SHORT_ARM_WORDS, bounds, limit, number, percent, plural, start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The lowest are the ones to look at; the table beside the figure has all.
MAX_LEVELS = 20


@dataclass(frozen=True)
class Drawing:
    """One figure, in one or two widths; the page shows the one that fits."""

    wide: Markup
    narrow: Markup | None
    caption: str = ""


def _draw(draw: "Callable[[Canvas], Figure]", ident: str, title: str, description: str, canvases: Sequence[Canvas]) -> Drawing:
    with figure_style():
        drawn = [
            inline_svg(draw(canvas), f"{ident}-{number}", title, description) for number, canvas in enumerate(canvases, start=1)
        ]
    return Drawing(drawn[0], drawn[1] if len(drawn) > 1 else None)


def _curves(comparison: Comparison, arm: str, fraction: float | None) -> list[PairCurves]:
    return [curves for curves in comparison.curves if (curves.arm, curves.fraction) == (arm, fraction)]


def _fractions_with_curves(comparison: Comparison) -> list[float | None]:
    return [fraction for fraction in comparison.fractions if _curves(comparison, "candidate", fraction)]


def _smoothed(lines: Sequence[Line], others: Sequence[Line] = ()) -> list[Line]:
    edges = block_edges([*lines, *others])
    return [block_medians(line, edges) for line in lines]


def _panel_title(comparison: Comparison, fraction: float | None) -> str:
    return "" if fraction is None else f"{start(fraction, comparison.design)} of the trunk"


def _loss_panel(comparison: Comparison, fraction: float | None) -> CurvePanel:
    pairs = _curves(comparison, "candidate", fraction)
    baseline, candidate = [line_of(pair.baseline) for pair in pairs], [line_of(pair.candidate) for pair in pairs]
    smooth = _smoothed([*baseline, *candidate])
    broken = [first_non_finite(line) for line in candidate]
    return CurvePanel(
        title=_panel_title(comparison, fraction),
        baseline=tuple(baseline),
        baseline_mean=mean_of(smooth[: len(pairs)]),
        candidate=tuple(candidate),
        candidate_mean=mean_of(smooth[len(pairs) :]),
        broken_at=tuple(step for step in broken if step is not None),
    )


def _gap_panel(comparison: Comparison, fraction: float | None) -> CurvePanel:
    """Gaps as medians of blocks that all arms share: a single step's gap is mostly noise."""
    pairs = _curves(comparison, "candidate", fraction)
    raw = {
        arm: [gap_of(curves) for curves in _curves(comparison, arm, fraction)] for arm in ("candidate", "floor", "sensitivity")
    }
    edges = block_edges([line for lines in raw.values() for line in lines])
    smooth = {arm: [block_medians(line, edges) for line in lines] for arm, lines in raw.items()}
    broken = [first_non_finite(line_of(pair.candidate)) for pair in pairs]
    return CurvePanel(
        title=_panel_title(comparison, fraction),
        candidate=tuple(smooth["candidate"]),
        candidate_mean=mean_of(smooth["candidate"]),
        floor=band_of(smooth["floor"]),
        sensitivity=mean_of(smooth["sensitivity"]),
        margin=comparison.margin,
        broken_at=tuple(step for step in broken if step is not None),
    )


def _last(line: Line | None) -> float | None:
    return None if line is None or not line.finite.size else float(line.finite[-1])


def _told(value: float | None, tell: Callable[[float], str]) -> str:
    return "not known" if value is None else tell(value)


def _unit(comparison: Comparison) -> str:
    """Of the losses, as the curves have it; runs of our own count nats per token."""
    unit = comparison.curves[0].baseline.unit if comparison.groups and comparison.curves else ""
    return unit or "nats per token"


def loss_drawing(comparison: Comparison, ident: str) -> Drawing | None:
    panels = [_loss_panel(comparison, fraction) for fraction in _fractions_with_curves(comparison)]
    if not panels:
        return None
    said = [
        f"{panel.title or 'At the end'}: mean over {plural(len(panel.candidate), 'pair')}, last block: baseline "
        f"{_told(_last(panel.baseline_mean), lambda x: number(x, 5))}, candidate "
        f"{_told(_last(panel.candidate_mean), lambda x: number(x, 5))} {_unit(comparison)}."
        + (f" Not finite from step {number(min(panel.broken_at))} on." if panel.broken_at else "")
        for panel in panels
    ]
    title = "Loss of baseline and candidate over steps"
    unit = _unit(comparison)
    return _draw(lambda canvas: plots.loss_figure(panels, canvas, unit), ident, title, " ".join(said), (WIDE, NARROW))


def gap_drawing(comparison: Comparison, ident: str) -> Drawing | None:
    panels = [_gap_panel(comparison, fraction) for fraction in _fractions_with_curves(comparison)]
    if not panels:
        return None
    said = [
        f"{panel.title or 'At the end'}: mean gap of the last block {_told(_last(panel.candidate_mean), percent)}."
        for panel in panels
    ]
    title = f"Relative gap in training loss over steps, margin {limit(comparison.margin)}"
    return _draw(lambda canvas: plots.gap_figure(panels, canvas), ident, title, " ".join(said), (WIDE, NARROW))


def _gap_words(row: Gap) -> str:
    where = "" if row.fraction is None else f", start {number(row.fraction * 100)} %"
    return (
        f"{ENDPOINT_WORDS[row.endpoint]}, {SHORT_ARM_WORDS[row.arm]}{where}: {percent(row.mean)} "
        f"{bounds(row.lower, row.upper)}, {plural(row.pairs, 'pair')}."
    )


def forest_drawing(rows: Sequence[Gap], ident: str) -> Drawing | None:
    if not rows:
        return None
    title = "Gap to the baseline by endpoint, start and arm, with one-sided 95 % bounds"
    # A reader of many rows has the table; reading out fifty would be no description.
    said = " ".join(_gap_words(row) for row in rows if row.arm == "candidate")
    return _draw(lambda canvas: plots.forest_figure(rows, canvas), ident, title, said, (WIDE, NARROW))


def strip_drawing(rows: Sequence[Gap], ident: str) -> Drawing | None:
    """A forest of one endpoint, for half the page's width."""
    if not rows:
        return None
    said = " ".join(_gap_words(row) for row in rows)
    title = ENDPOINT_WORDS[rows[0].endpoint]
    return _draw(lambda canvas: plots.forest_figure(rows, canvas, headings=False), ident, title, said, (HALF,))


def finals_drawing(comparison: Comparison, ident: str) -> Drawing | None:
    """Where each run ended, of the comparisons that have a single start."""
    panels = [
        plots.Finals(ENDPOINT_WORDS[cell.endpoint], _unit(comparison), *_ends(cell))
        for cell in comparison.cells
        if cell.arm == "candidate" and cell.fraction is None and cell.deltas and cell.endpoint != "forward_penalty"
    ]
    if not panels:
        return None
    said = [
        f"{panel.title}: BF16 {number(min(panel.baseline), 6)} to {number(max(panel.baseline), 6)}, "
        f"FP8 {number(min(panel.candidate), 6)} to {number(max(panel.candidate), 6)}."
        for panel in panels
    ]
    title = "Final values of the runs of both arms"
    return _draw(lambda canvas: plots.finals_figure(panels, canvas), ident, title, " ".join(said), (WIDE, NARROW))


def _ends(cell: Cell) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if cell.groups is not None:
        return cell.groups
    return tuple(d.baseline for d in cell.deltas), tuple(d.candidate for d in cell.deltas)


def baseline_drawings(baseline: BaselineEvidence) -> tuple[Drawing, ...]:
    drawn = []
    for name, series in (("loss", baseline.loss), ("gradient norm", baseline.grad_norm)):
        if series is not None and series.steps.size:
            drawn.append(_single(series, f"baseline-{name.replace(' ', '-')}", f"Baseline: {name}"))
    return tuple(drawn)


def _single(series: Series, ident: str, title: str) -> Drawing:
    line = line_of(series)
    mean = _smoothed([line])[0]
    broken = first_non_finite(line)
    panel = CurvePanel(
        title=title,
        baseline=(line,),
        baseline_mean=mean,
        candidate=(),
        candidate_mean=None,
        broken_at=() if broken is None else (broken,),
    )
    said = f"From {_told(_first(mean), number)} to {_told(_last(mean), number)} over {number(series.steps.size)} points."
    unit = series.unit or "norm"
    return _draw(lambda canvas: plots.loss_figure([panel], canvas, unit), ident, title, said, (HALF,))


def _first(line: Line) -> float | None:
    return float(line.finite[0]) if line.finite.size else None


def agreement_drawing(rows: Sequence[LayerAgreement], ident: str, what: str, lowest: float | None) -> Drawing | None:
    """The layers that agree least, worst first."""
    if not rows:
        return None
    levels = [Level(row.name, row.sqnr_db if row.finite else float("nan")) for row in worst_first(rows)][:MAX_LEVELS]
    title = f"Signal to quantization noise of {what}, lowest first"
    said = f"{plural(len(rows), 'value')}; the lowest is {number(levels[0].value, 3)} dB at {levels[0].name}."
    return _draw(lambda canvas: plots.levels_figure(levels, canvas, "SQNR, dB", lowest), ident, title, said, (HALF,))


def worst_first(rows: Sequence[LayerAgreement]) -> list[LayerAgreement]:
    """Non-finite ones before all others, then by SQNR."""
    return sorted(rows, key=lambda row: (row.finite and not math.isnan(row.sqnr_db), row.sqnr_db, row.name))
