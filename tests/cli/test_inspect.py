"""`fp8migrate inspect`: what people see of their logs before they compare anything."""

import json
from pathlib import Path

from tests.cli.conftest import Command


def rows(*objects: dict[str, object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in objects)


def test_series_with_range_interval_digits_and_what_is_missing(fp8migrate: Command, tmp_path: Path) -> None:
    text = rows(*({"step": step, "loss": 5.25, "host": "a"} for step in (10, 20, 30, 50)))
    (tmp_path / "a.jsonl").write_text(text + "{torn\n")
    shown = fp8migrate("inspect", "a.jsonl")
    assert shown.returncode == 0, shown.stderr
    assert "a.jsonl: jsonl, 1 run, 5 lines" in shown.stdout
    assert "training loss (`loss`): 4 points, steps 10 to 50, every 10, 3 digits, last 5.25 nats" in shown.stdout
    assert "1 point missing in between" in shown.stdout
    assert "not used: host" in shown.stdout
    assert "not understood: 1 line, the first: {torn" in shown.stdout


def test_a_folder_shows_its_logs_and_passes_over_the_rest(fp8migrate: Command, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "deeper"
    folder.mkdir(parents=True)
    (folder / "one.jsonl").write_text(rows({"step": 1, "loss": 2.5}))
    (folder / "README").write_text("nothing to read here\n")
    shown = fp8migrate("inspect", "logs")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("1 run") == 1
    assert "passed over, in no format that is known: logs/deeper/README" in shown.stdout


def test_named_columns(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(rows({"t": 1, "ce": 2.5}, {"t": 2, "ce": 2.25}))
    assert "holds no loss" in fp8migrate("inspect", "a.jsonl").stderr
    shown = fp8migrate("inspect", "a.jsonl", "--columns", "training_loss=ce,step=t")
    assert "training loss (`ce`)" in shown.stdout
    assert "steps 1 to 2" in shown.stdout


def test_refusals_say_what_and_where_and_exit_with_2(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.jsonl").write_text(rows({"step": 1, "loss": 2.5}))
    for arguments, said in (
        (("missing.log",), "missing.log: cannot be read"),
        (("empty.log",), "empty.log: is empty"),
        (("folder",), "folder: is an empty folder"),
        (("nothing*.log",), "nothing*.log: matches no file"),
        (("a.jsonl", "--format", "megatrom"), "Known formats: "),
        (("a.jsonl", "--columns", "loss"), "names no column"),
        (("a.jsonl", "--columns", "lozz=ce"), "no quantity 'lozz'"),
    ):
        refused = fp8migrate("inspect", *arguments)
        assert refused.returncode == 2, arguments
        assert said in refused.stderr
        assert "Traceback" not in refused.stderr


def test_nothing_that_a_terminal_obeys_is_printed(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(rows({"run": "\x1b[31mred", "step": 1, "loss": 2.5, "\x1b]0;title": 3}))
    shown = fp8migrate("inspect", "a.jsonl")
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout


def test_one_log_without_a_loss_does_not_hide_the_others(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(rows({"step": 1, "grad_norm": 1.5}))
    (tmp_path / "b.jsonl").write_text(rows({"step": 1, "loss": 2.5}))
    shown = fp8migrate("inspect", "a.jsonl", "b.jsonl")
    assert shown.returncode == 2
    assert "a.jsonl: holds no loss" in shown.stderr
    assert "b.jsonl: jsonl, 1 run" in shown.stdout


def test_a_format_of_ones_own(fp8migrate: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("name: mine\nline: 'at (?P<step>\\d+) we lose (?P<training_loss>\\S+)'\n")
    (tmp_path / "a.txt").write_text("at 10 we lose 2.500\nat 20 we lose 2.125\n")
    shown = fp8migrate("inspect", "a.txt", "--format", "mine.yaml")
    assert shown.returncode == 0, shown.stderr
    assert "a.txt: mine, 1 run" in shown.stdout
    assert "2 points, steps 10 to 20, every 10, 4 digits, last 2.125 nats" in shown.stdout
