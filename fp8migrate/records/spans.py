"""Numbers of a large text by the places where they stand: many at once, each exactly as `float` would read it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp8migrate.records.collect import Block
from fp8migrate.records.tokens import DIGIT_SAMPLES, Array, Token, missing, numbers

Places = NDArray[np.intp]
Flags = NDArray[np.bool_]
Bytes = NDArray[np.bytes_]

MAX_WIDTH = 24
_WORD = 8
_LINE_END = ord("\n")
# Tokens of one width have few shapes: signs of the exponent, places of the point.
_MAX_SHAPES = 8
# An integer of so many digits and a power of ten up to 10^22 are exact in float64, so their quotient is rounded once: it is
# the very number that `float` finds.
MAX_EXACT_DIGITS = 15
_MAX_EXACT_POWER = 22
_POWERS = np.array([10.0**power for power in range(_MAX_EXACT_POWER + 1)])
_NAN = b"nan"
_DECIMAL = re.compile(rb"[+-]?(\d*)\.?(\d*)(?:[eE][+-]?(\d{1,2}))?")


class Text:
    """A text whose bytes are looked at in many places at once."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.codes = np.frombuffer(content, dtype=np.uint8)

    def at(self, starts: Places, width: int) -> Bytes:
        """The `width` bytes from each place on. All must lie within the text."""
        size = max(0, len(self.content) - width + 1)
        windows: Bytes = np.ndarray((size,), dtype=f"S{width}", buffer=self.content, strides=(1,))
        return windows[starts]

    def columns(self, starts: Places, width: int) -> NDArray[np.uint8]:
        """The same as codes, one row a position: the first bytes of all places, then the second ones."""
        return np.ascontiguousarray(self.at(starts, width).view(np.uint8).reshape(-1, width).T)

    def says(self, starts: Places, words: bytes) -> Flags:
        """Whether the words stand at each place; before and beyond the text nothing stands."""
        if not words or not starts.size:
            return np.ones(starts.size, dtype=bool)
        # Compared eight bytes at once. The first eight begin as many bytes before the words as make the rest come out even.
        ahead = -len(words) % _WORD
        if starts.min() < ahead or starts.max() > len(self.content) - len(words):
            within = (starts >= 0) & (starts <= len(self.content) - len(words))
            found = np.zeros(starts.size, dtype=bool)
            found[within] = self.at(starts[within], len(words)) == words
            return found
        expected = np.frombuffer(bytes(ahead) + words, dtype=np.uint64)
        read = self.at(starts - ahead, ahead + len(words)).view(np.uint64).reshape(-1, expected.size)
        differ = (read[:, 0] ^ expected[0]) & np.frombuffer(bytes(ahead) + b"\xff" * (_WORD - ahead), dtype=np.uint64)[0]
        for place in range(1, expected.size):
            differ |= read[:, place] ^ expected[place]
        same: Flags = differ == 0
        return same

    def between(self, starts: Places, ends: Places) -> list[bytes]:
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [self.content[start:end] for start, end in pairs]


class MarkedLines:
    """The lines of a text and the marks in them, such as bars. starts, ends: of each line, without its end.

    marks: places of all marks and line ends. first: of each line the index of its first one. count: how many marks it has.
    """

    def __init__(self, content: bytes, mark: int) -> None:
        self.text = Text(content)
        codes = self.text.codes
        self.marks: Places = np.flatnonzero((codes == mark) | (codes == _LINE_END))
        last: Places = np.flatnonzero(codes[self.marks] == _LINE_END)
        self.first: Places = np.concatenate(([0], last + 1))[: last.size].astype(np.intp)
        self.count: Places = last - self.first
        self.ends: Places = self.marks[last]
        self.starts: Places = np.concatenate(([0], self.ends + 1))[: last.size].astype(np.intp)


