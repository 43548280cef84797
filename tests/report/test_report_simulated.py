"""Reports of synthetic runs, through evidence, checks and verdict: all formats tell the same story."""

import json
from functools import cache
from xml.etree import ElementTree

import pytest

from fp8migrate.checks import judge_comparison
from fp8migrate.evidence.pairs import compare
from fp8migrate.jobs import DesignName
from fp8migrate.phases.schema import Done
from fp8migrate.report import html, junit, markdown
from fp8migrate.report import json as json_format
from fp8migrate.report.cells import deciding
from fp8migrate.report.markdown import text
from fp8migrate.report.words import bounds, percent
from fp8migrate.verdict import Report, build_report

from .. import simulation
from ..simulation import Scenario

STORIES: dict[str, tuple[DesignName, Scenario]] = {
    "PASS": ("branch", Scenario()),
    "FAIL": ("branch", Scenario(gap=0.012, tau=0.0002)),
    "SCREENED": ("screen", Scenario(tau=0.0002)),
    "INCONCLUSIVE": ("branch", Scenario(missing=(("candidate", 2, None),))),
}


@cache
def told(name: str) -> Report:
    design, scenario = STORIES[name]
    found = simulation.simulate(scenario, design)
    comparison = compare(found.plan, design, found.jobs, found.records)
    phases = {
        "small_scale": Done(judge_comparison(comparison), comparisons=(comparison,)),
        "full_scale": None,
    }
    return build_report(
        found.plan, "name: simulated\n", phases, simulation.environment(), notes={"full_scale": "not asked for"}
    )


@pytest.mark.parametrize("name", STORIES)
def test_all_formats_tell_the_same_verdict(name: str) -> None:
    report = told(name)
    assert report.verdict.name == name
    page = html.render(report)
    assert f'<section class="verdict s-{name.lower()}"' in page
    assert "emulated" in report.headline
    comment = markdown.render(report)
    assert name in comment.splitlines()[0]
    assert text(report.verdict.why) in comment
    assert json.loads(json_format.render(report))["verdict"]["name"] == name
    case = ElementTree.fromstring(junit.render(report)).find("testsuite[@name='verdict']/testcase")  # noqa: S314 - our own
    assert case is not None
    tags = {"PASS": "system-out", "FAIL": "failure"}
    assert [child.tag for child in case] == [tags.get(name, "error")]


@pytest.mark.parametrize("name", ["PASS", "FAIL"])
def test_the_numbers_shown_are_those_decided_on(name: str) -> None:
    report = told(name)
    result = next(result for result in report.results if result.check == "parity")
    gap = deciding(report.comparisons[0], "validation_loss")
    assert gap is not None
    assert (gap.mean, (gap.lower, gap.upper), gap.margin) == (result.measured, result.interval, result.limit)
    for shown in (html.render(report), markdown.render(report)):
        assert percent(gap.mean) in shown
        assert bounds(gap.lower, gap.upper) in shown


def test_a_missing_run_is_listed_as_missing() -> None:
    page = html.render(told("INCONCLUSIVE"))
    row = page[page.index("<code>branch-p2-candidate</code>") :]
    assert "missing" in row[: row.index("</tr>")]


def test_a_failed_check_fails_its_case() -> None:
    root = ElementTree.fromstring(junit.render(told("FAIL")))  # noqa: S314 - our own
    failed = [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]
    assert any(name and name.startswith("parity") for name in failed)
    assert failed[-1] == "verdict"
