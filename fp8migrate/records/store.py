"""Run directories read back as records, and found again by the digest of all that their numbers depend on.

Nothing in a run directory is trusted: a line that is torn, binary, of the wrong types or out of range is read past and
counted; a run.json that is not one is an error naming the file. No content leads to a traceback.
"""

import hashlib
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from fp8migrate.errors import UsageError
from fp8migrate.jobs import Job, Train
from fp8migrate.records.files import FileLock, write_errors
from fp8migrate.records.nonfinite import WORDS, decode
from fp8migrate.records.schema import Environment, Evaluation, Outcome, Record, RunFile, Series
from fp8migrate.records.writer import (
    EVALS_FILE,
    LOCK_FILE,
    METRICS_FILE,
    RUN_FILE,
    TABLES,
    checkpoint_path,
    load_run_file,
    save_run_file,
)

UNITS: Mapping[str, str] = {"loss": "nats/token", "step_seconds": "s"}

_KEY_DIGITS = 12  # of the key in a folder's name; the whole key stands in run.json and is compared
_MAX_STEP = 2**53  # steps pass through float64 arrays
_CHUNK_LINES = 65536
# How a failure that says something about the arm itself is caused. The other causes came from outside: the run goes on.
_EVIDENCE_CAUSES = ("non_finite", "out_of_memory", "error", "stalled")


def run_key(job: Job, environment: Environment) -> str:
    """SHA-256 (hex) over all that the job's result depends on: the job's digest and where it runs."""
    content = {"job": job.digest, "environment": environment.model_dump(mode="json")}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def is_evidence(outcome: Outcome) -> bool:
    """Whether a run ended by itself, well or badly: then it stands, and is never run again under the same key.

    Runs that something outside ended (a signal, a full disk, a stop on request) go on from their last checkpoint instead.
    """
    return outcome.status == "completed" or (outcome.status == "failed" and outcome.cause in _EVIDENCE_CAUSES)


def read_run(directory: Path) -> Record:
    """The run in `directory`, finished or not. Raises UsageError where run.json or a file cannot be read."""
    run = load_run_file(directory)
    reader = _Reader()
    last_step = run.job.task.last_step if isinstance(run.job.task, Train) else None
    return Record(
        key=run.key,
        job=run.job,
        environment=run.environment,
        outcome=run.outcome,
        conversion=run.conversion,
        facts=decode(run.facts),
        series=reader.series(directory / METRICS_FILE, last_step),
        evaluations=reader.evaluations(directory / EVALS_FILE),
        tables=reader.tables(directory / TABLES),
        unreadable_lines=reader.unreadable_lines,
        directory=str(directory),
    )


def find_run(runs_dir: Path, key: str) -> Path | None:
    """The directory of the run with this key, under whichever label it was made; also one whose run.json is not there yet."""
    if not runs_dir.is_dir():
        return None
    ending = f"-{key[:_KEY_DIGITS]}"
    candidates = sorted(entry for entry in runs_dir.iterdir() if entry.name.endswith(ending) and entry.is_dir())
    unfinished = None
    for directory in candidates:
        if not (directory / RUN_FILE).exists():
            unfinished = unfinished or directory
        elif load_run_file(directory).key == key:
            return directory
    return unfinished


