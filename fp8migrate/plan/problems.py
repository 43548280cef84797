"""What pydantic refuses, as problems that name the line, the key, what stands there and what may stand there.

Pydantic says which setting is at fault; what is allowed is told from the schema, so that every message has one form.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from fp8migrate.plan.policy import Policy
from fp8migrate.plan.schema import Plan
from fp8migrate.plan.tree import Node, Path, Problem, printable
from fp8migrate.settings import InconsistentError

Schema = Mapping[str, Any]

# pydantic's error types that have a form of their own; every other one is "expected this, got that".
_UNKNOWN_KEY, _MISSING_KEY, _INCONSISTENT, _TOO_SHORT = "extra_forbidden", "missing", "value_error", "too_short"


@dataclass(frozen=True)
class Place:
    """Where an error points: the path in the plan, what is allowed there, what stands there, and a line to show."""

    path: Path
    schema: Schema
    node: Node | None
    line: int


@dataclass(frozen=True)
class Document:
    """A file that was validated, and what may stand in it."""

    root: Node
    schema: Schema


def explain(error: ValidationError, root: Node, model: type[BaseModel] = Plan) -> list[Problem]:
    """Every error as a problem, in the order of the file. `root` is the document that was validated as a `model`."""
    document = Document(root, schema_of(model))
    problems = [problem for details in error.errors(include_url=False) for problem in _explain(details, document)]
    return sorted(dict.fromkeys(problems), key=lambda problem: problem.line)


def describe(schema: Schema) -> str:
    """What may stand at a place, in words: "a whole number ≥ 1", "one of hybrid, e4m3"."""
    schema = resolve(schema)
    if "expected" in schema:
        return str(schema["expected"])
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(describe(choice) for choice in schema["anyOf"] if choice.get("type") != "null")
    if "oneOf" in schema:
        return "a mapping with a kind: " + ", ".join(_kinds(schema))
    return _describe_type(schema)


def nearest(word: str, choices: Iterable[str]) -> str:
    """A clause to end a message with: "; did you mean X?" where a choice is near, else nothing."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    near = get_close_matches(word.lower(), by_lower_case, n=1)
    return f"; did you mean {by_lower_case[near[0]]}?" if near else ""


@cache
def schema_of(model: type[BaseModel]) -> Schema:
    """The JSON schema of a whole document."""
    return model.model_json_schema()


def plan_schema() -> Schema:
    """The plan's JSON schema."""
    return schema_of(Plan)


@cache
def _definitions() -> Schema:
    """Every model that a document may refer to, by its name."""
    return {**schema_of(Policy)["$defs"], **schema_of(Plan)["$defs"]}


def _explain(details: ErrorDetails, document: Document) -> list[Problem]:
    place = _locate(details["loc"], document)
    kind = details["type"]
    if kind == _TOO_SHORT and _length(place.node) >= resolve(place.schema)["minItems"]:
        return []  # pydantic does not count the items that it refused, each with an error of its own
    if kind == _INCONSISTENT:
        return _inconsistent(details, place, document)
    if kind == _UNKNOWN_KEY:
        return [_unknown_key(place, details["loc"], document)]
    if kind == _MISSING_KEY:
        return [Problem(place.line, place.path, f"missing key; expected {_described(place.schema)}")]
    if kind.startswith("union_tag_"):
        place = _kind_of(place)
        if place.node is None:
            return [Problem(place.line, place.path, f"missing key; expected {describe(place.schema)}")]
    return [Problem(place.line, place.path, _expected(place))]


def _expected(place: Place) -> str:
    value = place.node.value if place.node else None
    near = nearest(value, _choices(place.schema)) if isinstance(value, str) else ""
    return f"expected {describe(place.schema)}, got {_shown(place.node)}{near}"


def _described(schema: Schema) -> str:
    """What a missing key takes, and what it is for."""
    words = describe(schema)
    return f"{words} ({schema['description']})" if "description" in schema else words


def _unknown_key(place: Place, location: Sequence[int | str], document: Document) -> Problem:
    owner = _locate(location[:-1], document)
    allowed = list(resolve(owner.schema).get("properties", {}))
    near = nearest(str(location[-1]), allowed).removeprefix("; ")
    hint = f"{near} allowed" if near else "allowed"
    return Problem(place.line, place.path, f"unknown key; {hint}: {', '.join(allowed)}")


