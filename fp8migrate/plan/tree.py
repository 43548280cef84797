"""Strict YAML: a document as plain values that know their lines.

Only the events of PyYAML's safe parser are used, never its constructor: tags cannot build objects and aliases cannot grow.
Scalars follow the YAML 1.2 core schema, narrowed to what a plan needs: `1e-4` is a number; `off`, `yes`, `1:30`, `2026-12-02`,
`010`, `0x10` and `1_000` stay text; booleans are true and false, in lower case, capitalised or upper case.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import yaml

MAX_DEPTH = 20
# Whole numbers beyond 2^53 are not exact as JSON numbers; no setting comes near.
MAX_INTEGER = 2**53
# PyYAML's parser is slow (80,000 values take a quarter of a minute): what is no plan is given up early.
MAX_VALUES = 20_000
MAX_PROBLEMS = 100
# Stands for a key or text that cannot be used, which is among the problems.
UNUSABLE = "?"

Path = tuple[str | int, ...]
Value = None | bool | int | float | str | list["Node"] | dict[str, "Node"]

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("null", "Null", "NULL", "~"), None),
}

# What PyYAML says (a part of it), and what that means to somebody who writes a plan.
_SYNTAX = (
    ("'\\t' that cannot start any token", "a tab: indent with spaces"),
    ("mapping values are not allowed here", "an unexpected ':'; check the indentation, or quote a value that holds ': '"),
    ("could not find expected ':'", "a key without ':' after it"),
    ("expected <block end>", "does not line up with the lines above it: check the indentation"),
    ("expected ',' or", "a '[' or '{' that is not closed, or a missing ','"),
    ("found unexpected end of stream", "a quote that is not closed"),
    ("expected the node content", "a value is missing, or something stands there that begins none"),
    ("expected '<document start>'", "text that belongs to no key: check the indentation"),
    ("sequence entries are not allowed here", "an unexpected '- ': check the indentation"),
    ("expected a comment or a line break", "text behind '|' or '>': put the value in quotes"),
    ("expected alphabetic or numeric character", "'*' and '&' have a meaning in YAML: put the value in quotes"),
    ("found undefined tag handle", "tags (!) are refused: a plan is plain data"),
    ("that cannot start any token", "a character that cannot begin a value: put the value in quotes"),
    ("found unknown escape character", "an unknown escape in a quoted text: use single quotes"),
)
# Those whose cause is where the construct began, not where the parser gave up.
_FROM_THE_START = ("could not find expected ':'", "expected ',' or", "found unexpected end of stream")


@dataclass(frozen=True)
class Node:
    """A value, the line it starts on and the line of its key (of the value itself where it has none); lines count from 1.

    `text` is a scalar as written. Mappings keep the order of the file.
    """

    value: Value
    line: int
    key_line: int
    text: str = ""


@dataclass(frozen=True)
class Problem:
    """Something to correct in the file, at a line; `path` is the key it concerns, empty for the file as a whole."""

    line: int
    path: Path
    message: str


@dataclass(frozen=True)
class Document:
    """What was read: `root` is None where the text holds no value or is not YAML at all (then there is a problem)."""

    root: Node | None
    problems: tuple[Problem, ...]


def parse(text: str) -> Document:
    """Read YAML text. Never raises for any text: whatever is wrong with it is among the problems."""
    builder = _Builder(text)
    try:
        root = builder.document()
    except _UnusableError as stop:
        return Document(None, (*builder.problems, stop.problem))
    return Document(root, tuple(builder.problems))


def plain(node: Node) -> object:
    """The value as plain data for JSON. A key whose value is null is left out: null means absent."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items() if child.value is not None}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def dotted(path: Path) -> str:
    """A path as people write it: design.screen.fractions[1]."""
    words = ""
    for item in path:
        words += f"[{item}]" if isinstance(item, int) else f".{printable(item)}"
    return words.removeprefix(".")


