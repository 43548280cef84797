"""Whatever is given instead of a plan: one message, exit 2, nothing left behind."""

from pathlib import Path

import pytest

from tests.cli.conftest import TINY_PLAN, Command

BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "only comments": (b"# nothing\n", "only comments"),
    "binary": (bytes(range(256)), "binary"),
    "not YAML": (b"name: [unclosed\n", "plan.yaml:"),
    "a list": (b"- a\n- b\n", "expected a mapping"),
    "a tag that would run code": (b"name: !!python/object/apply:os.system ['touch owned']\n", "plan.yaml:1"),
    "an unknown key": (TINY_PLAN.replace("num_steps", "num_step").encode(), "num_steps"),
    "a name outside the folder": (TINY_PLAN.replace("name: tiny", "name: ../outside").encode(), "plan.yaml:1: name"),
    "an absolute name": (TINY_PLAN.replace("name: tiny", "name: /etc/passwd").encode(), "plan.yaml:1: name"),
    "a repeated key": (b"name: a\n" + TINY_PLAN.encode(), "name"),
    "a wrong type": (TINY_PLAN.replace("num_steps: 24", "num_steps: many").encode(), "num_steps"),
    "nothing left for FP8": (TINY_PLAN.replace("[lm_head]", '["*"]').encode(), "nothing is left to judge"),
    "a filter that matches nothing": (TINY_PLAN.replace("[lm_head]", "[output]").encode(), "matches no layer"),
}


@pytest.mark.parametrize(("content", "expected"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_plan_is_refused_with_its_place(fp8migrate: Command, tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "plan.yaml").write_bytes(content)
    ended = fp8migrate("run", "plan.yaml")
    assert ended.returncode == 2
    assert expected in ended.stderr
    assert "plan.yaml" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["plan.yaml"]


def test_a_missing_file_names_one_that_is_near(fp8migrate: Command, tiny: Path) -> None:
    ended = fp8migrate("run", "tinny.yaml")
    assert ended.returncode == 2
    assert "no such file" in ended.stderr
    assert "tiny.yaml" in ended.stderr


def test_a_folder_is_not_a_plan(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    ended = fp8migrate("run", "plans")
    assert (ended.returncode, "folder" in ended.stderr) == (2, True)


def test_a_report_folder_that_cannot_be_made_is_refused(fp8migrate: Command, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("in the way")
    ended = fp8migrate("run", "tiny.yaml")
    assert ended.returncode == 2
    assert "reports" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_report_of_nothing_is_refused(fp8migrate: Command, tiny: Path) -> None:
    ended = fp8migrate("report", "tiny.yaml")
    assert (ended.returncode, "Run the plan first" in ended.stderr) == (2, True)


@pytest.mark.parametrize("command", ["integration", "small-scale"])
def test_a_phase_needs_the_one_before(fp8migrate: Command, tiny: Path, command: str) -> None:
    ended = fp8migrate(command, "tiny.yaml")
    assert ended.returncode == 2
    assert "baseline" in ended.stderr


@pytest.mark.parametrize("arguments", [["run"], ["run", "a", "b"], ["rnu", "plan.yaml"], ["run", "tiny.yaml", "--frobnicate"]])
def test_wrong_use_exits_2(fp8migrate: Command, tiny: Path, arguments: list[str]) -> None:
    assert fp8migrate(*arguments).returncode == 2


def test_init_never_overwrites(fp8migrate: Command, tmp_path: Path) -> None:
    assert fp8migrate("init", "mine.yaml").returncode == 0
    before = (tmp_path / "mine.yaml").read_text()
    assert before.startswith("#")
    ended = fp8migrate("init", "mine.yaml")
    assert (ended.returncode, "exists already" in ended.stderr) == (2, True)
    assert (tmp_path / "mine.yaml").read_text() == before
