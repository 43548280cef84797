"""junit.xml: what CI systems show. One suite per phase, one case per check, and one case for the verdict.

fail is a <failure>; inconclusive is an <error>, because missing evidence must not look like a pass; skipped is <skipped>.
Advisory results never fail a build: what they found is in a <skipped> message.
"""

import re
from collections import Counter
from xml.etree import ElementTree

from fp8migrate.checks.schema import CheckResult
from fp8migrate.report import view
from fp8migrate.report.words import clean, held_against, interval, measured
from fp8migrate.verdict import PhaseReport, Report


def render(report: Report) -> bytes:
    suites = [_phase_suite(report, phase) for phase in report.phases]
    suites.append(_verdict_suite(report))
    root = ElementTree.Element("testsuites", {"name": _attribute(report.name), **_totals(suites)})
    root.extend(suites)
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _phase_suite(report: Report, phase: PhaseReport) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", {"name": _attribute(phase.name)})
    if phase.state == "not_run":
        case = _case(suite, report, phase.name, "phase")
        ElementTree.SubElement(case, "skipped", {"message": _attribute(f"not run: {phase.note}" if phase.note else "not run")})
    seen: Counter[str] = Counter()
    for result in phase.results:
        name = f"{result.check} [{result.scope}]" if result.scope else result.check
        seen[name] += 1
        _check(suite, report, phase.name, result, name if seen[name] == 1 else f"{name} ({seen[name]})")
    return _counted(suite, phase.wall_seconds)


def _check(suite: ElementTree.Element, report: Report, phase: str, result: CheckResult, name: str) -> None:
    case = _case(suite, report, phase, name)
    message = f"{result.code}: {result.summary}" if result.code else result.summary
    if result.advisory and result.status in ("fail", "inconclusive"):
        ElementTree.SubElement(case, "skipped", {"message": _attribute(f"advisory, {result.status}: {message}")})
    elif result.status != "pass":
        tag = {"fail": "failure", "inconclusive": "error", "skipped": "skipped"}[result.status]
        found = ElementTree.SubElement(case, tag, {"message": _attribute(message)})
        if tag != "skipped":
            found.set("type", _attribute(result.code or result.status))
            found.text = clean(_numbers(result))
    else:
        ElementTree.SubElement(case, "system-out").text = clean(f"{message}\n{_numbers(result)}".strip())


def _numbers(result: CheckResult) -> str:
    told = {"measured": measured(result), "limit": held_against(result), "interval": interval(result)}
    lines = [f"{name}: {value}" for name, value in told.items() if value != "—"]
    return "\n".join([*lines, *(f"evidence: {item}" for item in result.evidence)])


def _verdict_suite(report: Report) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", {"name": "verdict"})
    properties = ElementTree.SubElement(suite, "properties")
    for name in ("plan_sha256", "evidence_sha256", "version", "created"):
        if value := getattr(report, name):
            ElementTree.SubElement(properties, "property", {"name": name, "value": _attribute(value)})
    case = _case(suite, report, "verdict", "verdict")
    verdict = report.verdict
    text = clean(f"{report.headline}\n{verdict.why}\n{verdict.next_step}".rstrip())
    if verdict.name == "PASS":
        ElementTree.SubElement(case, "system-out").text = text
    else:
        tag = "failure" if verdict.name == "FAIL" else "error"
        words = f"{verdict.name} {view.code_of(report)}".rstrip()
        found = ElementTree.SubElement(case, tag, {"message": _attribute(f"{words}: {verdict.why}"), "type": _attribute(words)})
        found.text = text
    return _counted(suite, 0.0)


def _case(suite: ElementTree.Element, report: Report, phase: str, name: str) -> ElementTree.Element:
    names = {"classname": _attribute(f"{report.name}.{phase}"), "name": _attribute(name)}
    return ElementTree.SubElement(suite, "testcase", names)


def _counted(suite: ElementTree.Element, seconds: float) -> ElementTree.Element:
    suite.set("tests", str(len(suite.findall("testcase"))))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("time", f"{seconds:.3f}")
    return suite


def _totals(suites: list[ElementTree.Element]) -> dict[str, str]:
    return {
        name: str(sum(int(suite.get(name, "0")) for suite in suites)) for name in ("tests", "failures", "errors", "skipped")
    }


def _attribute(text: str) -> str:
    """One line: XML turns line breaks in attributes into blanks anyway."""
    return re.sub(r"\s+", " ", clean(text)).strip()
