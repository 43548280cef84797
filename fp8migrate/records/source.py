"""Where a log's bytes come from: a file, a compressed one, standard input. Read once, forwards, in bounded memory."""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import numpy as np

from fp8migrate.errors import UsageError

HEAD_BYTES = 1 << 16
CHUNK_BYTES = 1 << 22
# No training log has such lines; what has is not a log. They are counted as not understood, never searched.
MAX_LINE_BYTES = 1 << 16
# Formats that must be parsed as one document (JSON) are read whole, up to this size.
MAX_DOCUMENT_BYTES = 1 << 29
_GZIP = b"\x1f\x8b"
# How far before the end of a log a traceback may stand, and the line that ends one.
CRASH_BYTES = 1 << 15
_ERROR = re.compile(rb"(?m)^[^\n]{0,120}?\b((?:[A-Za-z_][\w.]{0,80}\.)?[A-Z]\w{0,60}(?:Error|Exception)\b[^\n]{0,300})")


@dataclass
class Source:
    """One log. name: as the user gave it, for messages; path: None for standard input. long_lines: skipped so far.

    recognised: which reader knows it, kept by `readers.recognise`.
    """

    name: str
    path: Path | None
    content: bytes | None = None
    long_lines: int = 0
    num_lines: int = 0
    recognised: tuple[int, object] | None = field(default=None, repr=False)
    _head: bytes | None = field(default=None, repr=False)

    @classmethod
    def stdin(cls) -> "Source":
        return cls("standard input", None, sys.stdin.buffer.read())

    @property
    def file_name(self) -> str:
        """The name without `.gz`."""
        name = self.path.name if self.path else self.name
        return name[:-3] if name.lower().endswith(".gz") else name

    @property
    def size(self) -> int:
        """Bytes of the file; 0 where there is none to be measured."""
        try:
            return self.path.stat().st_size if self.path else 0
        except OSError:
            return 0

    @property
    def head(self) -> bytes:
        """The first 64 KiB, by which a format is recognised."""
        if self._head is None:
            with self._open() as stream:
                self._head = self._guarded(lambda: stream.read(HEAD_BYTES))
        return self._head

    def chunks(self) -> Iterator[bytes]:
        """The content in pieces that end at the end of a line; a carriage return ends one too.

        Lines above MAX_LINE_BYTES are left out and counted.
        """
        self.long_lines = self.num_lines = 0
        rest = b""
        with self._open() as stream:
            while piece := self._guarded(lambda: stream.read(CHUNK_BYTES)):
                cut = piece.rfind(b"\n") + 1
                if not cut:
                    # Still inside one line: keep just enough to know that it is too long.
                    rest = (rest + piece)[: MAX_LINE_BYTES + 1]
                    continue
                yield self._bounded(b"".join((rest, memoryview(piece)[:cut])))
                rest = piece[cut:]
        if rest:
            yield self._bounded(rest + b"\n")

    def lines(self) -> Iterator[bytes]:
        """The lines, without their ends."""
        for chunk in self.chunks():
            yield from chunk.split(b"\n")[:-1]

    def crash(self) -> str:
        """The error that a text file ends with, as programs print it after a traceback; empty where there is none."""
        try:
            if self.path is None or self.size == 0:
                return ""
            with self.path.open("rb") as stream:
                stream.seek(max(0, self.size - CRASH_BYTES))
                tail = stream.read(CRASH_BYTES)
        except OSError:
            return ""
        if b"Traceback (most recent call last)" not in tail and b"OutOfMemoryError" not in tail:
            return ""
        found = _ERROR.findall(tail)
        return str(found[-1][:300].decode("utf-8", "replace")).strip() if found else "Traceback (most recent call last)"

    def document(self) -> bytes:
        """All of it. UsageError above MAX_DOCUMENT_BYTES."""
        with self._open() as stream:
            content = self._guarded(lambda: stream.read(MAX_DOCUMENT_BYTES + 1))
        if len(content) > MAX_DOCUMENT_BYTES:
            what = f"is larger than {MAX_DOCUMENT_BYTES >> 20} MiB, the most that is read as one document"
            raise UsageError(what, where=self.name, next_step="Write one line a step (JSONL or CSV) instead.")
        return content

    def _bounded(self, chunk: bytes) -> bytes:
        if b"\r" in chunk:
            # Windows' line ends, and progress bars that draw over themselves.
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self.num_lines += int(np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")))
        if not _has_long_lines(chunk):
            return chunk
        lines = chunk.split(b"\n")
        kept = [line for line in lines if len(line) <= MAX_LINE_BYTES]
        self.long_lines += len(lines) - len(kept)
        return b"\n".join(kept)

    def _open(self) -> IO[bytes]:
        if self.path is None:
            content = self.content or b""
            stream = io.BytesIO(content)
            return cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if content.startswith(_GZIP) else stream
        try:
            with self.path.open("rb") as start:
                compressed = start.read(len(_GZIP)) == _GZIP
            return cast(IO[bytes], gzip.open(self.path)) if compressed else self.path.open("rb", buffering=CHUNK_BYTES)
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror or error}", where=self.name) from error

    def _guarded(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except (OSError, EOFError, zlib.error) as error:
            raise UsageError(f"cannot be read: {error}", where=self.name, next_step="Is the file whole?") from error


def _has_long_lines(chunk: bytes) -> bool:
    """Whether a line is longer than MAX_LINE_BYTES: from each line's end another one must be found within so many bytes."""
    start = 0
    while start < len(chunk):
        end = chunk.rfind(b"\n", start, start + MAX_LINE_BYTES + 1)
        if end < 0:
            return True
        start = end + 1
    return False
