"""report.md as GitHub shows it: read back by a CommonMark parser with tables."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fp8migrate.checks.schema import CheckResult
from fp8migrate.plan.audit import AuditRow
from fp8migrate.report.markdown import render, text
from fp8migrate.report.words import clean
from fp8migrate.verdict import PhaseReport

from . import samples

PLAIN_BLOCKS = {"paragraph_open", "inline", "paragraph_close"} | {
    f"{name}_{end}" for name in ("bullet_list", "list_item") for end in ("open", "close")
}
PLAIN_INLINE = {"text", "text_special", "strong_open", "strong_close"}
PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def seen(tokens: list[Token]) -> str:
    """The text that a reader sees, without the invisible joiners."""
    parts = [token.content if token.type in ("text", "code_inline", "text_special") else "" for token in tokens]
    return "".join(parts).replace("\u2060", "")


def cells(markdown: str) -> list[list[str]]:
    rows: list[list[str]] = []
    inside = False
    for token in PARSER.parse(markdown):
        if token.type == "tr_open":
            rows.append([])
        inside = token.type in ("th_open", "td_open") or (inside and token.type == "inline")
        if token.type == "inline" and inside:
            rows[-1].append(seen(token.children or []))
    return rows


@pytest.mark.parametrize("kind", ["PASS", "FAIL", "INCONCLUSIVE", "SCREENED"])
def test_the_first_line_is_the_verdict(kind: str) -> None:
    lines = render(samples.report(kind)).splitlines()
    assert re.match(rf"## \S+ {kind}\b.* — llama-14m$", lines[0])
    assert "emulated" in lines[2]


@pytest.mark.parametrize("name", samples.ALL)
def test_it_fits_a_pull_request_comment(name: str) -> None:
    assert len(render(samples.ALL[name]()).splitlines()) < 70
    assert len(render(samples.report()).splitlines()) < 60


def test_the_table_holds_the_numbers() -> None:
    rows = cells(render(samples.report("FAIL")))
    assert rows[0][:4] == ["Design", "Start", "Endpoint", "Arm"]
    quality = next(row for row in rows if row[2:4] == ["Validation loss, BF16 forward", "candidate"])
    assert quality == [
        "Branch",
        "—",
        "Validation loss, BF16 forward",
        "candidate",
        "4",
        "+1.80 %",
        "[+1.59, +2.01] %",
        "0.25 %",
        "above the margin",
    ]
    penalty = next(row for row in rows if row[2] == "FP8 forward penalty")
    assert (penalty[5], penalty[7]) == ("+0.240 %", "—")
    assert any("positive control" in row[3] for row in rows)


def test_differences_beyond_precision_are_listed() -> None:
    found = render(samples.many())
    assert "**different** `task.training.grad_clip_norm`: 1.0 → 0.5" in found
    assert "Branch: **unknown** `environment.variables.NVTE_ALLOW_NONDETERMINISTIC_ALGO`: — → 0" in found
    assert "the arms differ in precision alone (15 settings the same)" in render(samples.report())


def test_what_was_not_run_is_said() -> None:
    found = render(samples.minimal())
    assert "- No paired runs were compared: no loss curves and no parity." in found
    assert "- Phase integration: not run (stopped after the baseline)" in found


def test_a_fence_in_a_command_does_not_end_the_block() -> None:
    blocks = [token for token in PARSER.parse(render(samples.long_names())) if token.type == "fence"]
    assert len(blocks) == 1
    assert blocks[0].content.startswith("echo '```'\nrun transformer.decoder")


@given(st.text())
@settings(max_examples=300)
def test_any_text_stays_text(value: str) -> None:
    line = text(value)
    assert "\n" not in line
    shown = " ".join(clean(value).split()).replace("\u2060", "")
    for markdown in (f"- {line}", f"a\n\n{line}\n", f"**x** {line}"):
        tokens = PARSER.parse(markdown)
        assert {token.type for token in tokens} <= PLAIN_BLOCKS
        inline = [token for token in tokens if token.type == "inline"]
        assert {child.type for token in inline for child in token.children or []} <= PLAIN_INLINE
        told = seen(inline[-1].children or []) if shown else ""
        assert " ".join(told.split()).removeprefix("x " if markdown.startswith("**") else "") == shown


@given(st.text(min_size=1), st.text())
@settings(max_examples=60)
def test_any_recipe_name_keeps_the_table_whole(recipe: str, summary: str) -> None:
    comparison = replace(
        samples.comparison(pairs=2, steps=4), recipe=recipe, audit=(AuditRow(summary, "unknown", recipe, summary),)
    )
    phase = PhaseReport("small_scale", "passed", (CheckResult(recipe, "fail", summary, summary),))
    report = replace(samples.report(comparisons=(comparison,) * 2), phases=(phase,), baseline=None, integration=None)
    rows = cells(render(report))
    assert {len(row) for row in rows} == {9}
    assert rows[1][0] == " ".join(f"Branch, {clean(recipe)}".split()).replace("\u2060", "")


def test_nobody_is_mentioned_and_nothing_links() -> None:
    found = text("@team see https://example.org and www.example.org")
    assert "@team" not in found
    assert "https://" not in found
    assert "www." not in found
    assert found.replace("\u2060", "") == "@team see https://example.org and www.example.org"


def test_rendering_twice_is_equal() -> None:
    assert render(samples.many()) == render(samples.many())
