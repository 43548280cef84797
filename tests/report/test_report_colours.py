"""Contrast of the page's colours, in the light and in the dark (WCAG 2.1: 4.5 for text, 3 for what is drawn)."""

import re

import pytest

from fp8migrate.report.html import TEMPLATES

STYLE = (TEMPLATES / "style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in re.findall(r":root \{(.*?)\n *\}", STYLE, re.DOTALL)
)


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, LIGHT | DARK], ids=["light", "dark"])
def test_text_can_be_read(theme: dict[str, str]) -> None:
    for role in ("text", "soft", "link", "pass", "fail", "inconclusive", "screened", "skipped"):
        assert contrast(theme[role], theme["page"]) >= 4.5, role
    assert contrast(theme["soft"], theme["panel"]) >= 4.5
    for verdict in ("pass", "fail", "inconclusive", "screened"):
        assert contrast(theme[verdict], theme[f"{verdict}-bg"]) >= 4.5, verdict
        assert contrast(theme["text"], theme[f"{verdict}-bg"]) >= 7, verdict


@pytest.mark.parametrize("theme", [LIGHT, LIGHT | DARK], ids=["light", "dark"])
def test_lines_can_be_seen(theme: dict[str, str]) -> None:
    for role in ("baseline", "candidate", "control", "sensitivity", "margin"):
        assert contrast(theme[role], theme["page"]) >= 3, role


def test_every_placeholder_has_its_colour_in_the_style() -> None:
    from fp8migrate.report.svg import COLOURS

    assert all(f"--{role}:" in STYLE for role in COLOURS)
