"""The report: one frozen `Report` as html, md, json and junit. A format is one file with `render`, and one line here."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fp8migrate.report import html, json, junit, markdown
from fp8migrate.verdict import Report


@dataclass(frozen=True)
class Format:
    file_name: str
    render: Callable[[Report], str | bytes]


FORMATS: Mapping[str, Format] = {
    "html": Format("report.html", html.render),
    "md": Format("report.md", markdown.render),
    "json": Format("report.json", json.render),
    "junit": Format("junit.xml", junit.render),
}


def write_all(report: Report, folder: Path) -> dict[str, Path]:
    """Every format into `folder`, each file replaced as a whole: a reader never sees half a report."""
    rendered = {name: form.render(report) for name, form in FORMATS.items()}
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, content in rendered.items():
        written[name] = folder / FORMATS[name].file_name
        _replace(written[name], content.encode("utf-8") if isinstance(content, str) else content)
    return written


def add_to_job_summary(markdown: Path) -> None:
    """Append the report to the summary page of a GitHub Actions job, where there is one."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as stream:
            stream.write(markdown.read_text(encoding="utf-8") + "\n")


def _replace(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes the file private; a report is for whoever may read the folder.
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
