"""Values as logs write them: what is a number, what is NaN, what is missing, with how many digits."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import floor, isfinite, log10
from typing import cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# A value as written. Text keeps the digits that it was logged with; None and empty are missing, which is not NaN.
Token = bytes | str | float | None

FULL_DIGITS = 15
DIGIT_SAMPLES = 200
_NUMBER = re.compile(rb"[+-]?(\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MAX_NUMBER = 64


# What is None raises TypeError here, as it should.
_float = cast(Callable[[Token], float], float)


def numbers(tokens: Sequence[Token]) -> Array:
    """Tokens as float64; what is no number becomes NaN, which `missing` tells from a NaN that was logged."""
    if tokens and type(tokens[0]) in (bytes, float, int):
        with suppress(ValueError, TypeError, OverflowError):
            return np.array(list(map(_float, tokens)))
    return np.array([_number(token) for token in tokens], dtype=np.float64)


def _number(token: Token) -> float:
    if isinstance(token, bytes):
        token = token.decode("latin-1")
    if isinstance(token, str):
        token = token.strip().replace(",", "") if len(token) <= _MAX_NUMBER else ""
    try:
        return float(token) if token is not None and token != "" else np.nan
    except (ValueError, TypeError, OverflowError):
        return np.nan


def missing(tokens: Sequence[Token], values: Array) -> NDArray[np.bool_]:
    """Where a NaN stands for no value, or for text that is no number; a logged NaN (any spelling) is a value."""
    found = np.zeros(values.size, dtype=bool)
    for index in np.flatnonzero(np.isnan(values)).tolist():
        found[index] = not _says_nan(tokens[index])
    return found


def _says_nan(token: Token) -> bool:
    if isinstance(token, float):
        return True
    text = token.decode("latin-1") if isinstance(token, bytes) else str(token)
    return text.strip().lower().lstrip("+-") in ("nan", "nan(ind)", "nan(snan)")


def digits_of(tokens: Sequence[Token]) -> int | None:
    """Significant digits with which the last of the values were written; None for full precision.

    Of the values before it only those of its own size count: with a fixed number of decimals 10.8125 has one digit more
    than 3.2500, and what a program rounds may end in zeros that it does not write.
    """
    most, last_size = 0, None
    for digits, size in filter(None, map(_written, reversed(tokens))):
        last_size = size if last_size is None else last_size
        most = max(most, digits) if size == last_size else most
        if most >= FULL_DIGITS:
            return None
    return most or None


def _written(token: Token) -> tuple[int, int] | None:
    """Significant digits, and the decimal exponent of the value; None for zero and for what is not finite."""
    value, digits = _number(token), _digits(token)
    return (digits, floor(log10(abs(value)))) if digits and value and isfinite(value) else None


def _digits(token: Token) -> int:
    if isinstance(token, float | int):
        if not np.isfinite(token):
            return 0
        token = repr(float(token))
        token = token[:-2] if token.endswith(".0") else token
    text = token.encode("latin-1", "replace") if isinstance(token, str) else token or b""
    match = _NUMBER.search(text.replace(b",", b""))
    return len(match[1].replace(b".", b"").replace(b"_", b"").lstrip(b"0")) if match else 0


def is_number(text: str) -> bool:
    """Whether text is a number, NaN and infinities among them."""
    try:
        float(text)
    except ValueError:
        return False
    return True
