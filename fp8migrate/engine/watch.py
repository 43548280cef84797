"""Follow the log of a live run until it alarms or ends: read it again when it changed, judge it, show it.

A watch can only fail a run early. Without an alarm it ends as inconclusive: parity is decided once, at the end, by `compare`.
"""

import io
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Protocol, cast, get_args

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fp8migrate.engine.options import fraction
from fp8migrate.errors import ExitCode, UsageError, UserError
from fp8migrate.evidence.live import LiveState, Question, live_state, reference
from fp8migrate.plan.schema import NAMED_MARGINS, Serve
from fp8migrate.records.find import find_sources, split_runs
from fp8migrate.records.logs import LogRecord
from fp8migrate.records.readers import read_log, reader_of
from fp8migrate.records.readers.base import Options, parse_columns
from fp8migrate.records.source import Source
from fp8migrate.report.live_view import last_words, one_line, plain_line, view

# Formats that are no lines of text: what they leave half written, their readers know.
_NO_LINES = frozenset({"tensorboard", "wandb-offline", "hf-state", "megatron-golden"})
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Request:
    """What to watch. run, baseline, floor: logs, `FILE::RUN` where a file holds several. every: seconds between looks."""

    run: str
    baseline: tuple[str, ...]
    floor: tuple[str, ...]
    question: Question
    every: float
    once: bool
    options: Options


class Screen(Protocol):
    """Where a watch is shown."""

    def waiting(self, why: str) -> None: ...

    def show(self, state: LiveState, *, grown: bool) -> None: ...


def request_of(
    *,
    run: str,
    baseline: Sequence[str],
    floor: Sequence[str],
    margin: str,
    serve: str,
    forward_penalty: str,
    every: float,
    once: bool,
    format_name: str,
    columns: Sequence[str],
) -> Request:
    """The options of `watch`. UsageError where one is not what it may be."""
    if serve not in get_args(Serve):
        raise UsageError(f"no precision {serve!r}", where="--serve", next_step=f"Allowed: {', '.join(get_args(Serve))}.")
    held_to = NAMED_MARGINS.get(margin) or fraction(margin, "--margin", f"{', '.join(NAMED_MARGINS)}, or ")
    if held_to <= 0:
        raise UsageError("a margin is above zero", where="--margin")
    if not 0 < every < 1e6:
        raise UsageError(f"{every:g} is no number of seconds between two looks", where="--every")
    if run == "-":
        raise UsageError("standard input cannot be read again as it grows", where=run, next_step="Name the file it comes from.")
    penalty = fraction(forward_penalty, "--forward-penalty") if forward_penalty else None
    question = Question(held_to, cast(Serve, serve), penalty)
    options = Options(format_name, parse_columns(columns))
    return Request(run, tuple(baseline), tuple(floor), question, every, once, options)


def watch_run(request: Request, sleep: Callable[[float], None] = time.sleep) -> ExitCode:
    """Watch on the terminal, or in lines where there is none; the exit code that says what was seen. UserError as `follow`."""
    console, errors = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    with _cleaned():
        if console.is_terminal and not console.is_dumb_terminal:
            with LiveScreen(console) as screen:
                state = follow(request, screen, sleep)
        else:
            state = follow(request, PlainScreen(console, errors), sleep)
        for line in last_words(state):
            _say(console, line)
    return ExitCode.INCONCLUSIVE if state.alarm is None else ExitCode.FAIL


def follow(request: Request, screen: Screen, sleep: Callable[[float], None] = time.sleep) -> LiveState:
    """The state at the alarm, at the end of the run, or, with `once`, as the log stands.

    UsageError where the baseline cannot be read or the run can never be compared with it; a log of the run that is not there
    or holds nothing yet is waited for, unless it is looked at only once.
    """
    bf16 = reference(_read_all(request.baseline, request.options), _read_all(request.floor, request.options))
    log = GrowingLog(request.run, request.options)
    state: LiveState | None = None
    while True:
        try:
            record = log.read()
        except NotYetError as error:
            if request.once:
                raise UsageError(error.what, where=error.where, next_step=error.next_step) from error
            screen.waiting(f"{error.where}: {error.what}; waiting for it")
        else:
            if record is not None:
                state = live_state(bf16, record, request.question)
            if log.notice:
                screen.waiting(log.notice)
            if state is not None:
                screen.show(state, grown=record is not None)
                if state.alarm or state.over or request.once:
                    return state
        sleep(request.every)


class NotYetError(UserError):
    """The run's log holds nothing to judge yet."""


@dataclass
class _WholeLines(Source):
    """A text log up to its last whole line: what stands behind it is still being written, and is no value."""

    def _open(self) -> IO[bytes]:
        return io.BytesIO(self.content or b"")


