"""A live run as text: a line a block for logs and pipes, a view with curves for terminals. It draws a `LiveState`, no more.

Baseline and run differ in glyph as well as in colour (Okabe and Ito's, told apart by the colour-blind); without colour the view
says the same. Whatever comes from a log is cleaned of what a terminal would obey.
"""

import textwrap
from collections.abc import Iterator
from math import isfinite, log

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from fp8migrate.evidence.live import Alarm, LiveState
from fp8migrate.report.words import clean, limit, middle_cut, number, percent, plural
from fp8migrate.statistics.monitor import ALARM

Array = NDArray[np.float64]

_BASELINE, _RUN, _LIMIT, _BAD, _QUIET = "#0072B2", "#E69F00", "#009E73", "bold #D55E00", "dim"
_LABEL = 9
# Dots of a braille character, (row, column) → bit (Unicode, Braille Patterns).
_BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_MOST = 400


def one_line(text: str) -> str:
    """Text from a log or a command line, on one line, without control characters."""
    return clean(text).replace("\n", "⏎").replace("\t", " ")[:_MOST]


def step_words(state: LiveState) -> str:
    """`step 12,400 of 100,000`."""
    unit = state.axis.removesuffix("s")
    return f"no {unit} yet" if state.step is None else f"{unit} {number(state.step, 7)} of {number(state.last_step, 7)}"


def plain_line(state: LiveState) -> str:
    """The state after its last complete block, for whoever reads lines."""
    blocks = state.blocks
    parts = [f"block {blocks.complete} of {blocks.ends.size}"]
    if state.last_loss is not None:
        parts.append(f"loss {number(state.last_loss, 5)}{_beside_baseline(state)}")
    parts += [_gap_words(state), _wealth_words(state), _spike_words(state), _grad_norm_words(state)]
    return f"{step_words(state)}: {', '.join(part for part in parts if part)}"


def last_words(state: LiveState) -> Iterator[str]:
    """What a watch ends with. Never that the run is good: it can only fail one early."""
    if state.alarm is not None:
        yield alarm_words(state.alarm, state.axis)
        yield "The run is worse than its BF16 baseline by more than the margin and the noise: look at it before it goes on."
        return
    why = f" ({state.over})" if state.over else ""
    yield f"no alarm until {step_words(state)}{why}; a watch never passes a run"


def alarm_words(alarm: Alarm, axis: str) -> str:
    where = f"ALARM at {axis.removesuffix('s')} {number(alarm.step, 7)}: {alarm.what}"
    if alarm.kind == "wealth":
        return f"{where}, wealth {number(alarm.value, 3)} of {ALARM:g}"
    if alarm.kind == "diverged":
        return f"{where}, gap {percent(alarm.value)} (threshold {limit(alarm.limit)})"
    return where


def _beside_baseline(state: LiveState) -> str:
    return f" (baseline {number(float(state.baseline[-1]), 5)})" if state.baseline.size else ""


def _gap_words(state: LiveState) -> str:
    at = state.blocks.last
    if at is None:
        return ""
    bound = float(state.blocks.limits[at])
    held = f" (limit {percent(bound, signed=False)})" if isfinite(bound) else ""
    return f"gap {percent(float(state.blocks.gaps[at]))}{held}"


def _wealth(state: LiveState) -> float:
    return float(state.blocks.wealth[max(0, state.blocks.complete - 1)]) if state.blocks.complete else 1.0


def _wealth_words(state: LiveState) -> str:
    return f"wealth {number(_wealth(state), 3)} of {ALARM:g}" if state.floor is not None else "no bets without a floor"


def _spike_words(state: LiveState) -> str:
    own, theirs, count = state.spikes
    return f"{plural(own, 'spike')} ({'baseline' if count == 1 else f'{count} baselines'} {theirs})"


def _grad_norm_words(state: LiveState) -> str:
    own, baseline = state.grad_norm
    if own is None:
        return ""
    return f"gradient norm {number(own, 3)}" + (f" (baseline {number(baseline, 3)})" if baseline is not None else "")


