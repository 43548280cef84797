"""Writing the report's files."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fp8migrate import report as package
from fp8migrate.report import FORMATS, write_all

from . import samples


def test_every_format_is_written(tmp_path: Path) -> None:
    report = samples.minimal()
    written = write_all(report, tmp_path / "new" / "folder")
    assert {name: path.name for name, path in written.items()} == {
        "html": "report.html",
        "md": "report.md",
        "json": "report.json",
        "junit": "junit.xml",
    }
    for name, path in written.items():
        content = FORMATS[name].render(report)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(p.name for p in written.values())


def test_a_failed_write_leaves_the_old_report_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(samples.minimal(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_all(replace(samples.minimal(), headline="another"), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_importing_the_package_imports_neither_matplotlib_nor_jinja() -> None:
    code = "import sys, fp8migrate.report; print([m for m in ('matplotlib', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_drawing_leaves_matplotlibs_settings_alone() -> None:
    import matplotlib

    before = matplotlib.rcParams.copy()
    FORMATS["html"].render(samples.minimal())
    assert matplotlib.rcParams.copy() == before
