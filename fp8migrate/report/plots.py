"""The report's figures. Each takes plain numbers and a canvas, and returns a matplotlib figure; nothing global is touched.

A canvas is as wide as the place where the figure will stand, so text has one size on a desk and on a phone. Lines and
points differ in dash and marker too: the figures can be read without colour, and in print.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fp8migrate.report.cells import Gap
from fp8migrate.report.curves import Band, Line, decimate
from fp8migrate.report.svg import COLOURS
from fp8migrate.report.words import ENDPOINT_WORDS, SHORT_ARM_WORDS, bounds, clean, middle_cut, number, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# All thin lines of one figure share this many points per pixel of width: the page stays small however many pairs there are.
THIN_POINTS_PER_PIXEL = 9
# How far a gap axis reaches beyond the margin before it is cut off (with an arrow and the number).
MAX_MARGINS_SHOWN = 12.0
# Of a figure of named values: the part of its width that the names take, and the pixels that a character takes.
NAME_SHARE, NAME_CHARACTER = 0.5, 6.4


@dataclass(frozen=True)
class Canvas:
    """Width in CSS pixels, and whether panels stand under one another."""

    width: int
    narrow: bool


WIDE = Canvas(960, narrow=False)
HALF = Canvas(400, narrow=True)
NARROW = Canvas(358, narrow=True)


@dataclass(frozen=True, eq=False)
class CurvePanel:
    """Curves of all pairs with one start. Loss: baseline and candidate. Gap: candidate, floor and positive control."""

    title: str
    candidate: tuple[Line, ...]
    candidate_mean: Line | None
    baseline: tuple[Line, ...] = ()
    baseline_mean: Line | None = None
    floor: Band | None = None
    sensitivity: Line | None = None
    margin: float | None = None
    broken_at: tuple[float, ...] = field(default=())


@dataclass(frozen=True)
class Level:
    """One named value of a bar of points."""

    name: str
    value: float


def _figure(canvas: Canvas, height: float) -> "Figure":
    from matplotlib.figure import Figure  # matplotlib takes a second to import

    return Figure(figsize=(canvas.width / 72, height / 72))


def _panels(canvas: Canvas, panels: Sequence[CurvePanel], panel_height: float) -> tuple["Figure", list["Axes"]]:
    """A grid with one place per panel, margins in pixels."""
    columns = 1 if canvas.narrow else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    top, bottom, left, right, between = 24.0, 40.0, 58.0, 10.0, 62.0
    height = rows * panel_height + (rows - 1) * between + top + bottom
    figure = _figure(canvas, height)
    column_width = (canvas.width - left - right - (columns - 1) * between) / columns
    axes = []
    for place in range(len(panels)):
        row, column = divmod(place, columns)
        x = left + column * (column_width + between)
        y = bottom + (rows - 1 - row) * (panel_height + between)
        axes.append(figure.add_axes((x / canvas.width, y / height, column_width / canvas.width, panel_height / height)))
    return figure, axes


def _frame(axes: "Axes", title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title(clean(title))
    axes.set_xlabel("step")
    axes.grid(visible=False, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.spines["left"].set_visible(False)


def _thin(axes: "Axes", lines: Sequence[Line], points: int, **style: Any) -> None:
    for line in lines:
        small = decimate(line, max(30, points))
        axes.plot(small.steps, small.values, linewidth=0.6, alpha=0.3, **style)


def loss_figure(panels: Sequence[CurvePanel], canvas: Canvas, unit: str = "nats per token") -> "Figure":
    """Training loss over steps: every pair thin, the mean over pairs bold; a cross where a candidate stopped being finite."""
    figure, places = _panels(canvas, panels, 230 if len(panels) < 3 and not canvas.narrow else 170)
    points = THIN_POINTS_PER_PIXEL * canvas.width // max(1, sum(len(panel.baseline) + len(panel.candidate) for panel in panels))
    for panel, axes in zip(panels, places, strict=True):
        _thin(axes, panel.baseline, points, color=COLOURS["baseline"])
        _thin(axes, panel.candidate, points, color=COLOURS["candidate"])
        if panel.baseline_mean is not None:
            axes.plot(panel.baseline_mean.steps, panel.baseline_mean.values, color=COLOURS["baseline"], linewidth=2)
        if panel.candidate_mean is not None:
            mean = panel.candidate_mean
            axes.plot(mean.steps, mean.values, color=COLOURS["candidate"], linewidth=2, linestyle=(0, (4, 2)))
        _frame(axes, panel.title)
        axes.set_ylim(*_loss_limits(panel))
        _mark_broken(axes, panel.broken_at)
    places[0].set_ylabel(clean(unit))
    return figure


def _loss_limits(panel: CurvePanel) -> tuple[float, float]:
    """Room for all finite losses, but a candidate that explodes does not press the rest into a line."""
    ours = [line.finite for line in panel.baseline if line.finite.size]
    theirs = [line.finite for line in panel.candidate if line.finite.size]
    everything = np.concatenate([*ours, *theirs]) if ours or theirs else np.array([0.0, 1.0])
    usual = np.concatenate(ours) if ours else everything
    low, high = float(everything.min()), float(min(everything.max(), 1.15 * usual.max()))
    room = 0.04 * (high - low) or 0.1
    return low - room, high + room


def _mark_broken(axes: "Axes", steps: Sequence[float]) -> None:
    """Where losses stopped being finite: crosses on the upper edge."""
    top = axes.get_ylim()[1]
    axes.plot(steps, [top] * len(steps), "x", color=COLOURS["margin"], markersize=9, markeredgewidth=2, clip_on=False)


def gap_figure(panels: Sequence[CurvePanel], canvas: Canvas) -> "Figure":
    """Relative gap over steps: every pair thin, the mean bold, the floor as a band, the margin dashed."""
    figure, places = _panels(canvas, panels, 200 if len(panels) < 3 and not canvas.narrow else 160)
    points = THIN_POINTS_PER_PIXEL * canvas.width // max(1, sum(len(panel.candidate) for panel in panels))
    for panel, axes in zip(panels, places, strict=True):
        axes.axhline(0, color=COLOURS["muted"], linewidth=0.8)
        if panel.floor is not None:
            axes.fill_between(
                panel.floor.steps, panel.floor.low, panel.floor.high, color=COLOURS["floor"], alpha=0.35, linewidth=0
            )
        _thin(axes, panel.candidate, points, color=COLOURS["candidate"])
        if panel.sensitivity is not None:
            bad = panel.sensitivity
            axes.plot(bad.steps, bad.values, color=COLOURS["sensitivity"], linewidth=1.6, linestyle=(0, (1, 1.5)))
        if panel.candidate_mean is not None:
            mean = panel.candidate_mean
            axes.plot(mean.steps, mean.values, color=COLOURS["candidate"], linewidth=2.2)
        if panel.margin is not None:
            axes.axhline(panel.margin, color=COLOURS["margin"], linewidth=1.4, linestyle=(0, (6, 3)))
        _frame(axes, panel.title)
        _percent_axis(axes.yaxis)
        _gap_limits(axes, panel)
        _mark_broken(axes, panel.broken_at)
    places[0].set_ylabel("gap to baseline, %")
    return figure


def _percent_axis(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value * 100, 9))))


def _gap_limits(axes: "Axes", panel: CurvePanel) -> None:
    """All of the candidate's gaps where that leaves the margin visible; what is cut off is told in words."""
    margin = panel.margin or 0.0025
    values = [line.finite for line in panel.candidate if line.finite.size]
    if panel.floor is not None:
        values += [panel.floor.low, panel.floor.high]
    everything = np.concatenate(values) if values else np.array([0.0])
    low, high = float(everything.min()), float(everything.max())
    cut = MAX_MARGINS_SHOWN * margin
    axes.set_ylim(max(min(low, -0.3 * margin), -cut) - 0.1 * margin, min(max(high, 1.4 * margin), cut) + 0.1 * margin)
    told = [(f"▲ candidate up to {percent(high)}", "candidate")] if high > cut else []
    worst = float(panel.sensitivity.finite.max()) if panel.sensitivity is not None and panel.sensitivity.finite.size else 0.0
    told += [(f"▲ bad recipe up to {percent(worst)}", "sensitivity")] if worst > axes.get_ylim()[1] else []
    for place, (words, role) in enumerate(told):
        height = 0.93 - 0.11 * place
        axes.text(0.99, height, words, transform=axes.transAxes, ha="right", va="top", color=COLOURS[role])