def view(state: LiveState, width: int, height: int, heard: str = "") -> Text:
    """Everything at once, at most `width` columns and, where there is room for charts at all, `height` lines.

    heard: when the log last grew, or why it is waited for.
    """
    width = max(20, width)
    head = [
        Text(middle_cut(one_line(state.name), width), style="bold"),
        _words(f"{state.quantity.replace('_', ' ')}, {step_words(state)}", width),
    ]
    tail = [_wealth_bar(state, width), *_numbers(state, width)]
    tail += _said(state, width, heard)
    room = height - len(head) - len(tail) - 4
    rows = max(3, min(12, room // 2))
    charts = [*_loss_chart(state, width, rows), *_gap_chart(state, width, rows)] if room >= 6 else []
    lines = [*head, *charts, *tail]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n").join(lines)


def _words(text: str, width: int, style: str = "") -> Text:
    found = Text(text, style=style)
    found.truncate(width, overflow="ellipsis")
    return found


def _said(state: LiveState, width: int, heard: str) -> list[Text]:
    lines = []
    if state.alarm is not None:
        lines += _wrapped(alarm_words(state.alarm, state.axis), width, _BAD)
    for text in state.warnings:
        lines += _wrapped(f"warning: {one_line(text)}", width, _RUN)
    for text in state.notes[:2]:
        lines += _wrapped(f"note: {one_line(text)}", width, _QUIET)
    if heard:
        lines += _wrapped(one_line(heard), width, _QUIET)
    return lines


def _wrapped(text: str, width: int, style: str) -> list[Text]:
    return [Text(line, style=style) for line in textwrap.wrap(text, width, subsequent_indent="  ")]


def _wealth_bar(state: LiveState, width: int) -> Text:
    """From 1 to 20 on a logarithmic scale: it grows by factors."""
    words = _wealth_words(state)
    if state.floor is None:
        return Text(words, style=_QUIET)
    length = max(10, min(40, width - len(words) - 3))
    share = min(1.0, max(0.0, log(max(_wealth(state), 1e-12)) / log(ALARM)))
    filled = round(share * length)
    style = _BAD if filled == length else _RUN
    return Text.assemble(f"{words}  ", ("█" * filled, style), ("░" * (length - filled), _QUIET))


def _numbers(state: LiveState, width: int) -> list[Text]:
    loss = f"loss {number(state.last_loss, 5)}{_beside_baseline(state)}" if state.last_loss is not None else ""
    parts = [part for part in (loss, _gap_words(state), _spike_words(state), _grad_norm_words(state)) if part]
    lines = [""]
    for part in parts:
        joined = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(part)
    return [Text(line) for line in lines]


class _Chart:
    """Cells of a plot: x from left to right, y upwards; what lies outside is drawn on the edge."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.width, self.height, self.x, self.y = width, height, x, y
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def glyphs(self, x: Array, y: Array, glyph: str, style: str) -> None:
        for row, column in self._places(x, y, 1, 1):
            self._cells[row, column] = (glyph, style)

    def dots(self, x: Array, y: Array, style: str) -> None:
        bits: dict[tuple[int, int], int] = {}
        for row, column in self._places(x, y, 4, 2):
            cell = (row // 4, column // 2)
            bits[cell] = bits.get(cell, 0) | int(_BRAILLE[row % 4, column % 2])
        for cell, mask in bits.items():
            self._cells[cell] = (chr(0x2800 + mask), style)

    def _places(self, x: Array, y: Array, fine_y: int, fine_x: int) -> Iterator[tuple[int, int]]:
        columns, rows = self.width * fine_x, self.height * fine_y
        at, values = _by_column(x, y, self.x, columns)
        low, high = self.y
        shares = np.clip((values - low) / (high - low), 0, 1)
        yield from zip((rows - 1 - np.round(shares * (rows - 1)).astype(int)).tolist(), at.tolist(), strict=True)

    def lines(self, labels: tuple[str, str]) -> list[Text]:
        found = []
        for row in range(self.height):
            label = labels[0] if row == 0 else labels[1] if row == self.height - 1 else ""
            line = Text(f"{label:>{_LABEL - 1}}│", style=_QUIET)
            for column in range(self.width):
                glyph, style = self._cells.get((row, column), (" ", ""))
                line.append(glyph, style=style or None)
            found.append(line)
        return found


def _by_column(x: Array, y: Array, span: tuple[float, float], columns: int) -> tuple[NDArray[np.int64], Array]:
    """Mean of the finite values of each column; columns between two points get what lies on the line between them."""
    kept = np.isfinite(y) & (x >= span[0]) & (x <= span[1])
    x, y = x[kept], y[kept]
    if not x.size:
        return np.empty(0, dtype=np.int64), np.empty(0)
    place = np.minimum(((x - span[0]) / (span[1] - span[0]) * columns).astype(np.int64), columns - 1)
    count = np.bincount(place, minlength=columns)
    present = np.flatnonzero(count)
    means = np.bincount(place, weights=y, minlength=columns)[present] / count[present]
    at = np.arange(present[0], present[-1] + 1)
    return at, np.interp(at, present, means)


def _loss_chart(state: LiveState, width: int, rows: int) -> list[Text]:
    """The baseline's whole curve, and the run as far as it is."""
    span = _span(state)
    # The first twentieth falls so far that nothing else would be seen.
    settled = state.baseline_loss[state.baseline_loss.size // 20 :]
    shown = np.concatenate([settled[np.isfinite(settled)], state.run[-max(1, state.run.size // 2) :]])
    shown = shown[np.isfinite(shown) & (np.abs(shown) < 1e6)]
    low, high = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 1.0)
    chart = _Chart(width - _LABEL, rows, span, (low, high if high > low else low + max(1e-9, abs(low) * 1e-3)))
    chart.glyphs(state.baseline_steps, state.baseline_loss, "·", _BASELINE)
    chart.dots(state.steps, state.run, _RUN)
    legend = Text.assemble(
        ("loss", "bold"),
        (f", {one_line(state.unit)}   " if state.unit else "   "),
        ("⣿ run", _RUN),
        "  ",
        ("· baseline", _BASELINE),
    )
    return [legend, *chart.lines((number(high, 4), number(low, 4)))]


def _gap_chart(state: LiveState, width: int, rows: int) -> list[Text]:
    blocks = state.blocks
    x = blocks.ends
    scale = np.concatenate([blocks.gaps, blocks.limits, [0.0, state.margin]])
    scale = scale[np.isfinite(scale)]
    high = float(min(scale.max(), 4 * max(state.margin, float(np.nanmax(np.append(blocks.limits, 0.0))))))
    low = max(float(scale.min()), -high)
    chart = _Chart(width - _LABEL, rows, _span(state), (low, high))
    chart.glyphs(x, np.zeros(x.size), "┄", _QUIET)
    chart.glyphs(x, blocks.limits, "─", _LIMIT)
    with np.errstate(invalid="ignore"):
        above = blocks.gaps > blocks.limits
    for place in np.flatnonzero(np.isfinite(blocks.gaps)).tolist():
        one = slice(place, place + 1)
        chart.glyphs(x[one], blocks.gaps[one], "▲" if above[place] else "●", _BAD if above[place] else _RUN)
    legend = Text.assemble(
        ("gap", "bold"), "   ", ("● block", _RUN), "  ", ("▲ above", _BAD), "  ", ("─ limit", _LIMIT), "  ", ("┄ zero", _QUIET)
    )
    return [legend, *chart.lines((percent(high), percent(low)))]


def _span(state: LiveState) -> tuple[float, float]:
    first, last = float(state.baseline_steps[0]), float(state.baseline_steps[-1])
    return first, last if last > first else first + 1.0
