"""The report folder: one engine at a time; a place that cannot be used is said so, and nothing is left behind."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp8migrate.engine.workspace import Workspace
from fp8migrate.errors import InfrastructureError, UsageError
from tests.engine.stage import ENVIRONMENT, Diary, run_jobs, train_job


@pytest.fixture
def tiny_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, with the mount options that the test gives."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount") or pytest.skip("there is no mount program here")
    mounted = subprocess.run([mount, "-t", "tmpfs", "-o", request.param, "tmpfs", place], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a file system is not allowed here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run([shutil.which("umount") or "umount", place], check=True)


def enlarge(place: Path) -> None:
    subprocess.run([shutil.which("mount") or "", "-o", "remount,size=4m", place], check=True)


def test_a_second_engine_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "w"), pytest.raises(UsageError) as error:
        Workspace.open(tmp_path / "w")
    assert error.value.exit_code == 2
    assert f"in use by process {os.getpid()}" in str(error.value)
    assert "since 20" in str(error.value)
    assert "Wait until it has ended, or stop it" in str(error.value)


HOLDER = """
import pathlib, subprocess, sys, time
from fp8migrate.engine.workspace import Workspace
workspace = Workspace.open(pathlib.Path(sys.argv[1]))
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
                         stdout=subprocess.PIPE, close_fds=False)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


def test_the_folder_is_free_once_its_engine_is_killed_even_if_a_child_of_it_lives_on(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "w")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(UsageError, match=f"in use by process {holder.pid}"):
            Workspace.open(tmp_path / "w")
        holder.kill()
        holder.communicate()
        os.kill(child, 0)
        Workspace.open(tmp_path / "w").close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_folder_can_be_read_while_an_engine_works_in_it(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "w") as writing:
        writing.remember(ENVIRONMENT)
        with Workspace.open_to_read(tmp_path / "w") as reading:
            assert reading.environment() == ENVIRONMENT


def test_a_lock_file_of_garbage_is_no_traceback(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "w"):
        (tmp_path / "w" / ".lock").write_bytes(b"\xff\x00[]")
        with pytest.raises(UsageError, match="in use by another process"):
            Workspace.open(tmp_path / "w")


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300])
def test_a_path_that_cannot_be_a_folder_is_a_usage_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("content")
    with pytest.raises(UsageError, match="cannot be written") as error:
        Workspace.open(tmp_path / name)
    assert error.value.exit_code == 2
    assert (tmp_path / "file").read_text() == "content"


def test_a_folder_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such report folder"):
        Workspace.open_to_read(tmp_path / "nowhere")


@pytest.mark.parametrize("tiny_disk", ["ro"], indirect=True)
def test_a_read_only_place_is_a_usage_error(tiny_disk: Path) -> None:
    with pytest.raises(UsageError, match="Read-only") as error:
        Workspace.open(tiny_disk / "w")
    assert error.value.exit_code == 2


def test_a_forbidden_place_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permission bits do not bind root, so the refusal is played.
    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(UsageError, match="Permission denied"):
        Workspace.open(tmp_path / "w")


@pytest.mark.parametrize("tiny_disk", ["size=16k"], indirect=True)
def test_a_full_disk_is_infrastructure_and_leaves_nothing_half_written(tiny_disk: Path) -> None:
    with Workspace.open(tiny_disk / "w") as workspace:
        workspace.write("report.json", b"old")
        with pytest.raises(InfrastructureError, match=r"report\.json.*No space left") as error:
            workspace.write("report.json", b"x" * 100_000)
        assert error.value.exit_code == 5
        assert (tiny_disk / "w" / "report.json").read_bytes() == b"old"
        assert {path.name for path in workspace.root.iterdir()} == {".lock", "runs", "report.json"}


@pytest.mark.parametrize("tiny_disk", ["size=44k"], indirect=True)
def test_a_disk_that_fills_up_under_a_run_ends_in_exit_code_5_and_is_gone_on_from(tiny_disk: Path) -> None:
    job = train_job("fills", last_step=2000, resume_every=500)
    with pytest.raises(InfrastructureError) as error:
        run_jobs(tiny_disk / "w", job)
    assert error.value.exit_code == 5
    enlarge(tiny_disk)
    diary = Diary()
    record = run_jobs(tiny_disk / "w", job, observer=diary).records[job.digest]
    assert diary.started() == ["fills"]
    assert record.outcome.status == "completed"
    assert record.series["loss"].steps.tolist() == list(range(1, 2001))
    assert record.unreadable_lines == 0


def test_a_damaged_environment_file_is_named(tmp_path: Path) -> None:
    with Workspace.open(tmp_path / "w") as workspace:
        assert workspace.environment() is None
        workspace.write("environment.json", "{")
        with pytest.raises(UsageError, match=r"environment\.json.*damaged"):
            workspace.environment()


def test_a_lock_that_a_dying_engine_left_to_a_child_is_waited_for(tmp_path: Path) -> None:
    """As between a worker's fork and its exec: the descriptor is still open in another process."""
    held = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    child = subprocess.Popen(["sleep", "0.3"], pass_fds=[held])
    os.close(held)
    with Workspace.open(tmp_path) as workspace:
        assert workspace.lock is not None
        assert child.wait(10) == 0
