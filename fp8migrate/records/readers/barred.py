"""Many lines `… | name: value | name: value |` at once: those that have the same fields are found by their bars."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8migrate.records.readers.lines import MAX_FIELDS
from fp8migrate.records.spans import MAX_EXACT_DIGITS, Flags, MarkedLines, Places, Text, whole_numbers
from fp8migrate.records.tokens import Array

_BAR, _BLANK = b"| "
# Lines of a chunk have one layout, and another one where the loss is NaN; more come where a count needs more digits.
_MAX_LAYOUTS = 12
# Lines with bars that are no steps (tables, progress) may stand before the first step.
_MAX_SEARCHED = 16
_MAX_NAME = 200
_COUNT = re.compile(rb" iteration( +\d+)(/ *\d+ )\|")
_FIELD = re.compile(rb"[^:]*:")


@dataclass(frozen=True)
class Layout:
    """A line's fields. names: without blanks. labels: as they stand, from the bar to the colon. end: what follows the last
    bar. count_width, total: ` iteration` is followed by a number so wide, and by the total as it stands. before: bars
    before the one that follows it.
    """

    names: tuple[bytes, ...]
    labels: tuple[bytes, ...]
    end: bytes
    count_width: int
    total: bytes
    before: int

    @classmethod
    def of(cls, line: bytes) -> "Layout | None":
        """The layout of a line; None where it has fields without names, or is no step."""
        match = _COUNT.search(line)
        if match is None or len(match[1]) > MAX_EXACT_DIGITS + 1:
            return None
        *fields, end = line[match.end() :].split(b"|")
        found = [_FIELD.match(field) for field in fields]
        labels = [label[0] for label in found if label]
        names = tuple(label[:-1].strip() for label in labels)
        if len(names) != len(fields) or len(names) > MAX_FIELDS or len(set(names)) != len(names):
            return None
        if end.strip() or b"\0" in line or max(map(len, (*labels, match[2], end)), default=0) > _MAX_NAME:
            return None
        return cls(names, tuple(labels), end, len(match[1]), match[2], line.count(b"|", 0, match.end()) - 1)


@dataclass(frozen=True)
class Alike:
    """Lines of one layout. lines: their numbers, rising; steps: of each. bars: one row a bar, from the step's on."""

    layout: Layout
    lines: Places
    steps: Array
    bars: tuple[Places, ...]

    @property
    def total(self) -> float:
        return float(self.layout.total.strip(b"/ "))

    def within(self, first: int, last: int) -> "Alike":
        """Those of the lines from first to before last."""
        start, stop = np.searchsorted(self.lines, [first, last])
        bars = tuple(bar[start:stop] for bar in self.bars)
        return Alike(self.layout, self.lines[start:stop], self.steps[start:stop], bars)

    def places(self, text: Text, field: int) -> tuple[Places, Places]:
        """Where the values of a field begin and end; blanks may be left around them."""
        starts = self.bars[field] + 1 + len(self.layout.labels[field])
        ends = self.bars[field + 1]
        starts = starts + (text.codes[starts] == _BLANK)
        return starts, ends - (text.codes[ends - 1] == _BLANK)


class BarredLines(MarkedLines):
    """The lines of a chunk (which ends with a line) that have bars."""

    def __init__(self, chunk: bytes) -> None:
        super().__init__(chunk, _BAR)

    def containing(self, words: bytes) -> Places:
        """The lines that contain the words."""
        places = []
        place = self.text.content.find(words)
        while place >= 0:
            places.append(place)
            place = self.text.content.find(words, place + 1)
        return np.unique(np.searchsorted(self.ends, np.array(places, dtype=np.intp)))

    def alike(self, apart: Places) -> tuple[list[Alike], Places]:
        """Lines that have a step, by layout, and the others that have bars. Lines of `apart` are among the others."""
        left = self.count > 0
        left[apart] = False
        found = []
        for _ in range(_MAX_LAYOUTS):
            lines = np.flatnonzero(left)
            if not lines.size:
                break
            lines = lines[self.count[lines] == np.bincount(self.count[lines]).argmax()]
            layout = self._layout(lines)
            if layout is None:
                left[lines[:_MAX_SEARCHED]] = False
                continue
            group = self._of_layout(layout, lines)
            left[group.lines if group.lines.size else lines[:_MAX_SEARCHED]] = False
            if group.lines.size:
                found.append(group)
        others = self.count > 0
        for group in found:
            others[group.lines] = False
        return found, np.flatnonzero(others)

    def _layout(self, lines: Places) -> Layout | None:
        for line in lines[:_MAX_SEARCHED].tolist():
            if layout := Layout.of(self.text.content[self.starts[line] : self.ends[line]]):
                return layout
        return None

    def _of_layout(self, layout: Layout, lines: Places) -> Alike:
        """Which of the lines have it; each has as many bars as the layout."""
        bars = [self.marks[self.first[lines] + layout.before + place] for place in range(len(layout.labels) + 1)]
        steps, fits = self._steps(layout, bars[0])
        for bar, label in zip(bars[:-1], layout.labels, strict=True):
            # The words hold no bar: where they stand, they stand before the next one.
            fits &= self.text.says(bar + 1, label)
        fits &= self.text.says(bars[-1] + 1, layout.end) & (self.ends[lines] == bars[-1] + 1 + len(layout.end))
        return Alike(layout, lines[fits], steps[fits], tuple(bar[fits] for bar in bars))

    def _steps(self, layout: Layout, bars: Places) -> tuple[Array, Flags]:
        """The steps that stand before the bars, and where such do."""
        slash = bars - len(layout.total)
        begin = slash - layout.count_width
        fits = self.text.says(slash, layout.total) & self.text.says(begin - len(b" iteration"), b" iteration")
        steps, whole = whole_numbers(self.text.columns(np.maximum(begin, 0), layout.count_width))
        return steps, fits & whole


def of_step_bars(chunk: bytes) -> int:
    """How many bars follow a step. A line may have several: only the first one counts."""
    return len(_COUNT.findall(chunk))


def in_order(groups: Sequence[Alike]) -> tuple[Places, Array]:
    """All lines of the groups in their order, and the step of each."""
    lines = np.concatenate([group.lines for group in groups])
    steps = np.concatenate([group.steps for group in groups])
    order = np.argsort(lines, kind="stable")
    return lines[order], steps[order]
