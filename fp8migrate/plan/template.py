"""A plan to start from: every key of the schema with its value and one line on what it is.

The values come from templates/starting.yaml and, where that is silent, from the schema's defaults; the comments are the
schema's own descriptions. So no key is missing and no comment says what the code does not.
"""

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from fp8migrate.errors import PlanError
from fp8migrate.plan import tree
from fp8migrate.plan.problems import Schema, describe, plan_schema, resolve

_HEADER = """\
# A plan for fp8migrate: does this training run stay as good in FP8 as it is in BF16?
# As it stands it takes minutes on a laptop or one GPU; put your own model and training in their place.
# Only keys without a default have to be there: the others may be left out, and null leaves a key out too.
"""
_WIDTH = 128


def starting_plan(name: str) -> str:
    """A commented plan that loads as it is, ready for a laptop or one GPU. PlanError: a name that no plan can have."""
    schema = plan_schema()
    name_schema = schema["properties"]["name"]
    if not re.fullmatch(name_schema["pattern"], name):
        raise PlanError(f'expected {describe(name_schema)}, got "{tree.printable(name)}"', where="name")
    values = {"name": name, **_starting_values()}
    return _HEADER + "".join(f"{line}\n" for line in _mapping(schema, values, ""))


def _starting_values() -> dict[str, Any]:
    text = files("fp8migrate.plan").joinpath("templates/starting.yaml").read_text(encoding="utf-8")
    root = tree.parse(text).root
    assert root is not None
    values = tree.plain(root)
    assert isinstance(values, dict)
    return values


def _mapping(schema: Schema, values: Mapping[str, Any], indent: str) -> Iterator[str]:
    """The lines of a mapping: a blank one before each part of the plan."""
    for key, item in schema["properties"].items():
        shape = resolve(item)
        value = values.get(key, item.get("default"))
        if "oneOf" in shape:
            yield from _union(key, item, values.get(key, {}), indent)
        elif "properties" in shape and (key in values or value is not None):
            yield from [""] * (not indent)
            yield _commented(f"{indent}{key}:", item["description"])
            yield from _mapping(shape, values.get(key, {}), indent + "  ")
        elif "properties" in shape:
            yield _commented(f"{indent}{key}: null", f"{item['description']}; for example {_flow(shape)}")
        elif isinstance(value, list) and "properties" in (member := resolve(shape.get("items", {}))):
            yield _commented(f"{indent}{key}: {_written(value)}", f"{item['description']}; for example")
            yield f"{indent}#   [{_flow(member)}]"
        else:
            explained = _first_sentence(schema) if key == "kind" and "description" not in item else _explained(item)
            yield _commented(f"{indent}{key}: {_written(value)}", explained)


def _union(key: str, item: Schema, value: Mapping[str, Any], indent: str) -> Iterator[str]:
    """The chosen kind as a mapping, the others in a comment line each. A union's default is a mapping or its first kind."""
    default = item.get("default", {})
    members = {member["properties"]["kind"]["const"]: member for member in map(resolve, resolve(item)["oneOf"])}
    values = {**default, **value} if value.get("kind", default.get("kind")) == default.get("kind") else value
    kind = values.get("kind", next(iter(members)))
    yield _commented(f"{indent}{key}:", item["description"])
    yield from _mapping(members[kind], values, indent + "  ")
    if default:  # the same union as before, and one whose default is rarely changed
        return
    yield f"{indent}# Other kinds of {key}:"
    for other, member in members.items():
        if other != kind:
            yield f"{indent}#   {key}: {_flow(member)}"
            yield f"{indent}#     {_first_sentence(member)}"


def _commented(line: str, comment: str) -> str:
    """A line with its comment behind it, or above it where both are too long for one."""
    together = f"{line}  # {comment}"
    if len(together) <= _WIDTH:
        return together
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}# {comment}\n{line}"


def _explained(item: Schema) -> str:
    """A key's description, and its choices where it has some that the description does not name."""
    words = describe(item)
    description = item.get("description", words)
    choices = [choice for choice in item.get("enum", ()) if str(choice) not in description]
    return f"{description}; {words}" if choices and description != words else str(description)


def _first_sentence(schema: Schema) -> str:
    return str(schema["description"]).split(". ")[0].split("\n")[0].rstrip(".")


def _flow(schema: Schema) -> str:
    """A mapping with its defaults on one line."""
    items = schema["properties"].items()
    return "{" + ", ".join(f"{key}: {_written(_sample(item))}" for key, item in items) + "}"


def _sample(item: Schema) -> Any:
    """What stands for a key in an example: its default, its only value, or the example that the schema gives."""
    return item.get("default", item.get("const", next(iter(item.get("examples", ())), None)))


def _written(value: Any) -> str:
    """A value as YAML that reads back as the same value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(item) for item in value) + "]"
    if isinstance(value, str):
        node = tree.parse(value).root
        return value if node is not None and node.value == value else json.dumps(value)
    if isinstance(value, float):
        return re.sub(r"e([-+])0*", lambda match: "e" + match[1].removeprefix("+"), f"{value:.12g}")
    return json.dumps(value)
