"""Times of what runs on a device, without waiting for it in between."""

import time

import torch


class Clock:
    """Marks in the device's own queue of work (CUDA events); on a CPU the clock's time."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._marks: list[torch.cuda.Event | float] = []

    def mark(self) -> None:
        if not self._on_gpu:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """Between each mark and the next; waits for the last."""
        wait(self._on_gpu)
        found = []
        for first, second in zip(self._marks, self._marks[1:], strict=False):
            if isinstance(first, float) or isinstance(second, float):
                assert isinstance(first, float)
                assert isinstance(second, float)
                found.append(second - first)
            else:
                found.append(first.elapsed_time(second) / 1000)
        return found


def wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
