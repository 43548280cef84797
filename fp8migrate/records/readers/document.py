"""Formats that are one JSON document: parsed whole, and never a traceback."""

import json
from typing import Any

import orjson

from fp8migrate.errors import UsageError
from fp8migrate.records.source import Source
from fp8migrate.records.tokens import Token


def json_object(source: Source) -> dict[str, Any]:
    """The object that the source holds."""
    found = any_json(source.document(), source.name)
    if not isinstance(found, dict):
        raise UsageError("is no JSON object", where=source.name)
    return found


_CUT = "Was it cut while it was written?"


def any_json(content: bytes, name: str, next_step: str = _CUT) -> Any:
    """JSON, with the NaN and Infinity that Python writes. UsageError where it is none, or nested too deeply."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(content)
    except RecursionError:
        reason = "nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise UsageError(f"is not whole or no JSON: {reason}", where=name, next_step=next_step)


def is_token(value: object) -> bool:
    """Whether a JSON value can be a point: a number or text. True and false are neither."""
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def token(value: Any) -> Token:
    """A JSON value as a token; None for what can be no point."""
    return value if is_token(value) else None