@dataclass(frozen=True)
class RunStore:
    """All run directories of one report folder, for one environment. Creating and resuming needs the workspace's lock."""

    runs_dir: Path
    environment: Environment

    def key(self, job: Job) -> str:
        return run_key(job, self.environment)

    def find(self, job: Job) -> Path | None:
        """Where the job's run lies, in whatever state; none where it was never started."""
        return find_run(self.runs_dir, self.key(job))

    def outcome(self, job: Job) -> Outcome | None:
        """How the job's run ended so far, without reading its logs; none where it was never started."""
        directory = self.find(job)
        return load_run_file(directory).outcome if directory is not None and (directory / RUN_FILE).exists() else None

    def read(self, job: Job) -> Record | None:
        """The job's record if it is evidence (see `is_evidence`), else none: then there is work to do."""
        outcome, directory = self.outcome(job), self.find(job)
        return read_run(directory) if directory is not None and outcome is not None and is_evidence(outcome) else None

    def start_path(self, job: Job, starts: Mapping[str, Record]) -> Path | None:
        """The checkpoint that `job` starts from, out of the records by job digest; none for a job without a start."""
        return None if job.start is None else checkpoint_path(Path(starts[job.start.job].directory), job.start.step)

    def prepare(self, job: Job, lock_timeout_seconds: float = 30.0) -> Path:
        """Make the job's run directory, or mark the one it has as started once more. Raises UsageError, InfrastructureError.

        Waits for a worker that outlived its engine to let go of the directory.
        """
        key = self.key(job)
        directory = find_run(self.runs_dir, key) or self.runs_dir / f"{_folder_name(job.label)}-{key[:_KEY_DIGITS]}"
        with write_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)
            lock = FileLock(directory / LOCK_FILE).acquire(lock_timeout_seconds)
        with lock:
            save_run_file(directory, self._started(job, key, directory))
        return directory

    def _started(self, job: Job, key: str, directory: Path) -> RunFile:
        if not (directory / RUN_FILE).exists():
            return RunFile(key=key, job=job, environment=self.environment, outcome=Outcome(status="running"))
        run = load_run_file(directory)
        before = run.outcome
        outcome = Outcome(
            status="running", last_step=before.last_step, attempts=before.attempts + 1, wall_seconds=before.wall_seconds
        )
        return run.model_copy(update={"outcome": outcome})


