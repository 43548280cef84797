"""GPU kernels that really ran, by name and time, from torch's profiler."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

_RANGE = "fp8migrate:"


@dataclass(frozen=True)
class Kernel:
    """One kernel's runs within one range. microseconds: on the GPU, summed over its calls."""

    name: str
    calls: int
    microseconds: float


class KernelWatch:
    """Profiles what runs inside `range(name)`, and says afterwards which kernels that was.

    A range begins and ends with the GPU idle, so that kernels belong to it by their time, those of the backward pass included,
    which another thread starts.
    """

    def __init__(self) -> None:
        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True)

    def __enter__(self) -> "KernelWatch":
        self._profile.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._profile.stop()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        torch.cuda.synchronize()
        with record_function(_RANGE + name):
            yield
            torch.cuda.synchronize()

    def kernels(self) -> Mapping[str, tuple[Kernel, ...]]:
        """By range, longest first. Several ranges of one name are one. Memory copies and fills are no kernels."""
        events = self._profile.events() or []  # type: ignore[no-untyped-call]
        on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
        ranges = [
            (event.name.removeprefix(_RANGE), event.time_range)
            for event in events
            if event.name.startswith(_RANGE) and event.device_type == DeviceType.CPU
        ]
        found: dict[str, dict[str, list[float]]] = {name: {} for name, _ in ranges}
        for event in on_gpu:
            if event.name.startswith((_RANGE, "Memcpy", "Memset")):
                continue
            start = event.time_range.start
            for name, span in ranges:
                if span.start <= start <= span.end:
                    found[name].setdefault(event.name, []).append(event.time_range.elapsed_us())
        return {name: _sorted(times) for name, times in found.items()}


def _sorted(times: Mapping[str, list[float]]) -> tuple[Kernel, ...]:
    kernels = (Kernel(name, len(each), sum(each)) for name, each in times.items())
    return tuple(sorted(kernels, key=lambda kernel: -kernel.microseconds))
