"""The advisor in every format: the recommendation first, a table, a map of SQNR; nothing where nothing was sampled."""

import re
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest

from fp8migrate.evidence.advice import Advice
from fp8migrate.facts.recipes import KNOWN_BAD
from fp8migrate.report import html, json, markdown
from fp8migrate.report.heatmap import EDGES, bucket, heat_map, legend
from fp8migrate.verdict import Report
from tests.evidence.test_advice import LAYERS, advised
from tests.report import samples
from tests.report.test_report_colours import DARK, LIGHT, contrast, luminance
from tests.report.test_report_html import Page

BAD = {("current", "gradient", layer): 3.0 + place for place, layer in enumerate(LAYERS)}
ADVICE = advised(BAD, candidate=KNOWN_BAD, underflow=0.9)


def report(advice: Advice | None = ADVICE) -> Report:
    whole = samples.report()
    assert whole.baseline
    return replace(whole, baseline=replace(whole.baseline, advice=advice))


def section(source: str) -> str:
    found = re.search(r'<section id="advisor".*?</section>', source, re.DOTALL)
    assert found
    return found[0]


def test_the_recommendation_comes_first() -> None:
    source = section(html.render(report()))
    assert source.index(ADVICE.sentences[0]) < source.index("A forecast, not a verdict") < source.index("<table>")
    assert '<a href="#advisor">' in html.render(report())


def test_the_table_has_every_recipe_with_its_numbers() -> None:
    page = section(html.render(report()))
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', page, re.DOTALL)
    assert len(rows) == len(ADVICE.recipes)
    (own,) = [row for row in rows if "the plan&#39;s candidate" in row]
    assert "current(format=e2m1" in own
    assert "3.0 dB" in own
    assert "90.0 %" in own
    assert own.endswith('<td class="n">4</td>')
    assert sum("needs Blackwell" in row for row in rows) == 2
    assert sum("try first" in row for row in rows) == 1


def test_layers_to_keep_are_listed_with_their_reason() -> None:
    page = section(html.render(report()))
    assert "<code>layers.0.mlp.down</code> gradient of the data gradient: 4.0 dB, 90 % underflow" in page


def test_the_map_has_a_cell_for_each_layer_and_operand() -> None:
    found = heat_map(ADVICE, KNOWN_BAD.in_words, "x")
    assert found is not None
    assert found.labels == ("input", "weight", "gradient")  # one copy serves both GEMMs
    svg = str(found.svg)
    assert svg.count("<rect") == 3 * len(LAYERS)
    assert svg.count('class="h0"') == svg.count('class="cross"') == len(LAYERS)
    assert "layers.0.mlp.down, gradient of the data gradient (e2m1, per tensor): 4 dB, underflow 90.0 %, overflow 0.0 %" in svg
    assert re.findall(r"<text[^>]*>([^<]*)</text>", svg) == ["0", "1", "lm_head"]
    assert heat_map(ADVICE, "no such recipe", "x") is None


def test_an_operand_with_a_direction_has_a_row_for_each_gemm() -> None:
    (mxfp8,) = [one.recipe for one in ADVICE.recipes if one.kind == "mxfp8"]
    levels = {("mxfp8", "input", LAYERS[0]): 20.0}
    found = heat_map(advised(levels), mxfp8, "x")
    assert found is not None
    assert len(found.labels) == 3
    different = replace(advised(levels), operands=tuple(
        replace(o, sqnr_db=25.0) if o.gemm == "weight_gradient" else o for o in advised(levels).operands
    ))  # fmt: skip
    found = heat_map(different, mxfp8, "x")
    assert found is not None
    assert found.labels == (
        "input · forward", "weight", "gradient · data gradient", "gradient · weight gradient", "input · weight gradient"
    )  # fmt: skip


def test_many_layers_keep_a_least_width_and_scroll_in_their_own_box() -> None:
    many = tuple(f"layers.{i}.mlp.up" for i in range(400))
    operands = tuple(replace(ADVICE.operands[0], layer=layer) for layer in many)
    found = heat_map(replace(ADVICE, layers=many, operands=operands), operands[0].recipe, "x")
    assert found is not None
    widths = {int(width) for width in re.findall(r'<rect[^>]* width="(\d+)"', str(found.svg))}
    assert widths == {12}
    assert '<div class="scroll heatmap" tabindex="0"' in section(html.render(report()))


def test_colours_change_at_the_threshold_and_are_explained() -> None:
    assert EDGES[0] == ADVICE.threshold.value
    assert [bucket(level) for level in (13.99, 14, 18, 22, 26, 30, float("inf"))] == [0, 1, 2, 3, 4, 5, 5]
    assert bucket(float("nan")) == 0
    assert [colour for colour, _ in legend()] == list(range(6))


@pytest.mark.parametrize("theme", [LIGHT, LIGHT | DARK], ids=["light", "dark"])
def test_colours_run_from_the_page_to_its_opposite(theme: dict[str, str]) -> None:
    """Lightness alone tells the order, so that print and colour blindness keep it; the cross can be seen on the worst."""
    levels = [luminance(theme[f"heat-{colour}"]) for colour in range(6)]
    assert levels in (sorted(levels), sorted(levels, reverse=True))
    away = [contrast(theme[f"heat-{colour}"], theme["page"]) for colour in range(6)]
    assert away == sorted(away, reverse=True)
    assert contrast(theme["cross"], theme["heat-0"]) >= 4.5
    assert all(high / low > 1.2 for high, low in pairwise(away))


def test_ids_are_unique_and_references_lead_somewhere() -> None:
    page = Page(html.render(report()))
    assert len(page.ids) == len(set(page.ids))
    assert {ref[1:] for ref in page.references if ref.startswith("#")} <= set(page.ids)


def test_names_are_escaped() -> None:
    hostile = "layers.0.<script>alert(1)</script>"
    operands = tuple(replace(o, layer=hostile) if o.layer == LAYERS[0] else o for o in ADVICE.operands)
    page = html.render(report(replace(ADVICE, layers=(hostile, *LAYERS[1:]), operands=operands)))
    assert "<script>" not in page


def test_markdown_has_the_recommendation_and_a_short_table() -> None:
    text = markdown.render(report())
    assert "**Advisor** (a forecast from the BF16 run's tensors, not a verdict)" in text
    assert "Try delayed first: no layer to keep in BF16" in text
    assert "| mxfp8, needs Blackwell | 30.0 dB | 0.1 % | 0.0 % | 0 |" in text


def test_json_has_every_operand() -> None:
    found = orjson.loads(json.render(report()))["baseline"]["advice"]
    assert found["first"] == ADVICE.first
    assert len(found["operands"]) == len(ADVICE.operands)
    assert found["operands"][0].keys() >= {
        "recipe",
        "layer",
        "gemm",
        "tensor",
        "sqnr_db",
        "underflow",
        "overflow",
        "least_log2_scale",
    }
    assert found["recipes"][0]["keep"] == []
    assert found["threshold"]["value"] == 14


def test_nothing_is_invented_where_nothing_was_sampled() -> None:
    without = report(None)
    assert 'id="advisor"' not in html.render(without)
    assert "#advisor" not in html.render(without)
    assert "Advisor" not in markdown.render(without)
    assert orjson.loads(json.render(without))["baseline"]["advice"] is None
