"""NaN and infinities in JSON. JSON has no word for them, and orjson would write null: a NaN loss would become a missing one."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

WORDS: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def word(value: float) -> float | str:
    """`value`, or its word where it is not finite."""
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def encode(value: Any) -> Any:
    """A value that orjson writes without loss: non-finite floats as words; numpy scalars and arrays as Python's own."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return word(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    return value


def decode(value: Any) -> Any:
    """The reverse of `encode` for what JSON can hold. A text that is one of the three words comes back as a number."""
    if isinstance(value, str):
        return WORDS.get(value, value)
    if isinstance(value, dict):
        return {key: decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value
