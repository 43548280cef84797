"""SQNR over depth and operand as an inline SVG: a column for each linear layer, a row for each operand, colour for dB.

Colours are the page's own (--heat-0 … in templates/style.css): one hue from light to dark, so that the order survives colour
blindness, print and a dark page; what is below the threshold is crossed as well. Each cell says its numbers on hover.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup

from fp8migrate.evidence.advice import Advice, OperandForecast
from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS
from fp8migrate.report.words import clean, number, share

# dB at which colours change; below the first is below the threshold, which the edges must hold.
EDGES = (14, 18, 22, 26, 30)
_ROW, _GAP, _FOOT = 22, 4, 20
_LEAST_COLUMN, _MOST_COLUMN, _WIDTH = 13, 34, 700
_CHARACTER = 7  # width of a label's, or a little more
_BLOCK = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True)
class HeatMap:
    """labels: of the rows, each `row_height` px high, to stand left of the svg while it scrolls."""

    recipe: str
    labels: tuple[str, ...]
    svg: Markup
    row_height: int = _ROW


def bucket(sqnr_db: float) -> int:
    """Which colour: 0 below the threshold (NaN too), the highest from 30 dB on."""
    return 0 if math.isnan(sqnr_db) else sum(sqnr_db >= edge for edge in EDGES)


def legend() -> tuple[tuple[int, str], ...]:
    """(colour, what it means), lowest first."""
    words = [f"below {EDGES[0]} dB", *(f"{low} to {high}" for low, high in pairwise(EDGES))]
    return tuple(enumerate([*words, f"{EDGES[-1]} dB and more"]))


def heat_map(advice: Advice, recipe: str, ident: str) -> HeatMap | None:
    """One recipe's map; None where nothing of it is known. ident: unique in the page."""
    rows = _rows(advice, recipe)
    if not rows:
        return None
    blocks = [(name, list(members)) for name, members in groupby(advice.layers, key=_block)]
    column = min(_MOST_COLUMN, max(_LEAST_COLUMN, _WIDTH // len(advice.layers)))
    places, labels, x = {}, [], 0
    for name, members in blocks:
        start = x
        for layer in members:
            places[layer] = x
            x += column
        x = max(x, start + _CHARACTER * len(name))
        labels.append((name, (start + x) / 2))
        x += _GAP
    body = [Markup("").join(_cells(cells, places, y * _ROW, column)) for y, (_, cells) in enumerate(rows)]
    foot = [
        Markup('<text x="{:g}" y="{}" text-anchor="middle">{}</text>').format(middle, len(rows) * _ROW + 14, clean(name))
        for name, middle in labels
    ]
    width, height = max(x - _GAP, 1), len(rows) * _ROW + _FOOT
    svg = Markup(
        '<svg class="heat" role="img" aria-labelledby="{0}-t {0}-d" viewBox="0 0 {1} {2}" width="{1}" height="{2}" '
        'preserveAspectRatio="none"><title id="{0}-t">{3}</title><desc id="{0}-d">{4}</desc>{5}{6}</svg>'
    ).format(
        ident, width, height, clean(f"SQNR of every operand under {recipe}"), _said(rows), *map(Markup("").join, (body, foot))
    )
    return HeatMap(recipe, tuple(label for label, _ in rows), svg)


def _block(layer: str) -> str:
    """The decoder layer's number, else the layer's own name."""
    found = _BLOCK.match(layer)
    return found[1] if found else layer


def _rows(advice: Advice, recipe: str) -> list[tuple[str, tuple[OperandForecast, ...]]]:
    """A label and its cells. One copy of a tensor that serves two GEMMs is one row."""
    found: dict[tuple[object, ...], tuple[list[str], tuple[OperandForecast, ...]]] = {}
    for gemm in GEMMS:
        for tensor in GEMM_OPERANDS[gemm]:
            cells = tuple(o for o in advice.operands if (o.recipe, o.gemm, o.tensor) == (recipe, gemm, tensor))
            if cells:
                key = (tensor, cells[0].operand, tuple(cell.sqnr_db for cell in cells))
                found.setdefault(key, ([], cells))[0].append(gemm.replace("_", " "))
    # Every tensor stands in two GEMMs: where one copy serves both, its name says enough.
    return [(str(key[0]) if len(gemms) > 1 else f"{key[0]} · {gemms[0]}", cells) for key, (gemms, cells) in found.items()]


def _cells(cells: Iterable[OperandForecast], places: dict[str, int], y: int, column: int) -> Iterable[Markup]:
    for cell in cells:
        x, colour = places[cell.layer], bucket(cell.sqnr_db)
        rect = Markup('<g><title>{}</title><rect class="h{}" x="{}" y="{}" width="{}" height="{}"/>').format(
            clean(_told(cell)), colour, x, y, column - 1, _ROW - 1
        )
        middle_x, middle_y = x + (column - 1) / 2, y + (_ROW - 1) / 2
        cross = Markup('<path class="cross" d="M{:g} {:g}l6 6m0 -6l-6 6"/>').format(middle_x - 3, middle_y - 3)
        yield rect + (cross if cell.poor else Markup("")) + Markup("</g>")


def _told(cell: OperandForecast) -> str:
    scales = f"scales 2^{number(cell.least_log2_scale, 3)} to 2^{number(cell.largest_log2_scale, 3)}"
    lost = f"underflow {share(cell.underflow)}, overflow {share(cell.overflow)}"
    where = f"{cell.layer}, {cell.tensor} of the {cell.gemm.replace('_', ' ')} ({cell.operand})"
    return f"{where}: {number(cell.sqnr_db, 3)} dB, {lost}, {scales}, step {cell.step}"


def _said(rows: Sequence[tuple[str, tuple[OperandForecast, ...]]]) -> str:
    """For those who do not see it: each row's lowest."""
    lowest = ((label, min(cells, key=lambda cell: bucket(cell.sqnr_db) and cell.sqnr_db)) for label, cells in rows)
    return clean(" ".join(f"{label}: lowest {number(cell.sqnr_db, 3)} dB at {cell.layer}." for label, cell in lowest))