@dataclass(frozen=True)
class _Shape:
    """Where the digits of a decimal number stand, and what stands between them."""

    between: tuple[tuple[int, int], ...]
    digits: list[int]
    exponent: list[int]
    decimals: int
    negative: bool
    negative_exponent: bool

    @classmethod
    def of(cls, token: bytes) -> "_Shape | None":
        match = _DECIMAL.fullmatch(token)
        if match is None or not 1 <= len(match[1]) + len(match[2]) <= MAX_EXACT_DIGITS:
            return None
        start, stop = match.span(3) if match[3] else (len(token), len(token))
        digits = [*range(*match.span(1)), *range(*match.span(2))]
        between = [(place, code) for place, code in enumerate(token) if place not in digits and not start <= place < stop]
        negative_exponent = bool(match[3]) and token[start - 1 : start] == b"-"
        return cls(tuple(between), digits, [*range(start, stop)], len(match[2]), token[:1] == b"-", negative_exponent)

    def read(self, codes: NDArray[np.uint8]) -> tuple[Array, Flags]:
        """The values, and which of them are of this shape and exact. codes: as Text.columns has them."""
        fits = np.ones(codes.shape[1], dtype=bool)
        for place, code in self.between:
            fits &= codes[place] == code
        levels = codes - np.uint8(ord("0"))
        fits &= levels[self.digits + self.exponent].max(axis=0) <= 9
        values = _whole(levels, self.digits)
        power = _whole(levels, self.exponent) * (-1 if self.negative_exponent else 1) - self.decimals
        fits &= np.abs(power) <= _MAX_EXACT_POWER
        size = _POWERS[np.minimum(np.abs(power), _MAX_EXACT_POWER).astype(np.intp)]
        values = np.where(power < 0, values / size, values * size)
        return -values if self.negative else values, fits


def _whole(levels: NDArray[np.uint8], places: Sequence[int]) -> Array:
    """The whole number whose digits stand at the places."""
    values = np.zeros(levels.shape[1])
    for place in places:
        values *= 10
        values += levels[place]
    return values


def whole_numbers(codes: NDArray[np.uint8]) -> tuple[Array, Flags]:
    """Numbers that are padded with blanks on their left, as `%8d` writes them; and which are such, with a blank at least."""
    levels = codes - np.uint8(ord("0"))
    digits = levels <= 9
    fits = (digits | (codes == ord(" "))).all(axis=0) & ~digits[0] & digits[-1]
    fits &= ~(digits[:-1] & ~digits[1:]).any(axis=0)
    return _whole(np.where(digits, levels, np.uint8(0)), range(codes.shape[0])), fits


def read_decimals(text: Text, starts: Places, ends: Places) -> tuple[Array, Flags]:
    """The values of plain decimal numbers, and where such stand."""
    values, known = np.zeros(starts.size), np.zeros(starts.size, dtype=bool)
    widths = np.clip(ends - starts, 0, MAX_WIDTH + 1)
    for width in np.flatnonzero(np.bincount(widths, minlength=MAX_WIDTH + 2)[1 : MAX_WIDTH + 1]) + 1:
        left = np.flatnonzero(widths == width)
        if width == len(_NAN):
            says = text.says(starts[left], _NAN)
            values[left[says]], known[left[says]] = np.nan, True
            left = left[~says]
        for _ in range(_MAX_SHAPES if left.size else 0):
            shape = _Shape.of(text.content[starts[left[0]] : ends[left[0]]])
            if shape is None:
                break
            found, fits = shape.read(text.columns(starts[left], int(width)))
            values[left[fits]] = found[fits]
            known[left[fits]] = True
            left = left[~fits]
            if not left.size or not fits.any():
                break
    return values, known


@dataclass(frozen=True, eq=False)
class Points:
    """What was read of many places. missing: of them. first: the index of the first place where anything stands, or None."""

    block: Block
    missing: int
    first: int | None


def read_points(text: Text, steps: Array, starts: Places, ends: Places, token: Callable[[bytes], Token]) -> Points:
    """What `Column.add_block` makes of the tokens between starts and ends. Where nothing stands there is no point.

    token: makes one of the bytes that stand in a place.
    """
    filled = np.flatnonzero(ends > starts)
    if filled.size < starts.size:
        steps, starts, ends = steps[filled], starts[filled], ends[filled]
    values, known = read_decimals(text, starts, ends)
    lacks, there = 0, known
    odd = np.flatnonzero(~known)
    if odd.size:
        tokens = list(map(token, text.between(starts[odd], ends[odd])))
        values[odd] = numbers(tokens)
        empty = np.array([not token for token in tokens])
        lacking = missing(tokens, values[odd])
        lacks = int((lacking & ~empty).sum())
        there, keep = known.copy(), known.copy()
        there[odd], keep[odd] = ~empty, ~(lacking | empty)
        steps, values, starts, ends = steps[keep], values[keep], starts[keep], ends[keep]
    sample = tuple(map(token, text.between(starts[-DIGIT_SAMPLES:], ends[-DIGIT_SAMPLES:])))
    return Points(Block(steps, values, sample), lacks, int(filled[there.argmax()]) if there.any() else None)