def printable(text: str, limit: int = 60) -> str:
    """Text from a file made safe for a terminal, and short."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return short if short.isprintable() else ascii(short)[1:-1]


class _UnusableError(Exception):
    """The rest of the text cannot be read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class _Builder:
    """Builds one document from parser events. Recursion is bounded by MAX_DEPTH."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.last_line = 1
        self.num_values = 0

    def document(self) -> Node | None:
        self.next()  # the stream's start
        if isinstance(self.next(), yaml.StreamEndEvent):
            return None
        first = self.next()
        root = None if _is_empty(first) else self.node(first, (), _line(first))
        self.next()  # the document's end
        second = self.next()
        if not isinstance(second, yaml.StreamEndEvent):
            self.stop(_line(second), "a second document (---): a plan is one document")
        return root

    def next(self) -> yaml.Event:
        """The next event; PyYAML's complaints become ours. ValueError: an escape like \\UFFFFFFFF that is no character."""
        try:
            event = next(self.events)
        except yaml.reader.ReaderError as error:
            line = self.text.count("\n", 0, error.position) + 1
            self.stop(line, f"a character that text cannot hold (U+{int(error.character):04X})")
        except yaml.MarkedYAMLError as error:
            self.stop(*_syntax(error, self.last_line))
        except (ValueError, OverflowError):
            self.stop(self.last_line, "a number in a directive or an escape that is out of range")
        self.last_line = _line(event)
        return event

    def stop(self, line: int, message: str) -> NoReturn:
        raise _UnusableError(Problem(line, (), message))

    def report(self, line: int, path: Path, message: str) -> None:
        self.problems.append(Problem(line, path, message))
        if len(self.problems) >= MAX_PROBLEMS:
            self.stop(line, f"reading stops here, after {MAX_PROBLEMS} problems")

    def node(self, event: yaml.Event, path: Path, key_line: int) -> Node:
        line = _line(event)
        if len(path) > MAX_DEPTH:
            self.stop(line, f"nested deeper than {MAX_DEPTH} levels")
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            self.stop(line, f"more than {MAX_VALUES} values: this is no plan")
        self.check_decoration(event, path)
        if isinstance(event, yaml.MappingStartEvent):
            return Node(self.mapping(path), line, key_line)
        if isinstance(event, yaml.SequenceStartEvent):
            return Node(self.sequence(path), line, key_line)
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, path, key_line)
        return Node(None, line, key_line)  # an alias, reported already

    def check_decoration(self, event: yaml.Event, path: Path) -> None:
        """Tags, anchors and aliases have no place in a plan."""
        line = _line(event)
        anchor = printable(event.anchor or "") if isinstance(event, yaml.NodeEvent) else ""
        if isinstance(event, yaml.AliasEvent):
            self.report(line, path, f"aliases (*{anchor}) are refused: write the value out, or quote a text with *")
        elif anchor:
            self.report(line, path, f"anchors (&{anchor}) are refused: write the value out where it is used")
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)) and event.tag is not None:
            tag = printable(event.tag.replace("tag:yaml.org,2002:", "!!"))
            self.report(line, path, f"the tag {tag} is refused: a plan is plain data and never builds objects")

    def sequence(self, path: Path) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self.next(), yaml.SequenceEndEvent):
            items.append(self.node(event, (*path, len(items)), _line(event)))
        return items

    def mapping(self, path: Path) -> dict[str, Node]:
        children: dict[str, Node] = {}
        while not isinstance(event := self.next(), yaml.MappingEndEvent):
            line = _line(event)
            key = self.key(event, path)
            child = self.node(self.next(), (*path, key), line)
            if key == "<<":
                self.report(line, (*path, key), "merge keys (<<) are refused: write the keys out")
            elif key in children and key != UNUSABLE:
                first = children[key].key_line
                self.report(line, (*path, key), f"repeated key; it stands on line {first} already")
            else:
                children[key] = child
        return children

    def key(self, event: yaml.Event, path: Path) -> str:
        """A key is one piece of text; what stands in its place otherwise is read past, so that the rest can be judged."""
        line = _line(event)
        if isinstance(event, yaml.ScalarEvent):
            self.check_decoration(event, path)
            return self.checked_text(str(event.value), line, (*path, UNUSABLE))
        self.report(line, (*path, UNUSABLE), "a key that is not a word")
        self.node(event, (*path, UNUSABLE), line)
        return UNUSABLE

    def scalar(self, event: yaml.ScalarEvent, path: Path, key_line: int) -> Node:
        line, text = _line(event), str(event.value)
        if event.style is not None:
            return Node(self.checked_text(text, line, path), line, key_line, text)
        if _is_empty(event):
            self.report(line, path, "no value; write null to leave the key out, {} for a mapping with its defaults")
            return Node(None, line, key_line, text)
        value: Value = text
        if text in _WORDS:
            value = _WORDS[text]
        elif _NOT_FINITE.fullmatch(text):
            self.report(line, path, f"{text} is refused: expected a finite number")
        elif _FLOAT.fullmatch(text):
            value = self.number(text, line, path)
        else:
            value = self.checked_text(text, line, path)
        return Node(value, line, key_line, text)

    def number(self, text: str, line: int, path: Path) -> int | float:
        """A whole number in exponent form (1e5) counts as one: written so, it is exact."""
        value = float(text)
        if abs(value) == float("inf") or (_INTEGER.fullmatch(text) and abs(value) > MAX_INTEGER):
            self.report(line, path, f"{printable(text)} is too large")
            return 0
        if "." not in text and value.is_integer() and abs(value) <= MAX_INTEGER:
            return int(value)
        return value

    def checked_text(self, text: str, line: int, path: Path) -> str:
        """Text without control characters and half surrogates, which escapes in a quoted text can spell."""
        if text.isprintable() or all(letter.isprintable() or letter in " \n\t" for letter in text):
            return text
        self.report(line, path, f"a control or unprintable character in '{printable(text)}'")
        return UNUSABLE


def _is_empty(event: yaml.Event) -> bool:
    """Nothing where a value is expected: no text, no quotes, no tag."""
    return isinstance(event, yaml.ScalarEvent) and not event.value and event.style is None and event.tag is None


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark is not None else 1


def _syntax(error: yaml.MarkedYAMLError, last_line: int) -> tuple[int, str]:
    problem = error.problem or error.context or "cannot be read"
    mark = error.problem_mark or error.context_mark
    if error.context_mark is not None and any(part in problem for part in _FROM_THE_START):
        mark = error.context_mark
    line = int(mark.line) + 1 if mark is not None else last_line
    for part, meaning in _SYNTAX:
        if part in problem:
            return line, meaning
    return line, f"not YAML: {printable(problem, 120)}"