@dataclass(frozen=True)
class _Scale:
    """The gap axis of a forest plot: what lies outside is drawn as an arrow at the edge."""

    low: float
    high: float

    def clip(self, value: float) -> float:
        return min(max(value, self.low), self.high)


def _forest_scale(rows: Sequence[Gap]) -> _Scale:
    """Wide enough for the margin and for what is judged; the positive control may lie outside."""
    margin = max((row.margin or 0.0 for row in rows), default=0.0) or 0.0025
    points, ends = [0.0], [0.0]
    for row in rows:
        if row.arm != "sensitivity":
            points += [float(value) for value in row.values if math.isfinite(value)]
            ends += [end for end in (row.lower, row.upper) if end is not None and math.isfinite(end)]
    far, half = MAX_MARGINS_SHOWN * margin, MAX_MARGINS_SHOWN / 2 * margin
    high = max(1.6 * margin, min(far, max(points)), min(half, max(ends)))
    low = min(-0.6 * margin, max(-far, min(points)), max(-half, min(ends)))
    return _Scale(low - 0.06 * (high - low), high + 0.06 * (high - low))


_ARM_MARKERS = {"candidate": "o", "control": "s", "floor": "D", "sensitivity": "^"}


@dataclass(frozen=True)
class _Row:
    """A line of a forest plot: a group's heading, or one cell."""

    y: float
    heading: str = ""
    gap: Gap | None = None
    label: str = ""


