"""report.md: a comment on a pull request. The verdict and why, the endpoints, what differs, what is not covered."""

import math
import re
from collections.abc import Iterable, Sequence

from fp8migrate.checks.schema import CheckResult
from fp8migrate.report import view
from fp8migrate.report.cells import Gap, gaps
from fp8migrate.report.words import ARM_WORDS, ENDPOINT_WORDS, bounds, clean, decibels, limit, number, percent, plural, share
from fp8migrate.verdict import Report

VERDICT_MARKS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "⚠️", "SCREENED": "🔎"}
# The comment points to report.html for the rest.
MAX_ROWS = 12
MAX_CANDIDATE_ROWS = 5
MAX_ITEMS = 7
_SCREENS_LAST = {"screen": 1, "long_screen": 2}
# What Markdown, GitHub's mathematics or HTML would take for markup.
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$!])")
_LIST_START = re.compile(r"^([-+](?=\s|$)|[-=](?=[-=])|\d+(?=[.)](?:\s|$)))")
# An invisible word joiner inside: nobody is notified, and nothing becomes a link.
_AUTOLINK = re.compile(r"(@)(?=\w)|(://)|(www)(?=\.)", re.IGNORECASE)


def render(report: Report) -> str:
    verdict = report.verdict
    code = f" `{_code(view.code_of(report))}`" if view.code_of(report) else ""
    lines = [f"## {VERDICT_MARKS[verdict.name]} {verdict.name}{code} — {text(report.name)}", ""]
    lines += [f"**{text(report.headline)}**", "", text(verdict.why)]
    if verdict.next_step:
        lines += ["", f"**Next:** {text(verdict.next_step)}"]
    lines += _phases(report) + _endpoints(report) + _items(report) + _checks(report.results) + _differences(report)
    lines += _advisor(report)
    lines += _list("Scope", report.scope)
    lines += _list("Not covered", (*report.not_covered, *view.not_run(report)))
    lines += _list("Forced", report.forced)
    lines += _reproduce(report)
    return "\n".join(lines) + "\n"


