"""A baseline that is kept: the runs of finished logs in one sealed file, so that a gate needs none of them."""

import base64
import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from fp8migrate.errors import UsageError
from fp8migrate.records.logs import Axis, LogRecord, LogSeries, Overlap, Quantity

SCHEMA_VERSION = 1
KIND = "fp8migrate stored baseline"
MAX_BYTES = 1 << 29
_AGAIN = "Store it again: fp8migrate compare BASELINE… --against CANDIDATE… --store FILE."


def store(records: Sequence[LogRecord], path: Path, *, version: str, created: str) -> None:
    """Write the runs to a new file; compressed where its name ends in .gz. UsageError where it exists or cannot be written."""
    content = {
        "kind": KIND,
        "schema_version": SCHEMA_VERSION,
        "fp8migrate": version,
        "created": created,
        "sources": _sources(records),
        "runs": [_run(record) for record in records],
    }
    sealed = orjson.dumps({**content, "sha256": _seal(content)}, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE)
    try:
        with path.open("xb") as file:
            file.write(gzip.compress(sealed, mtime=0) if path.suffix == ".gz" else sealed)
    except FileExistsError:
        raise UsageError("exists already", where=str(path), next_step="Remove it, or name another file.") from None
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", where=str(path)) from error


def load(path: Path) -> tuple[LogRecord, ...]:
    """The runs of a stored baseline.

    UsageError where it is none, was changed since it was stored, is of another version, or where a log that it was made of is
    still there and has changed: it is stale.
    """
    content = _parsed(path)
    seal = content.pop("sha256", None)
    if content.get("kind") != KIND:
        raise UsageError("is no stored baseline", where=str(path), next_step=_AGAIN)
    if content.get("schema_version") != SCHEMA_VERSION:
        what = f"was stored in version {content.get('schema_version')} of its format; this is version {SCHEMA_VERSION}"
        raise UsageError(what, where=str(path), next_step=_AGAIN)
    if seal != _seal(content):
        raise UsageError("was changed after it was stored: its seal is broken", where=str(path), next_step=_AGAIN)
    try:
        _refuse_stale(content["sources"], path)
        return tuple(_record(run) for run in content["runs"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"is not as it should be: {error}", where=str(path), next_step=_AGAIN) from None


def _parsed(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES)
        content = orjson.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path)) from error
    except ValueError:
        raise UsageError("is no stored baseline: not JSON", where=str(path), next_step=_AGAIN) from None
    if not isinstance(content, dict):
        raise UsageError("is no stored baseline", where=str(path), next_step=_AGAIN)
    return content


def _seal(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _sources(records: Sequence[LogRecord]) -> list[dict[str, str]]:
    """The files that the runs came from, configurations included, each once, with what they held."""
    names = dict.fromkeys(name for record in records for name in (record.source, *record.settings_from))
    return [{"path": os.path.abspath(name), "sha256": digest} for name in names if (digest := _digest(Path(name)))]


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _refuse_stale(sources: Sequence[Mapping[str, str]], path: Path) -> None:
    changed = [one["path"] for one in sources if (now := _digest(Path(one["path"]))) and now != one["sha256"]]
    if changed:
        shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise UsageError(f"is stale: changed since it was stored: {shown}", where=str(path), next_step=_AGAIN)


def _run(record: LogRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "source": record.source,
        "format": record.format,
        "expected_last_step": record.expected_last_step,
        "failure": record.failure,
        "crash": record.crash,
        "settings": dict(record.settings),
        "settings_from": list(record.settings_from),
        "series": {name: _series(series) for name, series in record.series.items()},
    }


def _series(series: LogSeries) -> dict[str, Any]:
    """Every bit of the numbers, NaN included."""
    return {
        "label": series.label,
        "unit": series.unit,
        "axis": series.axis,
        "digits": series.digits,
        "averaging": series.averaging,
        "overlaps": [asdict(overlap) for overlap in series.overlaps],
        "steps": base64.b64encode(np.ascontiguousarray(series.steps, dtype="<f8").tobytes()).decode(),
        "values": base64.b64encode(np.ascontiguousarray(series.values, dtype="<f8").tobytes()).decode(),
    }


def _record(run: Mapping[str, Any]) -> LogRecord:
    series = {name: _read_series(name, one) for name, one in run["series"].items()}
    return LogRecord(
        source=str(run["source"]),
        name=str(run["name"]),
        format=str(run["format"]),
        series=series,
        expected_last_step=run["expected_last_step"],
        failure=str(run["failure"]),
        crash=str(run["crash"]),
        settings={str(name): str(value) for name, value in run["settings"].items()},
        settings_from=tuple(run["settings_from"]),
    )


def _read_series(name: str, one: Mapping[str, Any]) -> LogSeries:
    if name not in get_args(Quantity) or one["axis"] not in get_args(Axis):
        raise ValueError(f"no quantity {name!r} over {one['axis']!r}")
    steps, values = _array(one["steps"]), _array(one["values"])
    if steps.size != values.size or steps.size == 0:
        raise ValueError(f"{name}: {steps.size} steps and {values.size} values")
    return LogSeries(
        name=cast(Quantity, name),
        label=str(one["label"]),
        unit=str(one["unit"]),
        axis=one["axis"],
        steps=steps,
        values=values,
        digits=one["digits"],
        averaging=str(one["averaging"]),
        overlaps=tuple(Overlap(**overlap) for overlap in one["overlaps"]),
    )


def _array(text: str) -> NDArray[np.float64]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
