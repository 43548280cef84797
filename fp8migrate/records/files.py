"""Files that survive: replaced as a whole, appended to by whole lines, locked by one process at a time."""

import errno
import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import orjson

from fp8migrate.errors import InfrastructureError, UsageError

_LOCK_POLL_SECONDS = 0.05
_TAIL_BYTES = 65536


# A folder that cannot be used as it is given (exit code 2); every other failure is the machine's (exit code 5).
_UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Failures of the operating system while `path` is written, as UsageError (read-only, a file in the way) or
    InfrastructureError (full disk, broken disk).
    """
    try:
        yield
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}"
        if error.errno in _UNUSABLE:
            raise UsageError(what, where=str(path), next_step="Name a folder that can be written to.") from error
        cure = "Free some space" if error.errno in _FULL else "Once the disk can be written to again"
        next_step = f"{cure}, then give the same command again: it goes on from what is there."
        raise InfrastructureError(what, where=str(path), next_step=next_step) from error


def replace_file(path: Path, content: bytes) -> None:
    """Write `path` so that a reader, or a crash at any moment, finds the old content or the new, never a mixture.

    Raises InfrastructureError. The caller sees to it that nobody else writes the same path.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with write_errors(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            try:
                _write_all(descriptor, content)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
            sync_directory(path.parent)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(directory: Path) -> None:
    """Make a rename in `directory` survive a power cut. File systems that cannot are passed over."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


class AppendFile:
    """A file of lines that one process appends to. Each line reaches the kernel in one write: kill -9 loses no line.

    A last line that a crash left without its line end is cut off on opening. Raises InfrastructureError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with write_errors(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._cut_torn_line()

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        end = size
        while end > 0:
            start = max(0, end - _TAIL_BYTES)
            newline = os.pread(self._descriptor, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end != size:
            os.ftruncate(self._descriptor, end)

    def append(self, line: bytes) -> None:
        """Append `line` (without its line end), or nothing at all."""
        content = line + b"\n"
        with write_errors(self.path):
            written = os.write(self._descriptor, content)
            if written != len(content):
                # A disk that fills up takes part of a line first. Take it back: nothing is left half-written.
                os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Wait until everything appended so far would survive a power cut."""
        with write_errors(self.path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class FileLock:
    """An exclusive lock on a file, given up by the kernel when its process ends, however it ends. Not inherited."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, timeout_seconds: float = 0.0) -> Self:
        """Take the lock, waiting up to `timeout_seconds`. Raises UsageError naming the holder; OSError as the system does."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait(descriptor, time.monotonic() + timeout_seconds)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, orjson.dumps(_holder()), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return self

    def _wait(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UsageError(
                        f"in use by {describe_holder(self.path)}",
                        where=str(self.path.parent),
                        next_step="Wait until it has ended, or stop it; then give the same command again.",
                    ) from None
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return

    def release(self) -> None:
        if self._descriptor is not None:
            # The file stays: were it removed, a process waiting on it and a newcomer could both hold "the" lock.
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
                # Said aloud: a child that is just being started may still hold a copy of the descriptor.
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _holder() -> dict[str, Any]:
    return {"pid": os.getpid(), "since": datetime.now(UTC).isoformat(timespec="seconds"), "host": platform.node()}


def describe_holder(path: Path) -> str:
    """Who wrote itself into a lock file, for people. The text is informative only: the kernel's lock is what counts."""
    try:
        holder = orjson.loads(path.read_bytes()[:4096])
        return f"process {int(holder['pid'])} on {str(holder['host'])[:80]!r} since {str(holder['since'])[:40]}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
