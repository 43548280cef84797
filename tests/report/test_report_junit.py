"""junit.xml as CI systems read it."""

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8migrate.checks.schema import CheckResult
from fp8migrate.report.junit import render
from fp8migrate.verdict import PhaseReport, Report

from . import samples


def parsed(report: Report) -> ElementTree.Element:
    return ElementTree.fromstring(render(report))


def case(root: ElementTree.Element, suite: str, name: str) -> ElementTree.Element:
    found = root.find(f"testsuite[@name='{suite}']/testcase[@name='{name}']")
    assert found is not None
    return found


def one_result(**fields: Any) -> Report:
    result = CheckResult(**({"check": "parity", "status": "fail", "summary": "Too far."} | fields))
    return replace(samples.report(), phases=(PhaseReport("small_scale", "failed", (result,), "", 12.5),))


@pytest.mark.parametrize(
    ("kind", "tag"), [("FAIL", "failure"), ("INCONCLUSIVE", "error"), ("SCREENED", "error"), ("PASS", None)]
)
def test_the_verdict_is_a_case(kind: str, tag: str | None) -> None:
    found = case(parsed(samples.report(kind)), "verdict", "verdict")
    outcome = [child.tag for child in found if child.tag in ("failure", "error", "skipped")]
    assert outcome == ([tag] if tag else [])
    text = ElementTree.tostring(found, encoding="unicode")
    assert samples.VERDICTS[kind].why in text


@pytest.mark.parametrize(("status", "tag"), [("fail", "failure"), ("inconclusive", "error"), ("skipped", "skipped")])
def test_status_becomes_its_tag(status: str, tag: str) -> None:
    root = parsed(one_result(status=status, code="GAP", measured=0.018, limit=0.0025, unit="relative", interval=(0.01, 0.03)))
    found = case(root, "small_scale", "parity")
    assert [child.tag for child in found] == [tag]
    assert found[0].get("message") == "GAP: Too far."
    if tag != "skipped":
        assert found[0].get("type") == "GAP"
        assert found[0].text == "measured: +1.80 %\nlimit: 0.25 %\ninterval: [+1.00, +3.00] %"


@pytest.mark.parametrize("status", ["fail", "inconclusive"])
def test_advisory_results_never_fail(status: str) -> None:
    root = parsed(one_result(status=status, advisory=True, code="SPIKES"))
    found = case(root, "small_scale", "parity")
    assert [(child.tag, child.get("message")) for child in found] == [("skipped", f"advisory, {status}: SPIKES: Too far.")]


def test_one_suite_per_phase_with_counts_that_add_up() -> None:
    root = parsed(samples.report("FAIL"))
    assert [suite.get("name") for suite in root] == ["baseline", "integration", "small_scale", "full_scale", "verdict"]
    for suite in root:
        assert int(suite.get("tests", "")) == len(suite.findall("testcase"))
    small = root.find("testsuite[@name='small_scale']")
    assert small is not None
    assert (small.get("failures"), small.get("skipped"), small.get("time")) == ("1", "1", "4312.000")
    for name in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(name, "")) == sum(int(suite.get(name, "")) for suite in root)


def test_a_phase_that_did_not_run_is_skipped_with_its_reason() -> None:
    skipped = case(parsed(samples.report()), "full_scale", "phase").find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not run: not in this version"


def test_equal_names_are_told_apart() -> None:
    result = CheckResult("parity", "pass", "Fine.", scope="branch")
    report = replace(
        samples.report(), phases=(PhaseReport("small_scale", "passed", (result, result, replace(result, scope=""))),)
    )
    names = [found.get("name") for found in parsed(report).findall("testsuite[@name='small_scale']/testcase")]
    assert names == ["parity [branch]", "parity [branch] (2)", "parity"]


@given(st.text(), st.text())
@settings(max_examples=60)
def test_any_text_gives_valid_xml(summary: str, name: str) -> None:
    root = parsed(replace(one_result(summary=summary, check=name, evidence=(summary,)), name=name, headline=summary))
    assert root.get("tests") == "2"


def test_the_digests_are_properties() -> None:
    found = parsed(samples.report()).find("testsuite/properties/property[@name='evidence_sha256']")
    assert found is not None
    assert found.get("value") == "34" * 32


def test_rendering_twice_is_equal() -> None:
    assert render(samples.many()) == render(samples.many())