def forest_figure(rows: Sequence[Gap], canvas: Canvas, *, headings: bool = True) -> "Figure":
    """Every start, endpoint and arm: pairs as small points, their mean and its one-sided 95 % bounds, the margin."""
    pitch = (40.0 if canvas.narrow else 23.0) if len(rows) <= 30 else (36.0 if canvas.narrow else 20.0)
    places, height = _forest_places(rows, pitch, headings=headings)
    left, right = (4.0, 4.0) if canvas.narrow else (252.0, 236.0)
    bottom = 38.0
    total = height + bottom + 4
    figure = _figure(canvas, total)
    axes = figure.add_axes((left / canvas.width, bottom / total, (canvas.width - left - right) / canvas.width, height / total))
    scale = _forest_scale(rows)
    axes.set_xlim(scale.low, scale.high)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    _percent_axis(axes.xaxis)
    axes.set_xlabel("gap to baseline, %   (right: worse)")
    axes.axvline(0, color=COLOURS["muted"], linewidth=0.8)
    _forest_margins(axes, places, (0.0, pitch / 2) if canvas.narrow else (-pitch / 2, pitch / 2))
    for place in places:
        if place.gap is None:
            _forest_text(axes, canvas, place, place.heading, ("", ""), bold=True)
            continue
        _forest_row(axes, place.gap, place.y + (pitch * 0.18 if canvas.narrow else 0), scale)
        _forest_text(axes, canvas, place, place.label, _forest_numbers(place.gap, canvas), bold=False)
    return figure


def _forest_places(rows: Sequence[Gap], pitch: float, *, headings: bool) -> tuple[list[_Row], float]:
    """Rows from the top down, with a heading before each endpoint and a gap before each start."""
    places: list[_Row] = []
    y = 0.0
    previous: Gap | None = None
    for row in rows:
        if headings and (previous is None or row.endpoint != previous.endpoint):
            y += 6 if previous else 0
            places.append(_Row(y + 11, heading=ENDPOINT_WORDS[row.endpoint]))
            y += 22
        elif previous is not None and row.fraction != previous.fraction:
            y += 5
        start = "" if row.fraction is None else f"{number(row.fraction * 100)} % · "
        places.append(_Row(y + pitch / 2, gap=row, label=f"{start}{SHORT_ARM_WORDS[row.arm]}, n = {row.counted}"))
        y += pitch
        previous = row
    return places, y + 4