def _folder_name(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", label).lstrip(".")[:100] or "run"


class _Reader:
    """Reads the files of one run, counting what it reads past."""

    def __init__(self) -> None:
        self.unreadable_lines = 0

    def series(self, path: Path, last_step: int | None) -> dict[str, Series]:
        columns = _Columns()
        lines = _lines(path)
        first = 0
        while chunk := list(islice(lines, _CHUNK_LINES)):
            if not columns.add_alike(first, chunk):
                for number, row in self._parsed(chunk, first):
                    if not columns.add(number, row):
                        self.unreadable_lines += 1
            first += len(chunk)
        return {
            name: Series(name, UNITS.get(name, ""), steps, values, expected_last_step=last_step)
            for name, (steps, values) in columns.finished().items()
        }

    def evaluations(self, path: Path) -> tuple[Evaluation, ...]:
        """In the order of steps; of one step and forward measured twice, the later counts."""
        found: dict[tuple[int, str], Evaluation] = {}
        for _, row in self._parsed(_lines(path)):
            evaluation = _evaluation(row)
            if evaluation is None:
                self.unreadable_lines += 1
            else:
                found[evaluation.step, evaluation.forward] = evaluation
        return tuple(found[key] for key in sorted(found))

    def tables(self, folder: Path) -> dict[str, tuple[Mapping[str, Any], ...]]:
        paths = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        visible = [path for path in paths if not path.name.startswith(".")]
        return {path.stem: tuple(decode(row) for _, row in self._parsed(_lines(path))) for path in visible}

    def _parsed(self, lines: Iterable[bytes], first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
        """Line numbers and JSON objects."""
        for number, line in enumerate(lines, first):
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError:
                row = None
            if type(row) is dict:
                yield number, row
            else:
                self.unreadable_lines += 1


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file. One that is not there has none."""
    try:
        # Opening a pipe that someone put there would wait for ever.
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError("is not a regular file", where=str(path))
        with path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", where=str(path)) from error


@dataclass
class _Group:
    """Lines with the same columns in the same order, not yet turned into arrays."""

    order: list[int] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)


class _Columns:
    """Steps and values by column name. Lines are gathered by their set of columns and turned into arrays in bulk."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._gathered = 0
        self._parts: dict[str, list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]] = {}

    def add_alike(self, first: int, lines: Sequence[bytes]) -> bool:
        """Take lines that are all well-formed, finite and have the same columns; False (and none taken) where they are not.

        The usual case, twice as fast as line by line: a million lines take a few seconds.
        """
        try:
            rows = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            return False
        if set(map(type, rows)) != {dict} or len(set(map(tuple, rows))) != 1:
            return False
        names = tuple(rows[0])
        values = list(chain.from_iterable(map(dict.values, rows)))
        if "step" not in names or not _PLAIN_NUMBERS.issuperset(map(type, values)):
            return False
        if not all(_is_step(row["step"]) for row in rows):
            return False
        self._flush()
        order = np.arange(first, first + len(rows), dtype=np.int64)
        self._keep(names, order, np.array(values, dtype=np.float64).reshape(len(rows), len(names)))
        return True

    def add(self, number: int, row: dict[str, Any]) -> bool:
        """Take one line; False where it is not a line of metrics."""
        values = _numbers(row)
        if values is None or not _is_step(row.get("step")):
            return False
        names = tuple(row)
        group = self._groups.get(names)
        if group is None:
            group = self._groups[names] = _Group()
        group.order.append(number)
        group.rows.append(values)
        self._gathered += 1
        if self._gathered >= _CHUNK_LINES:
            self._flush()
        return True

    def finished(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Steps, rising strictly, and values by name. Of one step logged twice, the later line counts."""
        self._flush()
        result = {}
        for name, parts in self._parts.items():
            order, steps, values = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            rising = np.lexsort((order, steps))
            steps, values = steps[rising].astype(np.int64), values[rising]
            last_of_step = np.append(steps[1:] != steps[:-1], True)
            result[name] = (steps[last_of_step], values[last_of_step])
        return result

    def _flush(self) -> None:
        for names, group in self._groups.items():
            self._keep(names, np.array(group.order, dtype=np.int64), np.array(group.rows, dtype=np.float64))
        self._groups.clear()
        self._gathered = 0

    def _keep(self, names: tuple[str, ...], order: NDArray[np.int64], table: NDArray[np.float64]) -> None:
        steps = table[:, names.index("step")]
        for column, name in enumerate(names):
            if name != "step":
                self._parts.setdefault(name, []).append((order, steps, table[:, column]))


_PLAIN_NUMBERS = frozenset((int, float))


def _numbers(row: dict[str, Any]) -> tuple[Any, ...] | None:
    """The row's values as numbers, words for NaN and infinities included; none where one of them is something else."""
    values: tuple[Any, ...] = tuple(row.values())
    if _PLAIN_NUMBERS.issuperset(map(type, values)):
        return values
    values = tuple(WORDS.get(value) if type(value) is str else value for value in values)
    return values if _PLAIN_NUMBERS.issuperset(map(type, values)) else None


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MAX_STEP


def _evaluation(row: dict[str, Any]) -> Evaluation | None:
    """One line of evals.jsonl, or none where it is not one."""
    step, forward, documents = row.get("step"), row.get("forward"), row.get("documents_sha256")
    loss = decode(row.get("loss"))
    nll, tokens = _list_of(row.get("document_nll")), row.get("document_tokens")
    if not _is_step(step) or forward not in ("bf16", "fp8") or type(loss) not in _PLAIN_NUMBERS or type(documents) is not str:
        return None
    if nll is None or type(tokens) is not list or len(nll) != len(tokens) or not all(map(_is_step, tokens)):
        return None
    counts = np.array(tokens, dtype=np.int64)
    return Evaluation(
        step=int(row["step"]),
        forward=forward,
        loss=float(loss),
        tokens=int(counts.sum()),
        document_nll=np.array(nll, dtype=np.float64),
        document_tokens=counts,
        documents_sha256=documents,
    )


def _list_of(value: Any) -> Sequence[Any] | None:
    """A list of numbers (words decoded), or none."""
    if type(value) is not list:
        return None
    decoded = decode(value)
    return decoded if _PLAIN_NUMBERS.issuperset(map(type, decoded)) else None