@dataclass
class GrowingLog:
    """The log of a live run, read again when its size, time or file changed. notice: what became of it since the last read."""

    name: str
    options: Options
    notice: str = ""
    _seen: tuple[int, int, int] | None = field(default=None, repr=False)

    def read(self) -> LogRecord | None:
        """The run as its log stands; None where nothing changed. NotYetError; UsageError where it never can be read."""
        path, pattern = split_runs(self.name)
        file = Path(path)
        self.notice = ""
        try:
            found = file.stat()
        except (OSError, ValueError) as error:
            self._seen = None
            missing = isinstance(error, FileNotFoundError)
            raise NotYetError("is not there yet" if missing else f"cannot be read: {_reason(error)}", where=path) from error
        if file.is_dir():
            raise UsageError("is a folder", where=path, next_step="Name the log of the run in it.")
        now = (found.st_size, found.st_mtime_ns, found.st_ino)
        if now == self._seen:
            return None
        if self._seen is not None and (now[0] < self._seen[0] or now[2] != self._seen[2]):
            self.notice = f"{path}: was cut or replaced; read anew"
        self._seen = now
        try:
            records = read_log(_whole(path, file, self.options), self.options)
        except UsageError as error:
            raise NotYetError(error.what, where=error.where, next_step=error.next_step) from error
        return _live_run(records, path, pattern)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _whole(name: str, file: Path, options: Options) -> Source:
    source = Source(name, file)
    if source.head.startswith(_GZIP) or reader_of(source, options.format).name in _NO_LINES:
        return source
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot be read: {_reason(error)}", where=name) from error
    return _WholeLines(name, file, content[: content.rfind(b"\n") + 1])


def _live_run(records: Sequence[LogRecord], path: str, pattern: str) -> LogRecord:
    """The run that is live: of runs that follow one another in a file, the last."""
    found = [record for record in records if record.losses and (not pattern or fnmatchcase(record.name, pattern))]
    if not found:
        raise NotYetError(f"holds no run named {pattern!r} yet", where=path, next_step=_names(records))
    numbered = all(record.name == path or record.name.startswith(f"{path}#") for record in found)
    if len(found) > 1 and not numbered:
        raise UsageError("holds several runs: which one is live? Give it as FILE::RUN", where=path, next_step=_names(found))
    return found[-1]


def _names(records: Sequence[LogRecord]) -> str:
    names = [record.name for record in records]
    return f"It has: {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''}."


def _read_all(names: Sequence[str], options: Options) -> list[LogRecord]:
    """Every run with a loss of finished logs, or those that `FILE::PATTERN` chooses."""
    found = []
    for name in names:
        path, pattern = split_runs(name)
        records = [
            record
            for source in find_sources([path], format_name=options.format).sources
            for record in read_log(source, options)
        ]
        chosen = [record for record in records if record.losses and (not pattern or fnmatchcase(record.name, pattern))]
        if not chosen:
            raise UsageError(f"holds no run named {pattern!r}", where=path, next_step=_names(records))
        found += chosen
    return found


@contextmanager
def _cleaned() -> Iterator[None]:
    """Messages quote names of files and runs: what a terminal would obey is taken out."""
    try:
        yield
    except UserError as error:
        where, next_step = (one_line(text) if text is not None else None for text in (error.where, error.next_step))
        raise type(error)(one_line(error.what), where=where, next_step=next_step) from None


def _say(console: Console, text: str, style: str | None = None) -> None:
    console.print(one_line(text), style=style, markup=False, highlight=False, emoji=False)


class PlainScreen:
    """A line on stdout for each block that is complete; what else there is to say, once, on stderr."""

    def __init__(self, console: Console, errors: Console) -> None:
        self._console, self._errors = console, errors
        self._blocks = 0
        self._said: set[str] = set()
        self._waiting = ""

    def waiting(self, why: str) -> None:
        if why != self._waiting:
            _say(self._errors, why)
        self._waiting = why

    def show(self, state: LiveState, *, grown: bool) -> None:
        if not grown:
            return
        self._waiting = ""
        for kind, texts in (("note", state.notes), ("warning", state.warnings)):
            # The numbers in them may change with every block; to have said it once is enough.
            self._once(kind, texts)
        if state.blocks.complete > self._blocks:
            _say(self._console, plain_line(state))
        self._blocks = state.blocks.complete

    def _once(self, kind: str, texts: Sequence[str]) -> None:
        for text in texts:
            key = "".join(letter for letter in text if not letter.isdigit())
            if key not in self._said:
                self._said.add(key)
                _say(self._errors, f"{kind}: {text}")


class LiveScreen:
    """A view that is drawn over itself."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._state: LiveState | None = None
        self._grew = clock()

    def __enter__(self) -> "LiveScreen":
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def waiting(self, why: str) -> None:
        self._draw(why)

    def show(self, state: LiveState, *, grown: bool) -> None:
        self._state = state
        self._grew = self._clock() if grown else self._grew
        quiet = self._clock() - self._grew
        self._draw(f"the log has not grown for {quiet / 60:.0f} min" if quiet >= 60 else "")

    def _draw(self, heard: str) -> None:
        if self._state is None:
            drawn = Text(one_line(heard))
        else:
            drawn = view(self._state, self._console.width, self._console.height, heard)
        self._live.update(drawn, refresh=True)
