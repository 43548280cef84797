"""Ctrl-C, a scheduler's SIGTERM, a closed terminal: heard as requests, so that jobs are stopped and nothing is lost."""

import signal
import threading
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequests:
    """Counts stop signals while it is entered. `count` 1: stop gracefully; 2 and more: stop at once.

    Unless `shielded` (jobs are running and the count is watched), a second signal raises KeyboardInterrupt: whatever
    computes at that moment is only computing.
    """

    def __init__(self) -> None:
        self.count = 0
        self.signal_name = ""
        self.shielded = False
        self._before: dict[int, Any] = {}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.signal_name = signal.Signals(number).name
        if self.count > 1 and not self.shielded:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        # Python lets only the main thread handle signals. Elsewhere (an embedding program) its own handling stays in force.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # nohup means it: an ignored signal stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
