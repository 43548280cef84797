"""Reading back: read(write(x)) is x, whatever was torn is counted, and hostile content is never a traceback."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8migrate.errors import UsageError
from fp8migrate.jobs import Role
from fp8migrate.records.schema import Cause, Outcome, Status
from fp8migrate.records.store import RunStore, find_run, is_evidence, read_run, run_key
from fp8migrate.records.writer import RunWriter, load_run_file, save_run_file
from tests.engine.stage import ENVIRONMENT, train_job
from tests.records.runs import prepared_run

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)
STEPS = st.integers(min_value=0, max_value=2**53 - 1)
COLUMNS = st.sampled_from(["loss", "grad_norm", "learning_rate", "step_seconds", "tokens per second"])
METRICS = st.lists(st.tuples(STEPS, st.dictionaries(COLUMNS, NUMBERS, max_size=4)), max_size=12)
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def expected(logged: list[tuple[int, dict[str, float]]]) -> dict[str, list[tuple[int, str]]]:
    """By plain means: of one step logged twice the later counts; steps rise."""
    columns: dict[str, dict[int, float]] = {}
    for step, values in logged:
        for name, value in values.items():
            columns.setdefault(name, {})[step] = value
    return {name: [(step, repr(values[step])) for step in sorted(values)] for name, values in columns.items()}


def read_back(directory: Path) -> dict[str, list[tuple[int, str]]]:
    return {
        name: [(step, repr(value)) for step, value in zip(s.steps.tolist(), s.values.tolist(), strict=True)]
        for name, s in read_run(directory).series.items()
    }


@SHARED_FOLDER
@given(logged=METRICS)
def test_what_was_logged_is_what_is_read(tmp_path: Path, logged: list[tuple[int, dict[str, float]]]) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    writer.resume_after(None)
    for step, values in logged:
        writer.log(step, **values)
    assert read_back(directory) == expected(logged)
    assert read_run(directory).unreadable_lines == 0


def test_a_log_torn_at_any_byte_loses_only_the_torn_line(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    logged = [(1, {"loss": 5.25, "grad_norm": math.nan}), (2, {"loss": math.inf}), (3, {"loss": 1e-5, "grad_norm": 2.0})]
    writer = RunWriter(directory)
    for step, values in logged:
        writer.log(step, **values)
    whole = (directory / "metrics.jsonl").read_bytes()
    ends = [number + 1 for number, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        (directory / "metrics.jsonl").write_bytes(whole[:cut])
        # A line that lacks nothing but its line end is whole.
        complete = sum(1 for end in ends if cut >= end - 1)
        torn = cut not in (0, *ends, *(end - 1 for end in ends))
        assert read_back(directory) == expected(logged[:complete]), cut
        assert read_run(directory).unreadable_lines == torn, cut


@SHARED_FOLDER
@given(content=st.binary(max_size=200))
def test_binary_content_is_never_a_traceback(tmp_path: Path, content: bytes) -> None:
    directory = prepared_run(tmp_path)
    (directory / "tables").mkdir(exist_ok=True)
    for name in ("metrics.jsonl", "evals.jsonl", "tables/layers.jsonl"):
        (directory / name).write_bytes(content)
    assert read_run(directory).unreadable_lines >= 0


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | NUMBERS | st.text(max_size=5) | st.just("NaN"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(["step", "loss", "forward", "document_nll", "document_tokens", "documents_sha256"])


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


@SHARED_FOLDER
@given(rows=st.lists(st.dictionaries(KEYS, JSON_VALUES, max_size=6), max_size=4))
def test_wrong_types_are_never_a_traceback(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    directory = prepared_run(tmp_path)
    content = b"".join(to_json(row) + b"\n" for row in rows)
    for name in ("metrics.jsonl", "evals.jsonl"):
        (directory / name).write_bytes(content)
    record = read_run(directory)
    kept = sum(1 for series in record.series.values() for _ in series.steps)
    assert kept == 0 or any("step" in row for row in rows)


GOOD_LINE = b'{"step":7,"loss":1.5}'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"\x00",
        b"\xff\xfe",
        b"{}",
        b'{"loss":1.0}',
        b'{"step":1.0,"loss":1.0}',
        b'{"step":true,"loss":1.0}',
        b'{"step":-1,"loss":1.0}',
        b'{"step":"1","loss":1.0}',
        b'{"step":99999999999999999999999999,"loss":1.0}',
        b'{"step":9007199254740993,"loss":1.0}',
        b'{"step":1,"loss":null}',
        b'{"step":1,"loss":"low"}',
        b'{"step":1,"loss":true}',
        b'{"step":1,"loss":[1.0]}',
        b'{"step":1,"loss":1e999}',
        b'{"step":1,"loss":NaN}',
        b'{"step":"NaN","loss":1.0}',
        b'{"step":1,"loss":1.0},{"step":2,"loss":2.0}',
        b"[" * 5000,
    ],
)
def test_a_malformed_line_is_read_past_and_counted(tmp_path: Path, line: bytes) -> None:
    directory = prepared_run(tmp_path)
    (directory / "metrics.jsonl").write_bytes(line + b"\n" + GOOD_LINE + b"\n")
    record = read_run(directory)
    assert record.series["loss"].steps.tolist() == [7]
    assert record.unreadable_lines == 1


GOOD_EVALUATION: dict[str, Any] = {
    "step": 3,
    "forward": "fp8",
    "loss": 1.25,
    "document_nll": [1.0, 2.0],
    "document_tokens": [3, 4],
    "documents_sha256": "d",
}


@pytest.mark.parametrize(
    "change",
    [
        {"step": None},
        {"step": -1},
        {"forward": "fp4"},
        {"forward": []},
        {"loss": None},
        {"loss": "low"},
        {"document_nll": [1.0]},
        {"document_nll": [1.0, "x"]},
        {"document_nll": [1.0, None]},
        {"document_nll": 3},
        {"document_tokens": [3, 4.5]},
        {"document_tokens": [3, -4]},
        {"document_tokens": [3, 2**60]},
        {"document_tokens": None},
        {"documents_sha256": 7},
    ],
)
def test_a_malformed_evaluation_is_read_past_and_counted(tmp_path: Path, change: dict[str, Any]) -> None:
    directory = prepared_run(tmp_path)
    content = to_json(GOOD_EVALUATION | change) + b"\n" + to_json(GOOD_EVALUATION) + b"\n"
    (directory / "evals.jsonl").write_bytes(content)
    record = read_run(directory)
    [evaluation] = record.evaluations
    assert (evaluation.step, evaluation.forward, evaluation.loss, evaluation.tokens) == (3, "fp8", 1.25, 7)
    assert record.unreadable_lines == 1


def test_of_an_evaluation_done_twice_the_later_counts(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    writer = RunWriter(directory)
    writer.evaluation(20, "bf16", 9.0, [1.0], [1], "d")
    writer.evaluation(10, "fp8", 2.0, [1.0], [1], "d")
    writer.evaluation(20, "bf16", 3.0, [1.0], [1], "d")
    record = read_run(directory)
    assert [(e.step, e.forward, e.loss) for e in record.evaluations] == [(10, "fp8", 2.0), (20, "bf16", 3.0)]
    assert record.evaluation("bf16", 20) is not None
    assert record.evaluation("fp8", 20) is None


def test_long_logs_of_changing_columns_are_read_as_line_by_line(tmp_path: Path) -> None:
    """Crosses the limits at which lines are turned into arrays, and the fast way into the slow one."""
    directory = prepared_run(tmp_path)
    rows = [{"step": step, "loss": step / 7} for step in range(1, 70_001)]
    rows[66_000]["grad_norm"] = 1.0
    rows += [{"step": 5, "loss": -1.0}]
    (directory / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    series = read_run(directory).series
    assert series["loss"].steps.tolist() == list(range(1, 70_001))
    assert series["loss"].values[4] == -1.0
    assert series["loss"].values[5] == 6 / 7
    assert series["grad_norm"].steps.tolist() == [66_001]
    assert np.all(np.diff(series["loss"].steps) > 0)


def test_a_cut_run_is_not_complete(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path, last_step=3)
    writer = RunWriter(directory)
    writer.log(2, loss=1.0)
    assert not read_run(directory).series["loss"].complete
    writer.log(3, loss=1.0)
    assert read_run(directory).series["loss"].complete


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\x00\xff", b"[" * 5000, b'{"schema_version": 1}'])
def test_a_damaged_run_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    directory = prepared_run(tmp_path)
    (directory / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"run\.json.*is not a run file") as error:
        read_run(directory)
    assert error.value.exit_code == 2
    assert f"Delete the folder {directory}" in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"run\.json.*No such file"):
        read_run(tmp_path / "nowhere")
    directory = prepared_run(tmp_path)
    (directory / "metrics.jsonl").mkdir()
    with pytest.raises(UsageError, match=r"metrics\.jsonl.*regular file"):
        read_run(directory)
    (directory / "metrics.jsonl").rmdir()
    os.mkfifo(directory / "metrics.jsonl")  # to be refused, not waited for
    with pytest.raises(UsageError, match=r"metrics\.jsonl.*regular file"):
        read_run(directory)


def test_the_key_covers_job_and_environment_but_no_names() -> None:
    job = train_job("a")
    key = run_key(job, ENVIRONMENT)
    renamed = job.model_copy(update={"label": "b", "role": Role(design="branch", arm="floor", pair=3)})
    assert run_key(renamed, ENVIRONMENT) == key
    assert run_key(train_job("a", seed=1), ENVIRONMENT) != key
    assert run_key(job, ENVIRONMENT.model_copy(update={"variables": {"NVTE_X": "1"}})) != key


def test_a_run_is_found_by_its_whole_key(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    key = load_run_file(directory).key
    assert find_run(tmp_path / "runs", key) == directory
    assert find_run(tmp_path / "runs", "f" * 64) is None
    assert find_run(tmp_path / "nowhere", key) is None
    # The same twelve digits, another run.
    assert find_run(tmp_path / "runs", key[:12] + "0" * 52) is None


def test_a_folder_that_a_killed_engine_left_empty_is_used(tmp_path: Path) -> None:
    directory = prepared_run(tmp_path)
    (directory / "run.json").unlink()
    assert prepared_run(tmp_path) == directory
    assert load_run_file(directory).outcome.attempts == 1


def test_labels_stay_inside_the_runs_folder(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs", ENVIRONMENT)
    for seed, label in enumerate(["../../etc/passwd", "a/b\x00c", "", "..", "ü" * 300]):
        directory = store.prepare(train_job(label, seed=seed))
        assert directory.parent == tmp_path / "runs"
        assert store.find(train_job("whatever", seed=seed)) == directory


@pytest.mark.parametrize(
    ("status", "cause", "stands"),
    [
        ("completed", None, True),
        ("failed", "non_finite", True),
        ("failed", "out_of_memory", True),
        ("failed", "error", True),
        ("failed", "stalled", True),
        ("failed", "killed", False),
        ("failed", "disk", False),
        ("interrupted", None, False),
        ("running", None, False),
    ],
)
def test_what_ended_by_itself_stands_and_the_rest_goes_on(
    tmp_path: Path, status: Status, cause: Cause | None, stands: bool
) -> None:
    directory = prepared_run(tmp_path)
    outcome = Outcome(status=status, cause=cause)
    save_run_file(directory, load_run_file(directory).model_copy(update={"outcome": outcome}))
    store, job = RunStore(tmp_path / "runs", ENVIRONMENT), train_job("another label")
    assert is_evidence(outcome) is stands
    assert (store.read(job) is not None) is stands
    assert store.outcome(job) == outcome
