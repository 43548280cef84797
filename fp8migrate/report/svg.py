"""A matplotlib figure as SVG to be put inside a page: its colours are the page's, its ids are its own.

Figures are drawn with placeholder colours, which become CSS custom properties here; so a dark page gets dark figures, and
several figures in one page do not meet in their ids. Nothing that changes from run to run (dates, random ids) remains.
"""

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from fp8migrate.report.words import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Placeholder (what matplotlib draws with) by role; templates/style.css gives each role its light and its dark colour.
COLOURS: Mapping[str, str] = {
    "ink": "#0a0001",
    "muted": "#0a0002",
    "grid": "#0a0003",
    "paper": "#0a0004",
    "baseline": "#0a0011",
    "candidate": "#0a0012",
    "control": "#0a0013",
    "floor": "#0a0014",
    "sensitivity": "#0a0015",
    "margin": "#0a0016",
}

_TAG = re.compile(r"<[^>]+>")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fp8migrate",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 12,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 12,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "savefig.dpi": "figure",
    "figure.dpi": 72,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Our settings for the time of drawing, on top of matplotlib's own defaults: a user's matplotlibrc changes nothing."""
    import matplotlib  # takes a second to import

    with matplotlib.rc_context(), warnings.catch_warnings():
        # The browser draws the text with the reader's fonts; what matplotlib's own font lacks does not matter.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support", category=UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def inline_svg(figure: "Figure", ident: str, title: str, description: str) -> Markup:
    """The figure as an <svg> element. ident: unique in the page. title and description: what a screen reader says."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    view_box = re.search(r'viewBox="([^"]*)"', text)
    assert view_box
    body = text[text.index(">", view_box.end()) + 1 : text.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    # Only inside tags: a label that looks like markup is the user's text.
    used = frozenset(name for tag in _TAG.findall(body) for name in re.findall(r'(?:href="#|url\(#)([^")]+)', tag))
    body = _TAG.sub(lambda tag: _inside_tag(tag[0], ident, used), body)
    body = re.sub(r"\s*\n\s*", "\n", body).replace("<defs>\n</defs>\n", "").replace("<g/>\n", "")
    head = Markup('<svg class="figure" role="img" aria-labelledby="{0}-t {0}-d" viewBox="{1}">').format(ident, view_box[1])
    label = Markup('<title id="{0}-t">{1}</title><desc id="{0}-d">{2}</desc>').format(ident, clean(title), clean(description))
    return head + label + Markup(clean(body)) + Markup("</svg>")  # noqa: S704 - matplotlib escaped the text inside


def _inside_tag(tag: str, ident: str, used: frozenset[str]) -> str:
    """Page colours, the page's font, coordinates to a hundredth of a pixel, and ids of its own (only those referred to)."""
    for role, placeholder in COLOURS.items():
        tag = tag.replace(placeholder, f"var(--{role})")
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r"font: (?:(bold) )?(\d+(?:\.\d+)?px) [^;\"]*", _font, tag)
    tag = re.sub(r"(\d\.\d\d)\d+", r"\1", tag).replace("xlink:href", "href")
    tag = re.sub(r' id="([^"]+)"', lambda found: f' id="{ident}-{found[1]}"' if found[1] in used else "", tag)
    return re.sub(r'(href="#|url\(#)', rf"\1{ident}-", tag)


def _font(found: re.Match[str]) -> str:
    weight = "font-weight: bold; " if found[1] else ""
    return f"{weight}font-size: {found[2]}"
