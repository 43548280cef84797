"""report.html: what a reader finds in it, and what must never be in it."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8migrate.evidence.schema import BaselineEvidence
from fp8migrate.report.html import render
from fp8migrate.verdict import Report, Verdict

from . import samples

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Tags, ids, references and text of a page; complains about tags that do not match."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.parts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            self.attributes.append((tag, name, value or ""))
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "xlink:href"):
                self.references.append(value or "")
            if name == "aria-labelledby":
                self.references += [f"#{part}" for part in (value or "").split()]
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.parts.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.parts))


@cache
def rendered(name: str) -> tuple[Report, str, Page]:
    report = samples.ALL[name]()
    source = render(report)
    return report, source, Page(source)


@pytest.fixture(params=sorted(samples.ALL))
def page(request: pytest.FixtureRequest) -> tuple[Report, str, Page]:
    return rendered(request.param)


def test_verdict_headline_why_and_next_step_stand_before_all_else(page: tuple[Report, str, Page]) -> None:
    report, _, parsed = page
    top = parsed.text[: parsed.text.index("On this page")]
    for words in (report.verdict.name, report.headline, report.verdict.why, report.verdict.next_step):
        assert re.sub(r"\s+", " ", words) in top


def test_the_verdict_has_a_word_a_colour_and_a_shape(page: tuple[Report, str, Page]) -> None:
    report, source, _ = page
    name = report.verdict.name.lower()
    assert f'<section class="verdict s-{name}"' in source
    assert re.search(
        rf'<p class="word s-{name}"><svg aria-hidden="true"><use href="#i-{name}"/></svg><span>{name.upper()}', source
    )
    assert f'<symbol id="i-{name}"' in source


def test_nothing_is_fetched_and_nothing_runs(page: tuple[Report, str, Page]) -> None:
    _, source, parsed = page
    assert not {"script", "link", "img", "iframe", "object", "embed", "base", "form"} & set(parsed.tags)
    assert [name for _, name, _ in parsed.attributes if name.startswith("on") or name in ("src", "srcset", "action")] == []
    assert all(reference.startswith("#") for reference in parsed.references)
    assert "@import" not in source
    assert "default-src 'none'" in source


def test_ids_are_unique_and_every_reference_has_its_target(page: tuple[Report, str, Page]) -> None:
    _, _, parsed = page
    assert len(parsed.ids) == len(set(parsed.ids))
    assert {reference[1:] for reference in parsed.references} <= set(parsed.ids)


def test_it_is_small(page: tuple[Report, str, Page]) -> None:
    assert len(page[1].encode()) < 1_000_000


@pytest.mark.parametrize("name", ["long", "minimal"])
def test_two_renderings_are_equal_to_the_byte(name: str) -> None:
    assert render(samples.ALL[name]()) == rendered(name)[1]


def test_figures_take_the_pages_colours_and_have_words(page: tuple[Report, str, Page]) -> None:
    _, source, _ = page
    figures = re.findall(r'<svg class="figure".*?</svg>', source, flags=re.DOTALL)
    assert figures
    for figure in figures:
        assert not re.search(r"#[0-9a-f]{6}\b", figure)
        assert "DejaVu" not in figure
        assert re.search(r"<title[^>]*>[^<]+</title><desc[^>]*>[^<]+</desc>", figure)


def test_tables_have_scoped_heads_and_their_own_scrollers(page: tuple[Report, str, Page]) -> None:
    _, source, parsed = page
    assert source.count("<table>") == source.count('class="scroll" tabindex="0" role="region"')
    assert parsed.tags.count("th") == len(
        [1 for tag, name, value in parsed.attributes if (tag, name) == ("th", "scope") and value]
    )


def test_the_numbers_of_a_pass() -> None:
    text = rendered("pass")[2].text
    for words in (
        "Learned quality +0.020 % [−0.017, +0.057] %, 4 pairs, margin 0.25 %",
        "FP8 forward penalty +0.240 %",
        "GEMM FLOPs in FP8 90.0 % 16 of 18 GEMM sites",
        "Candidate runs complete 4 of 4",
        "They differ in precision alone.",
        "KL divergence of the next token 0.00213 nats",
        "Save, load, step equal to the last bit",
        "keep_bf16: lm_head",
        "fp8migrate run plan.yaml",
        "34" * 32,
        "AMD EPYC 9454",
    ):
        assert words in text


def test_learned_quality_and_forward_penalty_are_two_panels() -> None:
    text = rendered("fail")[2].text
    section = text[text.index("Two numbers that are easily mixed up") :]
    assert section.index("what the weights are worth") < section.index("+1.80 %") < section.index("what serving in FP8 costs")
    assert section.index("what serving in FP8 costs") < section.index("+0.240 %")


def test_unexpected_differences_come_before_folded_ones() -> None:
    source = rendered("many")[1]
    section = source[source.index('id="differences"') : source.index('id="curves"')]
    branch = section[section.index("<h3>Branch</h3>") :]
    assert branch.index("1 setting different beyond precision, 1 unknown.") < branch.index("task.training.grad_clip_norm")
    assert branch.index("task.training.grad_clip_norm") < branch.index("NVTE_ALLOW") < branch.index("<details>")
    assert branch.index("<details>") < branch.index("task.training.learning_rate")


def test_emulated_evidence_says_so_and_speaks_of_no_speed() -> None:
    report, _, parsed = rendered("pass")
    assert report.baseline is not None
    assert report.baseline.tokens_per_second is not None
    text = parsed.text
    assert "FP8 emulated" in text[: text.index("On this page")]
    assert "Tokens per second" not in text
    measured = replace(report, comparisons=(samples.comparison(emulated=False, curves=()),), headline="PASS")
    assert "Tokens per second 81,234" in Page(render(measured)).text


def test_sections_without_evidence_are_hidden_and_told() -> None:
    parsed = rendered("minimal")[2]
    assert not {"curves", "gaps", "quality", "integration", "coverage", "environment"} & set(parsed.ids)
    assert {"phases", "baseline", "checks", "runs", "reproduce"} <= set(parsed.ids)
    assert "No paired runs were compared" in parsed.text
    assert "Phase integration: not run (stopped after the baseline)" in parsed.text


def test_a_report_of_nothing_still_renders() -> None:
    empty = replace(samples.minimal(), phases=(), baseline=None, reproduce=(), plan_text="")
    text = Page(render(empty)).text
    assert "No phase has run." in text
    assert "No check has run." in text
    assert "No BF16 baseline was measured." in text


def test_a_candidate_that_stopped_being_finite_is_marked_and_told() -> None:
    parsed = rendered("long")[2]
    assert "Not finite from step" in parsed.text
    assert "▲ candidate up to +30" in parsed.text


def test_a_baseline_loss_of_zero_is_shown_and_does_not_stop_the_report() -> None:
    comparison = samples.comparison(pairs=2, steps=30)
    cell = replace(comparison.cells[0], deltas=tuple(replace(delta, baseline=0.0) for delta in comparison.cells[0].deltas))
    broken = replace(comparison, cells=(cell,))
    text = Page(render(samples.report("FAIL", (broken,)))).text
    assert "Learned quality NaN %" in text
    assert "not finite" in text


EVIL = st.sampled_from(["<script>", "</script>", "<!--", "-->", "&", "'", '"', "{{", "}}", "$x^2$", "\x00", "\ud800", "]]>"])


@given(st.lists(st.one_of(EVIL, st.text(max_size=8)), min_size=1, max_size=6).map("".join))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_name_is_shown_and_never_obeyed(name: str) -> None:
    bare = replace(
        samples.minimal(),
        name=name,
        headline=name,
        verdict=Verdict("FAIL", name, name, name),
        integration=replace(samples.integration(1), gradients=(samples.agreement(name, 9.0),), outputs=()),
        baseline=BaselineEvidence((), None, None, None, None, 5.5),
        plan_text=name,
    )
    source = render(bare)
    assert source.encode()
    parsed = Page(source)
    assert "script" not in parsed.tags
    assert parsed.tags.count("svg") == len(re.findall("<svg", source))
