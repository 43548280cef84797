"""Our own run directories: `run.json` stands for the folder, with the losses in metrics.jsonl and evals.jsonl beside it."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.document import json_object
from fp8migrate.records.source import Source

_HEAD = re.compile(rb'\A\s*\{\s*"schema_version"\s*:\s*\d+\s*,\s*"key"\s*:\s*"[0-9a-f]{64}"\s*,\s*"job"\s*:')
_METRICS = ("loss", "grad_norm", "learning_rate", "step_seconds")
VALIDATION = "val_loss"
# What says how a run was kept and resumed, or which precision it had: that is told apart, in words of its own.
_LEFT_OUT = re.compile(
    r"^(precision|validate_forwards|warm_amax_batches|checkpoint_at|resume_every|one_ulp|tensor_stats)(\.|$)"
)
_VERSIONS = ("fp8migrate", "torch", "python", "cuda", "driver", "transformer_engine", "torchao", "device_name", "data_sha256")


def matches(source: Source) -> bool:
    return _HEAD.match(source.head) is not None


def read(source: Source, options: Options) -> Collector:
    if source.path is None:
        raise UsageError("is a run.json without its folder", where=source.name, next_step="Name the run's folder.")
    described = json_object(source)
    collected = Collector()
    folder = source.path.parent
    for row in _rows(folder / "metrics.jsonl", collected):
        step = row.get("step")
        if isinstance(step, int | float):
            collected.put(float(step), [(name, row[name]) for name in _METRICS if name in row])
        else:
            collected.skip(str(row)[:160])
    for row in _rows(folder / "evals.jsonl", collected):
        step, loss = row.get("step"), row.get("loss")
        if row.get("forward") == "bf16" and isinstance(step, int | float) and isinstance(loss, str | int | float):
            collected.run.add(VALIDATION, "steps", float(step), loss)
            collected.run.note("validation under a BF16 forward in every arm: --forward-penalty 0 holds for it")
    _describe(collected, described)
    return collected


def _rows(path: Path, collected: Collector) -> Iterator[Mapping[str, Any]]:
    """The objects of a file of JSON lines; nothing where it is not there. A torn last line is counted as not understood."""
    if not path.is_file():
        return
    for line in Source(str(path), path).lines():
        try:
            row = orjson.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield row
        elif line.strip():
            collected.skip(line)


def _describe(collected: Collector, described: Mapping[str, Any]) -> None:
    """Where it was to end, how it ended, and what it was told."""
    run = collected.run
    task = _mapping(_mapping(described.get("job")).get("task"))
    last = task.get("last_step")
    if isinstance(last, int) and 0 < last < 2**53:
        run.expected_last_step = float(last)
    outcome = _mapping(described.get("outcome"))
    if outcome.get("status") in ("failed", "interrupted"):
        run.failure = " ".join(str(outcome.get(name) or "") for name in ("cause", "detail")).strip()[:400] or "failed"
    flat = dict(_flat(task, ""))
    run.settings |= {name: value for name, value in flat.items() if not _LEFT_OUT.match(name)}
    environment = _mapping(described.get("environment"))
    run.settings |= {name: str(environment[name]) for name in _VERSIONS if environment.get(name) is not None}
    recipe = _mapping(_mapping(task.get("precision")).get("recipe")).get("kind", "bf16")
    run.settings["fp8"] = "off" if recipe == "bf16" else f"{recipe} ({_mapping(task.get('precision')).get('backend', '')})"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _flat(value: Mapping[str, Any], head: str) -> Iterator[tuple[str, str]]:
    """Dotted names; a run.json of ours is three deep."""
    for key, item in value.items():
        name = f"{head}{key}"
        if isinstance(item, dict) and head.count(".") < 4:
            yield from _flat(item, f"{name}.")
        else:
            yield name, str(item)


READER = Reader(
    "fp8migrate-run",
    "a run directory of fp8migrate",
    matches,
    read,
    "The run logged no step: read its worker.log.",
    whole_folder=True,
)
