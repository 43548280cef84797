"""What a worker writes: one run directory, so that kill -9, a full disk or a power cut leave a run that can go on.

run.json is replaced as a whole; metrics.jsonl and evals.jsonl grow by whole lines; a table is written once. Before a
checkpoint is put in place, call `sync`: then every line up to its step is on disk, and `resume_after` that step gives the
same files as a run that was never stopped.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import ValidationError

from fp8migrate.errors import UsageError
from fp8migrate.jobs import Forward
from fp8migrate.records.files import AppendFile, FileLock, replace_file, write_errors
from fp8migrate.records.nonfinite import decode, encode, word
from fp8migrate.records.schema import Conversion, Environment, Outcome, RunFile

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"
EVALS_FILE = "evals.jsonl"
TABLES = "tables"
CHECKPOINTS = "checkpoints"
LOG_FILE = "worker.log"
LOCK_FILE = ".lock"

_TABLE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_CHECKPOINT_NAME = re.compile(r"step-([0-9]{8,18})\.safetensors")


def checkpoint_path(directory: Path, step: int) -> Path:
    """Where the checkpoint after `step` updates lies. Names sort by step."""
    return directory / CHECKPOINTS / f"step-{step:08d}.safetensors"


def last_checkpoint(directory: Path) -> tuple[int, Path] | None:
    """The step and path of the newest checkpoint of a run, none where it has none yet."""
    folder = directory / CHECKPOINTS
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    steps = [int(match[1]) for name in names if (match := _CHECKPOINT_NAME.fullmatch(name))]
    return (max(steps), checkpoint_path(directory, max(steps))) if steps else None


def load_run_file(directory: Path) -> RunFile:
    """run.json of a run directory. Raises UsageError naming the file where it is missing, unreadable or malformed."""
    path = directory / RUN_FILE
    try:
        return RunFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            f"is not a run file: {f'{place}: ' if place else ''}{first['msg']}",
            where=str(path),
            next_step=f"Delete the folder {directory} to have the run done again.",
        ) from error


def save_run_file(directory: Path, run: RunFile) -> None:
    """Replace run.json. Raises InfrastructureError."""
    replace_file(directory / RUN_FILE, orjson.dumps(run.model_dump(mode="json"), option=orjson.OPT_INDENT_2))


class RunWriter:
    """Writes one run directory that the engine has prepared (run.json names the job). One writer at a time: `lock` first.

    Every method raises InfrastructureError when the disk is full or fails, UsageError when it cannot be written to at all;
    then nothing is left half-written.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.run = load_run_file(directory)
        self._files: dict[str, AppendFile] = {}
        self._lock = FileLock(directory / LOCK_FILE)

    def lock(self, timeout_seconds: float = 30.0) -> None:
        """Keep every other writer out until this process ends. Raises UsageError naming the holder after the time-out."""
        with write_errors(self._lock.path):
            self._lock.acquire(timeout_seconds)
        self.run = load_run_file(self.directory)

    def resume_after(self, step: int | None) -> None:
        """Forget what was logged beyond `step`: the run goes on from its checkpoint and logs those steps again.

        None: there is no checkpoint, forget everything. Unreadable lines between kept ones stay, and stay counted.
        """
        self._close_files()
        for name in (METRICS_FILE, EVALS_FILE):
            path = self.directory / name
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            kept = [] if step is None else _lines_until(lines, step)
            if kept != lines:
                replace_file(path, b"".join(kept))

    def log(self, step: int, **values: float) -> None:
        """One line of metrics after `step` updates: loss (nats per token), grad_norm, learning_rate, step_seconds, ..."""
        line = {name: word(float(value)) for name, value in values.items()}
        self._append(METRICS_FILE, orjson.dumps({"step": int(step), **line}))

    def evaluation(
        self,
        step: int,
        forward: Forward,
        loss: float,
        document_nll: Sequence[float] | NDArray[np.float64],
        document_tokens: Sequence[int] | NDArray[np.int64],
        documents_sha256: str,
    ) -> None:
        """One held-out evaluation. loss: mean, nats per token. document_nll: sums in nats, beside each document's tokens."""
        row = {
            "step": int(step),
            "forward": forward,
            "loss": word(float(loss)),
            "document_nll": encode(np.asarray(document_nll, dtype=np.float64)),
            "document_tokens": np.asarray(document_tokens, dtype=np.int64).tolist(),
            "documents_sha256": documents_sha256,
        }
        self._append(EVALS_FILE, orjson.dumps(row))

    def table(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the table `name` as a whole, replacing an earlier one. Text that reads "NaN" or "Infinity" becomes a number."""
        if not _TABLE_NAME.fullmatch(name):
            raise ValueError(f"table name {name!r} is not a plain name")
        folder = self.directory / TABLES
        with write_errors(folder):
            folder.mkdir(exist_ok=True)
        replace_file(folder / f"{name}.jsonl", b"".join(orjson.dumps(encode(row)) + b"\n" for row in rows))

    def read_table(self, name: str) -> list[dict[str, Any]]:
        """A table as written by an attempt before; no rows where there is none."""
        path = self.directory / TABLES / f"{name}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [decode(orjson.loads(line)) for line in lines]

    def update(
        self,
        *,
        environment: Environment | None = None,
        conversion: Conversion | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Merge into run.json what has become known. Facts are added to those already there; the key never changes."""
        changes: dict[str, Any] = {"facts": self.run.facts | encode(facts or {})}
        if environment is not None:
            changes["environment"] = environment
        if conversion is not None:
            changes["conversion"] = conversion
        self._save(self.run.model_copy(update=changes))

    def fact(self, name: str, default: float) -> float:
        """A number among the facts that this run has on record."""
        return float(self.run.facts.get(name, default))

    def finish(self, outcome: Outcome) -> None:
        """Record how this attempt ended; everything logged is on disk before. Its wall_seconds add to earlier attempts'."""
        self.sync()
        before = self.run.outcome
        total = before.wall_seconds + outcome.wall_seconds
        changes = {"attempts": before.attempts, "wall_seconds": total}
        self._save(self.run.model_copy(update={"outcome": outcome.model_copy(update=changes)}))
        self._close_files()

    def sync(self) -> None:
        """Make all lines survive a power cut. Call it before a checkpoint is put in place."""
        for file in self._files.values():
            file.sync()

    def _append(self, name: str, line: bytes) -> None:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = AppendFile(self.directory / name)
        file.append(line)

    def _save(self, run: RunFile) -> None:
        save_run_file(self.directory, run)
        self.run = run

    def _close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def _lines_until(lines: Sequence[bytes], step: int) -> list[bytes]:
    """Lines of steps up to `step`, and unreadable ones among them; nothing after the last such line."""
    kept: list[bytes] = []
    end = 0
    for line in lines:
        line_step = _step_of(line)
        if line_step is None:
            kept.append(line)
        elif line_step <= step:
            kept.append(line if line.endswith(b"\n") else line + b"\n")
            end = len(kept)
    return kept[:end]


def _step_of(line: bytes) -> int | None:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    step = row.get("step") if isinstance(row, dict) else None
    return step if type(step) is int else None