def _forest_margins(axes: "Axes", places: Sequence[_Row], reach: tuple[float, float]) -> None:
    """The margin beside the rows that it judges, and beside no others."""
    for place in places:
        if place.gap is not None and place.gap.margin is not None:
            axes.plot(
                [place.gap.margin] * 2,
                [place.y + reach[0], place.y + reach[1]],
                color=COLOURS["margin"],
                linewidth=1.4,
                linestyle=(0, (5, 2.5)),
            )


def _forest_row(axes: "Axes", row: Gap, y: float, scale: _Scale) -> None:
    colour, marker = COLOURS.get(row.arm, COLOURS["ink"]), _ARM_MARKERS.get(row.arm, "o")
    finite = [float(value) for value in row.values if math.isfinite(value)]
    inside = [value for value in finite if scale.low < value < scale.high]
    axes.plot(inside, [y + 4.5] * len(inside), marker, color=colour, markersize=3.2, alpha=0.55, linestyle="none")
    if row.lower is not None and row.upper is not None and math.isfinite(row.lower) and math.isfinite(row.upper):
        axes.plot([scale.clip(row.lower), scale.clip(row.upper)], [y, y], color=colour, linewidth=1.8)
        _arrows(axes, row.lower, row.upper, y, scale, colour)
    elif finite and max(finite) > scale.high:
        _arrows(axes, max(finite), max(finite), y, scale, colour)
    if row.pairs and not math.isfinite(row.mean):
        axes.plot([scale.high], [y], "x", color=COLOURS["margin"], markersize=8, markeredgewidth=2, clip_on=False)
    if scale.low < row.mean < scale.high:
        hollow = row.arm != "candidate"
        axes.plot(
            [row.mean],
            [y],
            marker,
            color=colour,
            markersize=7,
            markerfacecolor=COLOURS["paper"] if hollow else colour,
            markeredgewidth=1.6,
            linestyle="none",
        )


def _arrows(axes: "Axes", lower: float, upper: float, y: float, scale: _Scale, colour: str) -> None:
    """Arrow heads where an interval leaves the axis."""
    if upper > scale.high:
        axes.plot([scale.high], [y], ">", color=colour, markersize=6, clip_on=False, linestyle="none")
    if lower < scale.low:
        axes.plot([scale.low], [y], "<", color=colour, markersize=6, clip_on=False, linestyle="none")


def _forest_numbers(row: Gap, canvas: Canvas) -> tuple[str, str]:
    """Mean and bounds: two columns where there is room for them."""
    if not row.pairs:
        return "no pairs", ""
    if row.lower is None:
        return (percent(row.mean), "") if not canvas.narrow else ("", percent(row.mean))
    told = bounds(row.lower, row.upper)
    return (percent(row.mean), told) if not canvas.narrow else ("", f"{percent(row.mean)}  {told}")


def _forest_text(axes: "Axes", canvas: Canvas, place: _Row, label: str, numbers: tuple[str, str], *, bold: bool) -> None:
    """Label and numbers: beside the plot where there is room, above the row's own line where there is not."""
    from matplotlib.transforms import blended_transform_factory

    assert axes.figure is not None
    across = blended_transform_factory(axes.figure.transFigure, axes.transData)
    lift = 11.0 if canvas.narrow and not bold else 0.0
    size = 11.5 if canvas.narrow else 12.5
    weight = "bold" if bold else "normal"
    left, right = 2 / canvas.width, 1 - 2 / canvas.width
    axes.text(left, place.y - lift, label, transform=across, va="center", ha="left", fontsize=size, fontweight=weight)
    for text, x in zip(numbers, (1 - 150 / canvas.width, right), strict=True):
        if text:
            axes.text(x, place.y - lift, text, transform=across, va="center", ha="right", fontsize=size)


@dataclass(frozen=True)
class Finals:
    """Final values of the runs of both arms at one endpoint. unit: of the values."""

    title: str
    unit: str
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]


# Each arm has a mark of its own, so that nothing hangs on colour.
_FINAL_MARKS = (("baseline", "BF16", "s"), ("candidate", "FP8", "o"))


