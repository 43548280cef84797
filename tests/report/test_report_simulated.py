"""Reports of synthetic runs, through evidence, checks and verdict: all formats tell the same story."""

import json
from functools import cache
from xml.etree import ElementTree

import pytest

from fp8migrate.checks import judge_comparison
from fp8migrate.evidence.pairs import compare
from fp8migrate.evidence.schema import Comparison
from fp8migrate.jobs import DesignName
from fp8migrate.phases.schema import Done
from fp8migrate.report import html, junit, markdown, view
from fp8migrate.report import json as json_format
from fp8migrate.report.cells import deciding, gaps
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
    comparisons: tuple[Comparison, ...] = (compare(found.plan, design, found.jobs, found.records),)
    if design == "screen":
        comparisons = simulation.simulate_screens(scenario)
    results = tuple(result for comparison in comparisons for result in judge_comparison(comparison))
    phases = {
        "small_scale": Done(results, comparisons=comparisons),
        "full_scale": None,
    }
    return build_report(
        found.plan, "name: simulated\n", phases, simulation.environment(), notes={"full_scale": "not asked for"}
    )


@cache
def page_of(name: str) -> str:
    return html.render(told(name))


@pytest.mark.parametrize("name", STORIES)
def test_all_formats_tell_the_same_verdict(name: str) -> None:
    report = told(name)
    assert report.verdict.name == name
    page = page_of(name)
    assert f'<section class="verdict s-{name.lower()}"' in page
    assert "emulated" in report.headline
    comment = markdown.render(report)
    assert name in comment.splitlines()[0]
    assert text(report.verdict.why) in comment
    assert json.loads(json_format.render(report))["verdict"]["name"] == name
    case = ElementTree.fromstring(junit.render(report)).find("testsuite[@name='verdict']/testcase")
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


def test_the_long_screen_is_shown_beside_its_screen() -> None:
    report = told("SCREENED")
    assert [title for title, _ in view.titled(report)] == ["Screen", "Long screen"]
    main = view.main_comparison(report)
    assert main is not None
    assert main.design == "screen"
    page = page_of("SCREENED")
    assert "<code>long_screen-f0.6-p3-candidate</code>" in page
    assert "no_screen_drift" in page
    # Its floor and its bad recipe stand in the screen: they are not missing. Its gap is told; the growth is what is judged.
    assert not any(line.startswith("Long screen") for line in view.not_run(report))
    assert all(gap.margin is None for gap in gaps(report.comparisons[1]))
    growth = json.loads(json_format.render(report))["comparisons"][1]["growth"]
    assert [len(growth[0]["values"]), growth[0]["pairs"]] == [4, [0, 1, 2, 3]]
    comment = markdown.render(report)
    assert comment.index("| Screen |") < comment.index("| Long screen |")


def test_a_missing_run_is_listed_as_missing() -> None:
    page = html.render(told("INCONCLUSIVE"))
    row = page[page.index("<code>branch-p2-candidate</code>") :]
    assert "missing" in row[: row.index("</tr>")]


def test_a_failed_check_fails_its_case() -> None:
    root = ElementTree.fromstring(junit.render(told("FAIL")))
    failed = [case.get("name") for case in root.iter("testcase") if case.find("failure") is not None]
    assert any(name and name.startswith("parity") for name in failed)
    assert failed[-1] == "verdict"
