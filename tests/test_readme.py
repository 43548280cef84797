"""The README says what the program does: its plan loads, its commands exist, exit codes are ours, links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fp8migrate.cli import app
from fp8migrate.engine.preflight import preflight
from fp8migrate.errors import ExitCode
from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import MIGRATION_RECIPES
from fp8migrate.plan.load import load_plan, load_policy
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.base import Options
from fp8migrate.records.source import Source
from fp8migrate.verdict import ROWS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
YAML = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)


def test_the_plan_in_the_readme_can_be_run(tmp_path: Path) -> None:
    """Also with the candidate that the README shows further down in the place of the first."""
    plan, candidate = YAML[:2]
    for text in (plan, re.sub(r"candidate:\n(?:  .*\n)+", candidate, plan)):
        (tmp_path / "plan.yaml").write_text(text)
        loaded = load_plan(tmp_path / "plan.yaml")
        preflight(loaded)
        assert loaded.plan.name == "llama-1b"
    assert [rule.recipe.kind for rule in loaded.plan.candidate.policy] == ["bf16", "block"]


def test_the_log_format_in_the_readme_reads_what_it_describes(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(YAML[2])
    options = Options(format=str(tmp_path / "mine.yaml"))
    (run,) = read_log(Source("log", None, b"at 10 we lose 2.500\nat 20 we lose 2.125\n"), options)
    assert (run.format, run.series["training_loss"].values.tolist()) == ("mine", [2.5, 2.125])


def test_the_gate_policy_in_the_readme_is_one(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(YAML[3])
    policy = load_policy(tmp_path / "policy.yaml")
    assert (policy.require, policy.metrics.tier_of("training_loss")) == (("configuration", "fp8"), "supporting")


@pytest.mark.parametrize("text", YAML[4:6])
def test_the_ci_jobs_in_the_readme_gate_on_that_policy(text: str) -> None:
    assert "fp8migrate gate ci/policy.yaml" in text
    assert isinstance(yaml.safe_load(text), dict)
    assert "reports/nightly" in text


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


def test_the_table_of_recipes_is_what_they_do() -> None:
    """Each GEMM's operands, of every recipe with its defaults; the fixed scale and BF16 are no recipes to migrate to."""
    for recipe in MIGRATION_RECIPES:
        cells = []
        for gemm in GEMMS:
            pair = recipe.operands(gemm)
            words = ["BF16"] if pair is None else list(dict.fromkeys(operand.in_words for operand in pair))
            cells.append(" × ".join(words))
        assert f"| `{recipe.kind}` | {' | '.join(cells)} |" in README
