"""What a process said last, for the message about how it ended."""

import re
from pathlib import Path

_TAIL_BYTES = 8192
_NUM_LINES = 12
_LINE_LENGTH = 300
_TRACEBACK = "Traceback (most recent call last):"
# Terminal escapes and control characters: a log must not be able to paint over the message that quotes it.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def read_tail(path: Path, start: int = 0) -> str:
    """The end of a log file, from byte `start` on; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def last_words(text: str) -> str:
    """The last lines of a log, its last error first: of a Python traceback that is the line that names the exception."""
    lines = [_CONTROL.sub("", line.rstrip())[:_LINE_LENGTH] for line in text.splitlines()]
    lines = [line for line in lines if line.strip()]
    tail = lines[-_NUM_LINES:]
    error = _exception_line(lines)
    if error is None or tail[-1:] == tail[:1] == [error]:
        return "\n".join(tail)
    return "\n".join([error, *(line for line in tail if line != error)])


def _exception_line(lines: list[str]) -> str | None:
    """The first unindented line after the last traceback's head."""
    heads = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    after = lines[heads[-1] + 1 :] if heads else []
    return next((line for line in after if not line.startswith(" ")), None)
