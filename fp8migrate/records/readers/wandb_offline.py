"""W&B's offline file, run-ID.wandb: records of LevelDB's log format around W&B's protocol messages."""

import importlib
import json
import warnings
from collections.abc import Iterator
from typing import Any

from fp8migrate.errors import UsageError
from fp8migrate.records.collect import Collector
from fp8migrate.records.quantities import meaning
from fp8migrate.records.readers.base import Options, Reader
from fp8migrate.records.readers.document import is_token
from fp8migrate.records.source import Source

_MARK = b":W&B"
# The file's header (mark, magic, version), a record's header (checksum, length, type), and blocks that no header crosses.
_FILE_HEADER = 7
_HEADER = 7
_BLOCK = 32768
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def matches(source: Source) -> bool:
    return source.head.startswith(_MARK)


def read(source: Source, options: Options) -> Collector:
    messages = _messages(source)
    collected = Collector()
    named = {label: quantity for quantity, label in options.columns.items() if quantity != "step"}
    for content in _records(source.document()):
        record = messages.Record()
        try:
            record.ParseFromString(content)
        except Exception:  # noqa: BLE001  # protobuf's errors have no common base outside its own package
            collected.skip(content[:80])
            continue
        _take(record, named, collected)
    return collected


def _messages(source: Source) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("wandb.proto.wandb_internal_pb2")
    except ImportError as error:
        next_step = "Install it with: pip install 'fp8migrate[logs]'"
        raise UsageError(
            "offline files of W&B are read with the package wandb", where=source.name, next_step=next_step
        ) from error


def _records(content: bytes) -> Iterator[bytes]:
    """Whole records. The file of a run that was killed ends in the middle of one, which is left out."""
    at, parts = _FILE_HEADER, bytearray()
    while at + _HEADER <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        length = int.from_bytes(content[at + 4 : at + 6], "little")
        kind = content[at + 6]
        piece = content[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or len(piece) < length:
            return
        if kind in (_FULL, _FIRST):
            parts = bytearray()
        parts += piece
        if kind in (_FULL, _LAST):
            yield bytes(parts)


def _take(record: Any, named: dict[str, str], collected: Collector) -> None:
    kind = record.WhichOneof("record_type")
    run = collected.run
    if kind == "history":
        values = {_name(item): _json(item.value_json) for item in record.history.item}
        logged = values.get("_step")
        step = logged if isinstance(logged, float) or (type(logged) is int and abs(logged) < 2**63) else record.history.step.num
        points = [(named.get(label, label), value) for label, value in values.items() if is_token(value)]
        run = collected.put(float(step), [(label, value) for label, value in points if meaning(label)])
        run.unused.update({label: None for label, _ in points if meaning(label) is None and not label.startswith("_")})
    elif kind == "run":
        run.name = run.name or record.run.display_name or record.run.run_id
        for item in record.run.config.update:
            if (value := _json(item.value_json)) is not None and _name(item) != "_wandb":
                run.settings[_name(item)] = str(value)[:500]
    elif kind == "exit" and record.exit.exit_code:
        run.failure = f"the program ended with code {record.exit.exit_code}"


def _name(item: Any) -> str:
    return item.key or "/".join(item.nested_key)


def _json(text: str) -> Any:
    """A value, None for what is no JSON. W&B writes NaN both as JSON's extension and as text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


READER = Reader("wandb-offline", "an offline file of W&B", matches, read, takes_columns=True)
