"""The report folder of one plan, `reports/<name>/`: its run directories, and the lock that keeps a second engine out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from fp8migrate.errors import UsageError
from fp8migrate.records.files import FileLock, replace_file, write_errors
from fp8migrate.records.schema import Environment

RUNS = "runs"
ENVIRONMENT_FILE = "environment.json"
# An engine that is killed while it starts a worker leaves the lock to it until that has become another program.
_DYING_SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class Workspace:
    """An open report folder. `lock` is None where it was opened to be read only. Use it as a context manager."""

    root: Path
    lock: FileLock | None

    @classmethod
    def open(cls, root: Path) -> Self:
        """Create `root` where needed and lock it for this process.

        Raises UsageError when another process holds it (naming it), or when it is a file, read-only or no usable path;
        InfrastructureError when the disk is full.
        """
        lock = FileLock(root / ".lock")
        with write_errors(root):
            root.mkdir(parents=True, exist_ok=True)
            lock.acquire(_DYING_SECONDS)
        try:
            with write_errors(root / RUNS):
                (root / RUNS).mkdir(exist_ok=True)
        except BaseException:
            lock.release()
            raise
        return cls(root, lock)

    @classmethod
    def open_to_read(cls, root: Path) -> Self:
        """Open a report folder that is there already, also while another process works in it. Raises UsageError."""
        if not root.is_dir():
            raise UsageError("there is no such report folder", where=str(root), next_step="Run the plan first.")
        return cls(root, None)

    @property
    def runs_dir(self) -> Path:
        return self.root / RUNS

    def write(self, name: str, content: str | bytes) -> Path:
        """Replace the file `name` of the folder as a whole. Raises UsageError, InfrastructureError; then the old one stays."""
        path = self.root / name
        replace_file(path, content.encode() if isinstance(content, str) else content)
        return path

    def environment(self) -> Environment | None:
        """Where the plan's runs were last executed, none before the first time. Raises UsageError on a damaged file."""
        path = self.root / ENVIRONMENT_FILE
        try:
            return Environment.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
        except ValidationError as error:
            raise UsageError(
                "is damaged", where=str(path), next_step="Delete it and run the plan again: runs that are done are reused."
            ) from error

    def remember(self, environment: Environment) -> None:
        """Keep where the plan's runs are executed, so that a report can be made later on another machine."""
        self.write(ENVIRONMENT_FILE, environment.model_dump_json(indent=2))

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
