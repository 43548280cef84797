"""Backends: what executes the linear layers. A new one is one file and one line in `BACKENDS`."""

from collections.abc import Callable

from fp8migrate.jobs import Precision
from fp8migrate.records.schema import Conversion
from fp8migrate.worker.backends import bf16, emulated
from fp8migrate.worker.models.llama import Llama

# Each converts a freshly built model in place (parameters keep their names and values) and says what it did.
Convert = Callable[[Llama, Precision, int], Conversion]
BACKENDS: dict[str, Convert] = {"bf16": bf16.convert, "emulated": emulated.convert}


def convert(model: Llama, precision: Precision, tokens_per_pass: int) -> Conversion:
    """Bring `model` into `precision`. tokens_per_pass: rows of every linear layer's input, for the shape rules."""
    return BACKENDS[precision.backend](model, precision, tokens_per_pass)


__all__ = ["BACKENDS", "convert"]