def finals_figure(panels: Sequence[Finals], canvas: Canvas) -> "Figure":
    """Every run as a mark, its arm's mean as a bar: how far runs scatter, and how far the arms are apart."""
    height, gap, bottom, top = 62.0, 44.0, 40.0, 24.0
    total = top + len(panels) * height + (len(panels) - 1) * gap + bottom
    figure = _figure(canvas, total)
    left, right = 108.0, 14.0
    for place, panel in enumerate(panels):
        base = total - top - (place + 1) * height - place * gap
        box = (left / canvas.width, base / total, (canvas.width - left - right) / canvas.width, height / total)
        _finals(figure.add_axes(box), panel)
    return figure


def _finals(axes: "Axes", panel: Finals) -> None:
    for y, (arm, _, mark) in enumerate(_FINAL_MARKS):
        values: tuple[float, ...] = getattr(panel, arm)
        finite = [value for value in values if math.isfinite(value)]
        # Runs with nearly the same end would hide each other on one line.
        ys = [y + 0.16 * ((place % 3) - 1) for place in range(len(finite))]
        axes.plot(
            finite, ys, mark, color=COLOURS[arm], markersize=5.5, markerfacecolor="none", markeredgewidth=1.3, linestyle="none"
        )
        if finite:
            mean = sum(finite) / len(finite)
            axes.plot([mean, mean], [y - 0.36, y + 0.36], color=COLOURS[arm], linewidth=2.4)
    axes.set_ylim(1.6, -0.6)
    axes.set_yticks([0, 1], [f"{words}, n = {len(getattr(panel, arm))}" for arm, words, _ in _FINAL_MARKS])
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.04)
    axes.set_xlabel(panel.unit)
    axes.set_title(panel.title)


def levels_figure(levels: Sequence[Level], canvas: Canvas, unit: str, limit: float | None) -> "Figure":
    """Named values as points on a line each (SQNR per layer), with the limit that they are held against."""
    pitch, bottom = 19.0, 38.0
    height = max(1, len(levels)) * pitch + 6
    total = height + bottom
    figure = _figure(canvas, total)
    left = canvas.width * NAME_SHARE
    axes = figure.add_axes((left / canvas.width, bottom / total, 1 - (left + 40) / canvas.width, height / total))
    finite = [level.value for level in levels if math.isfinite(level.value)]
    low = min([*finite, limit if limit is not None else math.inf, 0.0])
    high = max([*finite, limit if limit is not None else -math.inf, low + 1])
    axes.set_xlim(low, high + 0.04 * (high - low))
    axes.set_ylim(len(levels) * pitch + 3, -3)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(unit)
    if limit is not None:
        axes.axvline(limit, color=COLOURS["margin"], linewidth=1.4, linestyle=(0, (5, 2.5)))
    _level_points(axes, levels, pitch, low)
    for place, level in enumerate(levels):
        _level_text(axes, level, (place + 0.5) * pitch, canvas)
    return figure


def _level_points(axes: "Axes", levels: Sequence[Level], pitch: float, low: float) -> None:
    """A line with a point for each value; a cross at the edge where the value is not finite."""
    at = [((place + 0.5) * pitch, level.value) for place, level in enumerate(levels)]
    finite = [(y, value) for y, value in at if math.isfinite(value)]
    ys, values = [y for y, _ in finite], [value for _, value in finite]
    axes.hlines(ys, low, values, color=COLOURS["candidate"], linewidth=1, alpha=0.5)
    axes.plot(values, ys, "o", color=COLOURS["candidate"], markersize=5)
    broken = [y for y, value in at if not math.isfinite(value)]
    axes.plot([low] * len(broken), broken, "x", color=COLOURS["margin"], markersize=6, markeredgewidth=2, clip_on=False)


def _decibels(value: float) -> str:
    return f"{value:.1f}".replace("-", "−") if math.isfinite(value) else number(value)


def _level_text(axes: "Axes", level: Level, y: float, canvas: Canvas) -> None:
    from matplotlib.transforms import blended_transform_factory

    assert axes.figure is not None
    across = blended_transform_factory(axes.figure.transFigure, axes.transData)
    name = middle_cut(clean(level.name), int(canvas.width * NAME_SHARE / NAME_CHARACTER))
    axes.text(2 / canvas.width, y, name, transform=across, va="center", ha="left", fontsize=11.5)
    axes.text(1 - 2 / canvas.width, y, _decibels(level.value), transform=across, va="center", ha="right", fontsize=11.5)