def text(value: str) -> str:
    """Any text as one line that Markdown shows as it is: no markup, no HTML, no table cell, no link, no mention."""
    line = re.sub(r"\s+", " ", clean(value)).strip()
    line = _SPECIAL.sub(r"\\\1", line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    line = _LIST_START.sub(lambda found: f"{found[1]}\\" if found[1].isdigit() else f"\\{found[1]}", line)
    return _AUTOLINK.sub(lambda found: f"{found[0]}\u2060" if found[0] != "://" else ":\u2060//", line)


def _code(value: str) -> str:
    """For inline code in a line or a cell: no backtick, no bar, no line break."""
    return re.sub(r"\s+", " ", clean(value).replace("`", "'").replace("|", "¦")).strip()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Cells are escaped already. Numbers are right-aligned: heads that end in ">"."""
    lines = ["| " + " | ".join(head.removesuffix(">") for head in heads) + " |"]
    lines.append("|" + "|".join(" ---: " if head.endswith(">") else " --- " for head in heads) + "|")
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _list(title: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    shown = [f"- {text(item)}" for item in items[:MAX_ITEMS]]
    return ["", f"**{title}**", "", *shown, *_more(len(items) - MAX_ITEMS)]


def _more(count: int) -> list[str]:
    return [f"- and {count} more, in report.html"] if count > 0 else []


def _phases(report: Report) -> list[str]:
    told = [f"{text(phase.name)} {view.STATE_WORDS[phase.state]}" for phase in report.phases]
    return ["", f"Phases: {' · '.join(told)}"] if told else []


def _endpoints(report: Report) -> list[str]:
    """What is judged comes first, of the design that says most; of each positive control its clearest row."""
    rows: list[tuple[str, Gap]] = []
    for title, comparison in sorted(view.titled(report), key=lambda one: _SCREENS_LAST.get(one[1].design, 0)):
        found = [gap for gap in gaps(comparison) if gap.pairs]
        shown = [gap for gap in found if gap.arm == "candidate"]
        shown.sort(key=lambda gap: gap.margin is None)
        controls = [gap for gap in found if gap.arm == "sensitivity"]
        rows += [(title, gap) for gap in shown[:MAX_CANDIDATE_ROWS]]
        rows += [(title, max(controls, key=_clearness))] if controls else []
    if not rows:
        return []
    heads = ("Design", "Start", "Endpoint", "Arm", "Pairs>", "Gap>", "One-sided 95 % bounds>", "Margin>", "Interval lies")
    lines = ["", *table(heads, [_endpoint(title, gap) for title, gap in rows[:MAX_ROWS]])]
    return [*lines, "", "Every arm, start and endpoint: report.html."]


def _items(report: Report) -> list[str]:
    """Tasks of the item evaluations, the worst first."""
    rows = view.item_rows(report)
    if report.items is None or not rows:
        return []
    deltas = [0.0 if task.difference is None else task.difference.delta for task in report.items.tasks]
    order = sorted(range(len(rows)), key=lambda place: deltas[place])[:MAX_ROWS]
    heads = ("Task", "BF16>", "FP8>", "Difference, points>", "Bounds>", "Documents>", "Flips>", "BF16 flips>")
    shown = [rows[place] for place in order]
    cells = [
        (text(r.task), r.baseline, r.candidate, r.difference, r.interval, r.documents, r.flips, r.baseline_flips) for r in shown
    ]
    more = [f"{len(rows) - len(shown)} more tasks: report.html."] if len(rows) > len(shown) else []
    return ["", "**Item evaluations** (the same documents in both arms)", "", *table(heads, cells), *more]


def _clearness(control: Gap) -> tuple[bool, float]:
    """How well a row shows that the design can convict: on a judged endpoint, then by its lower bound."""
    return control.margin is not None, -math.inf if control.lower is None else control.lower


def _endpoint(title: str, gap: Gap) -> tuple[str, ...]:
    return (
        text(title),
        "—" if gap.fraction is None else f"{number(gap.fraction * 100)} %",
        ENDPOINT_WORDS[gap.endpoint],
        ARM_WORDS[gap.arm],
        gap.counted,
        percent(gap.mean),
        bounds(gap.lower, gap.upper),
        "—" if gap.margin is None else limit(gap.margin),
        gap.against_margin or "—",
    )


def _checks(results: Sequence[CheckResult]) -> list[str]:
    """What did not pass. A long list of passes says nothing in a comment."""
    raised = [result for result in results if result.status in ("fail", "inconclusive")]
    order = {"fail": 0, "inconclusive": 1}
    raised.sort(key=lambda result: (result.advisory, order[result.status]))
    passed = sum(result.status == "pass" for result in results)
    lines = ["", f"Checks: {passed} of {len(results)} pass."] if results else []
    for result in raised[:MAX_ITEMS]:
        advisory = ", advisory" if result.advisory else ""
        code = f" `{_code(result.code)}`" if result.code else ""
        where = f" ({text(result.scope)})" if result.scope else ""
        lines.append(f"- **{result.status}**{advisory} `{_code(result.check)}`{where}{code}: {text(result.summary)}")
    if raised:
        lines.insert(2, "")
    return lines + _more(len(raised) - MAX_ITEMS)


def _differences(report: Report) -> list[str]:
    """Settings in which the arms differ beyond precision, and those that are not known."""
    lines: list[str] = []
    for title, comparison in view.titled(report):
        found = view.differences(comparison)
        if not found.unexpected and not found.unknown:
            if comparison.audit:
                lines.append(
                    f"- {text(title)}: the arms differ in precision alone ({plural(len(found.same), 'setting')} the same)"
                )
            continue
        rows = [*found.unexpected, *found.unknown]
        for row in rows[:MAX_ITEMS]:
            values = f"{text(row.baseline)} → {text(row.candidate)}"
            lines.append(f"- {text(title)}: **{row.status}** `{_code(row.setting)}`: {values}")
        lines += _more(len(rows) - MAX_ITEMS)
    return ["", "**What differs between the arms**", "", *lines] if lines else []


def _advisor(report: Report) -> list[str]:
    """What the BF16 run's tensors say about each recipe; nothing where they were not sampled."""
    advice = report.baseline.advice if report.baseline else None
    if advice is None:
        return []
    heads = ("Recipe", "Lowest SQNR>", "Most underflow>", "Most overflow>", "Layers to keep in BF16>")
    rows = [
        (
            text(", ".join((row.name, *row.tags))),
            decibels(row.it.worst.sqnr_db),
            share(row.it.underflow),
            share(row.it.overflow),
            str(len(row.it.keep)),
        )
        for row in view.advised_recipes(advice)[:MAX_ROWS]
    ]
    title = "**Advisor** (a forecast from the BF16 run's tensors, not a verdict)"
    return ["", title, "", text(advice.summary), "", *table(heads, rows)]


def _reproduce(report: Report) -> list[str]:
    commands = [clean(command).rstrip() for command in report.reproduce]
    # A fence longer than any run of backticks inside cannot be closed from inside.
    ticks = max((len(run) for command in commands for run in re.findall("`+", command)), default=0)
    fence = "`" * max(3, ticks + 1)
    lines = ["", "**How to reproduce**", ""]
    if commands:
        lines += [f"{fence}sh", *commands, fence, ""]
    lines.append(f"Plan `{_code(report.plan_sha256[:16])}` · evidence `{_code(report.evidence_sha256[:16])}`")
    if report.version:
        lines[-1] += f" · fp8migrate {text(report.version)}"
    return lines
