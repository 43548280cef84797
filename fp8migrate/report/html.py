"""report.html: one self-contained file. No scripts, no requests; readable by keyboard, on a phone, in the dark, on paper."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.advice import Advice
from fp8migrate.evidence.schema import Comparison, LayerAgreement, RunFact
from fp8migrate.records.schema import Conversion
from fp8migrate.report import figures, view, words
from fp8migrate.report.cells import Gap, gaps
from fp8migrate.report.figures import Drawing
from fp8migrate.report.heatmap import HeatMap, heat_map, legend
from fp8migrate.verdict import Report

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"
# Longer tables are folded.
MAX_OPEN_ROWS = 12


@dataclass(frozen=True, eq=False)
class ComparisonView:
    """One comparison with everything drawn."""

    it: Comparison
    title: str
    facts: str
    differences: view.Differences
    gaps: tuple[Gap, ...]
    loss: Drawing | None
    gap: Drawing | None
    forest: Drawing | None
    finals: Drawing | None
    quality: tuple[Gap, ...]
    quality_drawing: Drawing | None
    penalty: tuple[Gap, ...]
    penalty_drawing: Drawing | None

    @property
    def curves_of(self) -> str:
        """What the curves show: of finished runs that log no training loss, their validation."""
        training = any(gap.endpoint == "training_loss" for gap in self.gaps)
        return "validation loss" if self.it.groups and not training else "training loss"

    @property
    def sampling_unknown(self) -> bool:
        """PARITY.md 4: an unknown sampling error counts as zero, and that is said."""
        return any(not gap.sampling_error_known for gap in self.gaps if gap.endpoint.startswith("validation"))


@dataclass(frozen=True, eq=False)
class Agreement:
    """SQNR of outputs or gradients: the figure of the worst, the table of all."""

    what: str
    rows: tuple[LayerAgreement, ...]
    drawing: Drawing


@dataclass(frozen=True, eq=False)
class CoverageView:
    title: str
    it: Conversion
    groups: tuple[view.CoverageGroup, ...]


@dataclass(frozen=True, eq=False)
class NamedMap:
    title: str
    it: HeatMap


@dataclass(frozen=True, eq=False)
class AdvisorView:
    """The advice, and a map of the recipe to try first and of the plan's own."""

    it: Advice
    rows: tuple[view.AdvisedRecipe, ...]
    maps: tuple[NamedMap, ...]
    legend: tuple[tuple[int, str], ...]


def render(report: Report) -> str:
    comparisons = tuple(_comparison(title, it, f"c{place}") for place, (title, it) in enumerate(view.titled(report), start=1))
    page = _environment().get_template("report.html.j2")
    return words.clean(
        page.render(
            report=report,
            code=view.code_of(report),
            emulated=view.is_emulated(report),
            of_logs=view.is_of_logs(report),
            item_rows=view.item_rows(report),
            tiles=view.tiles(report),
            not_run=view.not_run(report),
            comparisons=comparisons,
            baseline_facts=view.baseline_facts(report),
            baseline_drawings=figures.baseline_drawings(report.baseline) if report.baseline else (),
            advisor=_advisor(report),
            integration_facts=view.integration_facts(report),
            agreements=_agreements(report),
            coverage=tuple(CoverageView(title, it, view.coverage_groups(it)) for title, it in view.conversions(report)),
            runs=_runs(report),
            environment_facts=view.environment_facts(report),
            max_open_rows=MAX_OPEN_ROWS,
        )
    )


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # a tenth of a second to import

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers: dict[str, Any] = {
        name: getattr(words, name)
        for name in (
            "percent",
            "decibels",
            "share",
            "limit",
            "number",
            "bounds",
            "measured",
            "held_against",
            "interval",
            "plural",
            "how_it_ended",
        )
    }
    environment.globals |= helpers
    environment.globals |= {
        "arm_words": words.ARM_WORDS,
        "endpoint_words": words.ENDPOINT_WORDS,
        "endpoint_meaning": words.ENDPOINT_MEANING,
        "state_words": view.STATE_WORDS,
        "phase_detail": view.phase_detail,
        "start": words.start,
    }
    return environment


def _advisor(report: Report) -> AdvisorView | None:
    advice = report.baseline.advice if report.baseline else None
    if advice is None:
        return None
    own = next((row.recipe for row in advice.recipes if row.candidate), None)
    shown = [recipe for recipe in dict.fromkeys((advice.first, own)) if recipe is not None]
    maps = ((recipe, heat_map(advice, recipe, f"heat-{place}")) for place, recipe in enumerate(shown, start=1))
    titles = {own: f"The plan's candidate, {own}", advice.first: f"To try first, {advice.first}"}
    return AdvisorView(
        advice, view.advised_recipes(advice), tuple(NamedMap(titles[recipe], it) for recipe, it in maps if it), legend()
    )


def _comparison(title: str, comparison: Comparison, ident: str) -> ComparisonView:
    rows = gaps(comparison)
    quality = _candidates(rows, "validation_loss")
    penalty = _candidates(rows, "forward_penalty")
    return ComparisonView(
        it=comparison,
        title=title,
        facts=view.comparison_facts(comparison),
        differences=view.differences(comparison),
        gaps=rows,
        loss=figures.loss_drawing(comparison, f"{ident}-loss"),
        gap=figures.gap_drawing(comparison, f"{ident}-gap"),
        forest=figures.forest_drawing(rows, f"{ident}-forest"),
        finals=figures.finals_drawing(comparison, f"{ident}-finals"),
        quality=quality,
        quality_drawing=figures.strip_drawing(quality, f"{ident}-quality"),
        penalty=penalty,
        penalty_drawing=figures.strip_drawing(penalty, f"{ident}-penalty"),
    )


def _candidates(rows: Sequence[Gap], endpoint: str) -> tuple[Gap, ...]:
    return tuple(row for row in rows if row.arm == "candidate" and row.endpoint == endpoint and row.pairs)


def _agreements(report: Report) -> tuple[Agreement, ...]:
    if report.integration is None:
        return ()
    found = []
    left = report.integration
    gemms = tuple(replace(row, name=f"{row.layer} {_PRODUCTS[row.gemm]}") for row in left.layers)
    kinds: tuple[tuple[str, str, Sequence[LayerAgreement]], ...] = (
        ("gradients", "gradients", left.gradients),
        ("outputs", "outputs", left.outputs),
        ("layers", "each GEMM by itself", gemms),
    )
    for check, what, rows in kinds:
        drawing = figures.agreement_drawing(rows, f"sqnr-{check}", what, _decibel_limit(report.results, check))
        if drawing is not None:
            found.append(Agreement(what, tuple(figures.worst_first(rows)), drawing))
    return tuple(found)


# What each GEMM of y = x · wᵀ makes.
_PRODUCTS = {"forward": "y", "data_gradient": "dx", "weight_gradient": "dw"}


def _decibel_limit(results: Sequence[CheckResult], what: str) -> float | None:
    """The limit that a check held these against, by its name: numerics.gradients for gradients."""
    stem = what.removesuffix("s")
    found = (result.limit for result in results if result.unit == "dB" and stem in result.check and result.limit is not None)
    return next(found, None)


def _runs(report: Report) -> tuple[RunFact, ...]:
    """Every run once: a baseline stands in several comparisons."""
    listed = [*(report.baseline.runs if report.baseline else ()), *(report.integration.runs if report.integration else ())]
    listed += [run for comparison in report.comparisons for run in comparison.runs]
    return tuple(dict.fromkeys(listed))