def _inconsistent(details: ErrorDetails, place: Place, document: Document) -> list[Problem]:
    error = details.get("ctx", {}).get("error")
    if not isinstance(error, InconsistentError):
        return [Problem(place.line, place.path, str(error))]
    located = []
    for key, what in error.problems.items():
        at = _locate((*place.path, *key.split(".")), document) if key else place
        located.append(Problem(at.line, at.path, what))
    return located


def _locate(location: Sequence[int | str], document: Document) -> Place:
    """Follow pydantic's location, in which the kinds of a union and the members of another stand among the keys."""
    schema: Schema = document.schema
    path: Path = ()
    node: Node | None = document.root
    line = document.root.line
    for item in location:
        schema = resolve(schema)
        if "oneOf" in schema:
            member = schema["discriminator"]["mapping"].get(item)
            schema = {"$ref": member} if member else _member(schema, node)
            if member:
                continue
        if not _holds(schema, item):
            break  # the label of a union's member: the place is the union's
        path, schema, node = (*path, item), _child_schema(resolve(schema), item), _child(node, item)
        line = _line(node) if node else line
    return Place(path, schema, node, line)


def _holds(schema: Schema, item: int | str) -> bool:
    resolved = resolve(schema)
    return "items" in resolved if isinstance(item, int) else "properties" in resolved


def _child_schema(schema: Schema, item: int | str) -> Schema:
    child: Schema = schema["items"] if isinstance(item, int) else schema["properties"].get(item, {})
    return child


def _child(node: Node | None, item: int | str) -> Node | None:
    value = node.value if node else None
    if isinstance(value, dict) and isinstance(item, str):
        return value.get(item)
    if isinstance(value, list) and isinstance(item, int) and item < len(value):
        return value[item]
    return None


def _length(node: Node | None) -> int:
    return len(node.value) if node and isinstance(node.value, list) else 0


def _line(node: Node) -> int:
    """A scalar is pointed at itself; a mapping or list by its key, which is where people look."""
    return node.key_line if isinstance(node.value, dict | list) else node.line


def _member(schema: Schema, node: Node | None) -> Schema:
    """The member of a union by kind that a mapping chose; nothing known where it chose none."""
    kind = _child(node, "kind")
    reference = schema["discriminator"]["mapping"].get(kind.value) if kind else None
    return {"$ref": reference} if reference else {}


def _kind_of(union: Place) -> Place:
    """The place of the kind in a mapping whose kind is missing or unknown."""
    node = _child(union.node, "kind")
    line = _line(node) if node else union.line
    return Place((*union.path, "kind"), {"enum": _kinds(resolve(union.schema))}, node, line)


def _kinds(schema: Schema) -> list[str]:
    """The kinds of a union, in the order in which it lists its members."""
    return [resolve(member)["properties"]["kind"]["const"] for member in schema["oneOf"]]


def _choices(schema: Schema) -> list[str]:
    schema = resolve(schema)
    if "const" in schema:
        return [schema["const"]]
    if schema.get("type") == "boolean":
        return ["true", "false"]
    return [*schema.get("enum", ()), *(choice for member in schema.get("anyOf", ()) for choice in _choices(member))]


def resolve(schema: Schema) -> Schema:
    """Follow references and see through "or null": an absent key is no value that anybody writes."""
    while True:
        choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
        if "$ref" in schema:
            schema = _definitions()[schema["$ref"].rpartition("/")[2]]
        elif len(choices) == 1:
            schema = choices[0]
        else:
            return schema


_TYPES = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}


def _describe_type(schema: Schema) -> str:
    kind = schema.get("type")
    if kind == "array":
        least = f" of at least {schema['minItems']}" if "minItems" in schema else ""
        return f"a list{least}, each item {describe(schema['items'])}"
    if kind == "object":
        return "a mapping with the keys " + ", ".join(schema.get("properties", {}))
    bounds = _bounds(schema)
    return f"{_TYPES[str(kind)]} {bounds}" if bounds else _TYPES[str(kind)]


def _bounds(schema: Schema) -> str:
    """The range of a number: "≥ 1", "> 0 and < 1", "from 2 to 64"."""
    if "minimum" in schema and "maximum" in schema:
        return f"from {schema['minimum']:g} to {schema['maximum']:g}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return " and ".join(f"{sign} {schema[key]:g}" for key, sign in signs.items() if key in schema)


def _shown(node: Node | None) -> str:
    """What stands in the file, short and safe to print; text in quotes, so that "8" is told from 8."""
    value = node.value if node else None
    if node is None or value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return f'"{printable(value)}"' if isinstance(value, str) else printable(node.text)
