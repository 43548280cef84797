"""Times of what runs on a device, without waiting for it in between."""

import time

import torch


class Instant:
    """When the device has done all that was handed to it so far (a CUDA event); on a CPU, now."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        self._time = 0.0
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._time = time.perf_counter()

    def wait(self) -> None:
        """Until it has come; for nothing that was handed to the device after it."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: "Instant") -> float:
        """Seconds from another instant of the same device. Both must have come."""
        if self._event is None or earlier._event is None:
            return self._time - earlier._time
        return float(earlier._event.elapsed_time(self._event)) / 1000


class Clock:
    """Marks one after the other."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Instant] = []

    def mark(self) -> None:
        self._marks.append(Instant(self._device))

    def seconds(self) -> list[float]:
        """Between each mark and the next; waits for the last."""
        wait(self._device.type == "cuda")
        return [second.since(first) for first, second in zip(self._marks, self._marks[1:], strict=False)]


def wait(on_gpu: bool) -> None:
    if on_gpu:
        torch.cuda.synchronize()
