"""The log of a run's updates, one update behind: a GPU is never left without work while the host reads and writes.

So a loss that is not finite is found when the next update has been handed out. That one is not logged, and no state is
validated or kept before `flush` has seen the last.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from fp8migrate.records.writer import RunWriter
from fp8migrate.worker.clock import Instant
from fp8migrate.worker.tasks.context import NonFinite
from fp8migrate.worker.tensor_watch import TensorWatch
from fp8migrate.worker.transfer import Readback


@dataclass(frozen=True, eq=False)
class _Waiting:
    """watched: seconds that the watch had looked by then."""

    step: int
    rate: float
    values: Readback
    watched: float


class UpdateLog:
    """seconds: of each update logged, from the end of the one before it to its own, the watch's left out."""

    def __init__(self, writer: RunWriter, watch: TensorWatch, device: torch.device) -> None:
        self.seconds: list[float] = []
        self._writer, self._watch, self._device = writer, watch, device
        self._waiting: _Waiting | None = None
        self._since, self._watched = Instant(device), 0.0

    @contextmanager
    def update_to(self, step: int, rate: float) -> Iterator[Callable[[Tensor, Tensor], None]]:
        """Around the update after which `step` are done; gives what takes its loss and gradient norm.

        Logs the update before it. Raises NonFinite where that one was not finite, also where this one failed after it.
        """
        if self._waiting is None:
            self._since, self._watched = Instant(self._device), self._watch.seconds

        def done(loss: Tensor, norm: Tensor) -> None:
            own = _Waiting(step, rate, Readback(loss, norm), self._watch.seconds)
            self.flush()
            self._waiting = own

        try:
            with self._watch.update_to(step):
                yield done
        except NonFinite:
            raise
        except Exception:
            self.flush()
            raise

    def flush(self) -> None:
        """Log the update that waits, if one does. Raises NonFinite after logging what was not finite."""
        own, self._waiting = self._waiting, None
        if own is None:
            return
        loss, norm = own.values.read()
        arrival = own.values.arrival
        seconds = arrival.since(self._since) - (own.watched - self._watched)
        self._since, self._watched = arrival, own.watched
        self._writer.log(own.step, loss=loss, grad_norm=norm, learning_rate=own.rate, step_seconds=seconds)
        self.seconds.append(seconds)
        for what, value in (("loss", loss), ("gradient norm", norm)):
            if not math.isfinite(value):
                raise NonFinite(own.step, f"{what} is {value}")
