"""What a worker has logged is there: after kill -9, on a full disk, after a torn line, and once only after a resume."""

import errno
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from fp8migrate.errors import InfrastructureError, UsageError
from fp8migrate.records.files import AppendFile, replace_file
from fp8migrate.records.schema import Conversion, Outcome
from fp8migrate.records.store import read_run
from fp8migrate.records.writer import RunWriter, checkpoint_path, last_checkpoint, load_run_file
from tests.records.runs import prepared_run


def lines(directory: Path, name: str = "metrics.jsonl") -> list[Any]:
    return [orjson.loads(line) for line in (directory / name).read_bytes().splitlines()]


def test_what_is_logged_can_be_read_before_the_writer_ends(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    writer.log(1, loss=5.5, grad_norm=0.1)
    assert read_run(directory).series["loss"].values.tolist() == [5.5]


def test_each_line_reaches_the_kernel_in_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = os.write
    writer = RunWriter(prepared_run(tmp_path))

    def watched(descriptor: int, content: bytes) -> int:
        writes.append(bytes(content))
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", watched)
    writer.log(1, loss=1.0)
    writer.evaluation(1, "fp8", 1.0, [1.0, 2.0], [3, 4], "documents")
    assert [line.endswith(b"\n") and line.count(b"\n") == 1 for line in writes] == [True, True]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-320, -0.0, 1.7976931348623157e308, 0.1 + 0.2])
def test_numbers_come_back_as_they_were(tmp_path: Path, value: float) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    writer.log(1, loss=value)
    writer.evaluation(1, "bf16", value, np.array([value, 1.0]), np.array([2, 3]), "documents")
    writer.table("layers", [{"name": "wq", "sqnr_db": value, "all": np.array([value])}])
    writer.update(facts={"spread": value, "nested": {"deep": [value]}})
    record = read_run(directory)
    back = [
        record.series["loss"].values[0],
        record.evaluations[0].loss,
        record.evaluations[0].document_nll[0],
        record.tables["layers"][0]["sqnr_db"],
        record.tables["layers"][0]["all"][0],
        record.facts["spread"],
        record.facts["nested"]["deep"][0],
    ]
    assert [repr(float(number)) for number in back] == [repr(value)] * len(back)
    assert record.unreadable_lines == 0
    assert b"null" not in (directory / "metrics.jsonl").read_bytes()


