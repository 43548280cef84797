"""From a file to a plan: one message with every problem, each with its line, or a plan that can be run as written."""

import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import ValidationError

from fp8migrate.errors import PlanError
from fp8migrate.plan import tree
from fp8migrate.plan.digest import plan_digest
from fp8migrate.plan.policy import Policy
from fp8migrate.plan.problems import explain
from fp8migrate.plan.schema import Plan
from fp8migrate.plan.tree import Node, Problem
from fp8migrate.settings import Settings

S = TypeVar("S", bound=Settings)

MAX_BYTES = 1 << 20
# Characters of a path that a message shows.
MAX_PATH = 1000

_START = "`fp8migrate init` writes a plan to start from."


@dataclass(frozen=True)
class LoadedPlan:
    """A plan and the file it came from. `sha256` is of its meaning (digest.py), not of the file's bytes.

    options: of the command line that made this plan of the file's, as a shell takes them.
    """

    plan: Plan
    text: str
    path: Path
    sha256: str
    lines: Mapping[str, int]
    options: str = ""

    def where(self, key: str) -> str:
        """`file:line` of a dotted key, or of the nearest mapping around it that is in the file."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return f"{self.path}:{self.lines.get(key, 1)}"


def load_plan(path: Path | str) -> LoadedPlan:
    """Read a plan. PlanError: the file cannot be read, or holds no valid plan; the message lists every problem."""
    path = Path(path)
    text, root, problems = _document(path)
    plan = _validated(root, problems, path, Plan)
    return LoadedPlan(plan, text, path, plan_digest(plan), _lines(root))


def load_policy(path: Path | str) -> Policy:
    """Read a gate policy. PlanError as of a plan."""
    path = Path(path)
    _, root, problems = _document(path)
    return _validated(root, problems, path, Policy)


def _document(path: Path) -> tuple[str, Node, list[Problem]]:
    """A YAML file that holds a mapping: its text, its root, and what the strict loader found wrong with it."""
    text = _decode(_read(path), path)
    document = tree.parse(text)
    root = document.root
    if root is None:
        if document.problems:
            raise _refused(document.problems, path)
        what = "holds no keys, only comments" if text.strip() else "is empty"
        raise PlanError(f"this plan {what}", where=tree.printable(str(path), MAX_PATH), next_step=_START)
    if not isinstance(root.value, dict):
        kind = "a list" if isinstance(root.value, list) else "a single value"
        problem = Problem(root.line, (), f"expected a mapping of keys (name, model, training, …), got {kind}")
        raise _refused(document.problems or [problem], path)
    return text, root, list(document.problems)


def _validated(root: Node, problems: Sequence[Problem], path: Path, model: type[S]) -> S:
    try:
        plan = model.model_validate_json(orjson.dumps(tree.plain(root)))
    except ValidationError as error:
        # What a refused tag or a repeated key left behind is not judged a second time.
        seen = [problem.path for problem in problems]
        fresh = [found for found in explain(error, root, model) if not any(found.path[: len(at)] == at for at in seen)]
        raise _refused([*problems, *fresh], path) from None
    if problems:
        raise _refused(problems, path)
    return plan


def _refused(problems: Sequence[Problem], path: Path) -> PlanError:
    lines, file = [], tree.printable(str(path), MAX_PATH)
    for problem in sorted(problems, key=lambda problem: problem.line):
        key = tree.dotted(problem.path)
        lines.append(f"{file}:{problem.line}: {key}: {problem.message}" if key else f"{file}:{problem.line}: {problem.message}")
    return PlanError("\n".join(lines))


def _lines(root: Node) -> dict[str, int]:
    lines: dict[str, int] = {"": root.line}
    waiting: list[tuple[tree.Path, Node]] = [((), root)]
    while waiting:
        at, node = waiting.pop()
        for key, child in node.value.items() if isinstance(node.value, dict) else ():
            lines[tree.dotted((*at, key))] = child.key_line
            waiting.append(((*at, key), child))
    return lines


def _read(path: Path) -> bytes:
    where = tree.printable(str(path), MAX_PATH)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise PlanError("this is a folder, not a plan", where=where, next_step=_plans_in(path))
        if not stat.S_ISREG(mode):
            raise PlanError("this is not a regular file", where=where, next_step="Save the plan as a file and name that.")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise PlanError("no such file", where=where, next_step=_near(path)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PlanError(f"cannot be read: {reason}", where=where, next_step="Check the path and its permissions.") from None
    if len(content) > MAX_BYTES:
        what = f"larger than {MAX_BYTES // 1024} KiB: this is no plan"
        raise PlanError(what, where=where, next_step="Name the plan, not its data or a log.")
    return content


def _decode(content: bytes, path: Path) -> str:
    next_step = "A plan is YAML text in UTF-8: save it so."
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise PlanError("this file is UTF-16, not UTF-8", where=str(path), next_step=next_step)
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise PlanError("a NUL byte: this is a binary file, not a plan", where=f"{path}:{line}", next_step=next_step)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        what = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise PlanError(what, where=f"{path}:{line}", next_step=next_step) from None


def _near(path: Path) -> str:
    """What to do about a file that is not there: the folder that is missing, or the plans that are in it."""
    folder = path.parent
    if not folder.is_dir():
        return f"There is no folder {tree.printable(str(folder), MAX_PATH)} either."
    names = _yaml_names(folder)
    near = get_close_matches(path.name, names, n=3)
    return f"Did you mean {', '.join(str(folder / name) for name in near)}?" if near else _plans_in(folder)


def _plans_in(folder: Path) -> str:
    names = _yaml_names(folder)
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"YAML files in {folder}: {shown}." if names else _START


def _yaml_names(folder: Path) -> list[str]:
    try:
        return sorted(tree.printable(entry.name) for entry in folder.iterdir() if entry.suffix in {".yaml", ".yml"})
    except OSError:
        return []
