"""The README says what the program does: its plan loads, its commands exist, exit codes are ours, links lead somewhere."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fp8migrate.cli import app
from fp8migrate.engine.preflight import preflight
from fp8migrate.errors import ExitCode
from fp8migrate.plan.load import load_plan
from fp8migrate.verdict import ROWS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_plan_in_the_readme_can_be_run(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "plan.yaml").write_text(block)
    loaded = load_plan(tmp_path / "plan.yaml")
    preflight(loaded)
    assert loaded.plan.name == "llama-1b"


@pytest.mark.parametrize("command", sorted(set(re.findall(r"(?:^|`)fp8migrate ([a-z-]+)", README, re.MULTILINE)) - {"answers"}))
def test_every_command_that_the_readme_names_is_there(command: str) -> None:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0


def test_the_exit_codes_are_ours() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d) \|", README, re.MULTILINE)]
    assert listed == [int(code) for code in ExitCode]


def test_the_codes_that_the_readme_names_are_in_the_ranked_table() -> None:
    named = set(re.findall(r"`([A-Z][A-Z0-9]+_[A-Z_0-9]+)`", README)) | {"UNDERPOWERED", "TRUNCATED"}
    assert named - {"NO_COLOR"} <= ROWS.keys()


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)", README))))
def test_what_the_readme_links_to_is_there(target: str) -> None:
    assert (ROOT / target).is_file()


def test_the_make_targets_that_the_readme_names_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