def test_update_adds_facts_and_keeps_the_rest(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    before = load_run_file(directory)
    writer.update(facts={"parameters": 12})
    conversion = Conversion(requested="delayed", effective="delayed", layers=(), fp8_flops_share=0.9)
    writer.update(facts={"initial_weights_sha256": "ab"}, conversion=conversion)
    after = load_run_file(directory)
    assert after.facts == {"parameters": 12, "initial_weights_sha256": "ab"}
    assert after.conversion == conversion
    assert (after.key, after.job, after.environment, after.outcome) == (
        before.key,
        before.job,
        before.environment,
        before.outcome,
    )


def test_finish_adds_up_attempts(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    RunWriter(directory).finish(Outcome(status="interrupted", last_step=3, wall_seconds=2.0))
    assert prepared_run(tmp_path) == directory
    RunWriter(directory).finish(Outcome(status="completed", last_step=9, wall_seconds=5.0))
    outcome = load_run_file(directory).outcome
    assert (outcome.status, outcome.attempts, outcome.wall_seconds) == ("completed", 2, 7.0)


@pytest.mark.parametrize("torn", [b"{", b'{"step":3,"loss":1', b'{"step":3,"loss":1.5}', b"\x00" * 5000, b"x" * 200_000])
def test_a_torn_last_line_is_cut_off_before_the_writer_goes_on(tmp_path: Path, torn: bytes) -> None:
    directory = prepared_run(tmp_path)
    RunWriter(directory).log(1, loss=1.0)
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    writer = RunWriter(directory)
    writer.log(2, loss=2.0)
    assert [line["step"] for line in lines(directory)] == [1, 2]


@pytest.mark.parametrize("torn", [b"", b'{"step":3,"lo'])
def test_resuming_logs_each_step_once(tmp_path: Path, torn: bytes) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    for step in (1, 2, 3, 4):
        writer.log(step, loss=float(step))
        writer.evaluation(step, "bf16", 1.0, [1.0], [1], "documents")
    with (directory / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    writer = RunWriter(directory)
    writer.resume_after(2)
    writer.log(3, loss=30.0)
    assert [(line["step"], line["loss"]) for line in lines(directory)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [line["step"] for line in lines(directory, "evals.jsonl")] == [1, 2]


def test_resuming_without_a_checkpoint_forgets_everything(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    writer.evaluation(0, "bf16", 1.0, [1.0], [1], "documents")
    writer.log(1, loss=1.0)
    writer.resume_after(None)
    record = read_run(directory)
    assert record.evaluations == ()
    assert record.series == {}


def test_a_line_is_completed_where_only_its_end_is_missing(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    (directory / "metrics.jsonl").write_bytes(b'{"step":1,"loss":1.0}\n{"step":2,"loss":2.0}')
    writer = RunWriter(directory)
    writer.resume_after(2)
    writer.log(3, loss=3.0)
    assert [line["step"] for line in lines(directory)] == [1, 2, 3]


def test_damage_in_the_middle_of_a_log_stays_countable(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    (directory / "metrics.jsonl").write_bytes(b'{"step":1,"loss":1.0}\n\xff\n{"step":2,"loss":2.0}\n{"step":3,"loss":3.0}\n')
    RunWriter(directory).resume_after(2)
    record = read_run(directory)
    assert record.series["loss"].steps.tolist() == [1, 2]
    assert record.unreadable_lines == 1


class FullDisk:
    """os.write as on a disk that has room for `room` more bytes: a short write first, then ENOSPC."""

    def __init__(self, room: int) -> None:
        self.room, self.write = room, os.write

    def __call__(self, descriptor: int, content: bytes) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.write(descriptor, bytes(content)[: self.room])
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 10, 30])
def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    writer.log(1, loss=1.0)
    before = (directory / "metrics.jsonl").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", FullDisk(room))
        with pytest.raises(InfrastructureError, match="No space left") as full:
            writer.log(2, loss=2.2222222222222223, grad_norm=0.1234567890123)
    assert full.value.exit_code == 5
    assert "Free some space" in str(full.value)
    assert (directory / "metrics.jsonl").read_bytes() == before
    writer.log(2, loss=2.0)
    assert [line["step"] for line in lines(directory)] == [1, 2]


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_full_disk_leaves_the_old_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    before = (directory / "run.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", FullDisk(room))
        with pytest.raises(InfrastructureError):
            writer.update(facts={"parameters": 1})
        with pytest.raises(InfrastructureError):
            writer.table("layers", [{"name": "x"}] * 100)
    assert (directory / "run.json").read_bytes() == before
    assert {path.name for path in directory.iterdir()} == {"run.json", ".lock", "tables"}
    assert list((directory / "tables").iterdir()) == []


def test_a_failing_disk_is_infrastructure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int, content: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    writer = RunWriter(prepared_run(tmp_path))
    monkeypatch.setattr(os, "write", broken)
    with pytest.raises(InfrastructureError, match="Input/output error"):
        writer.log(1, loss=1.0)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_read_only_place_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*arguments: object, **options: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(UsageError, match="cannot be written"):
        AppendFile(tmp_path / "metrics.jsonl")
    with pytest.raises(UsageError, match="cannot be written"):
        replace_file(tmp_path / "run.json", b"")


def test_a_crash_between_writing_and_renaming_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    def crash(*arguments: object) -> None:
        raise Crash

    path = tmp_path / "run.json"
    replace_file(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", crash)
        with pytest.raises(Crash):
            replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    replace_file(path, b"newer")
    assert path.read_bytes() == b"newer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    first, second = RunWriter(directory), RunWriter(directory)
    first.lock()
    with pytest.raises(UsageError, match=f"in use by process {os.getpid()} on .* since 20"):
        second.lock(timeout_seconds=0.1)


@pytest.mark.parametrize("name", ["../escape", "a/b", "", ".hidden", "x" * 65, "a\n"])
def test_a_table_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a plain name"):
        RunWriter(prepared_run(tmp_path)).table(name, [])


def test_the_last_checkpoint_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path) is None
    (tmp_path / "checkpoints").mkdir()
    for step in (5, 100, 20):
        checkpoint_path(tmp_path, step).touch()
    for other in ("step-00000900.tmp", "step-00000900.safetensors.tmp", "step-9.safetensors", "notes.txt"):
        (tmp_path / "checkpoints" / other).touch()
    assert last_checkpoint(tmp_path) == (100, tmp_path / "checkpoints" / "step-00000100.safetensors")
