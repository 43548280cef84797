"""How long the parts of some work take on the device by themselves, and how long the host takes to hand them out.

A GPU that waits for the host shows the host's time. So it is made to wait first, until the host has handed out a whole burst,
and then works through it without a gap. Before each part its cache is filled with something else, as other layers would.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

# Work of which the time is told part by part: it yields after each.
Work = Callable[[], Iterator[None]]
# What a whole burst runs in.
Around = Callable[[], AbstractContextManager[object]]
_Pair = tuple[torch.cuda.Event, torch.cuda.Event]

# Of one figure, in all bursts together.
_SECONDS, _LEAST_REPEATS = 0.02, 4
# A GPU takes about a thousand launches before the host has to wait.
_MOST_REPEATS = 16
_ROUNDS = 3
# An upper bound of the clock: a GPU that runs slower waits longer.
_CYCLES_PER_SECOND = 2e9


@dataclass
class Samples:
    """Seconds of each part in every repeat."""

    device: list[list[float]] = field(default_factory=list)
    host: list[list[float]] = field(default_factory=list)

    def medians(self) -> list[tuple[float, float]]:
        """Of each part: seconds of the device, and of the host."""
        return [
            (median(device), median(host))
            for device, host in zip(zip(*self.device, strict=True), zip(*self.host, strict=True), strict=True)
        ]


class Bursts:
    """Times pieces of work on one device. Holds a buffer larger than its cache."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self._filler: Tensor | None = None
        if self.on_gpu:
            cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
            self._filler = torch.empty(3 * max(cache, 2**24), dtype=torch.uint8, device=device)

    def compare(self, works: Sequence[tuple[Work, Around]]) -> list[list[tuple[float, float]]]:
        """Median seconds (device, host) of each part of each piece of work. They take turns: none has the cooler GPU."""
        samples = [Samples() for _ in works]
        plans = []
        for work, around in works:
            self._burst(work, around, 2, 0.0, Samples())  # compiles, allocates, chooses kernels
            first = Samples()
            self._burst(work, around, 2, 0.0, first)
            parts = first.medians()
            device, host = sum(each[0] for each in parts), sum(each[1] for each in parts)
            repeats = min(_MOST_REPEATS, max(_LEAST_REPEATS, round(_SECONDS / _ROUNDS / device)))
            plans.append((repeats, 1.5 * host * repeats + 1e-3))
        for _ in range(_ROUNDS):
            for (work, around), found, (repeats, head_start_s) in zip(works, samples, plans, strict=True):
                self._burst(work, around, repeats, head_start_s, found)
        return [each.medians() for each in samples]

    def _burst(self, work: Work, around: Around, repeats: int, head_start_s: float, into: Samples) -> None:
        marks: list[list[_Pair]] = []
        with around():
            if self.on_gpu:
                torch.cuda.synchronize()
                if head_start_s:
                    torch.cuda._sleep(int(head_start_s * _CYCLES_PER_SECOND))  # type: ignore[no-untyped-call]
            for _ in range(repeats):
                host, events = self._once(work)
                into.host.append(host)
                marks.append(events)
        if not self.on_gpu:
            into.device.extend(into.host[-repeats:])
            return
        torch.cuda.synchronize()
        into.device.extend([[first.elapsed_time(last) / 1000 for first, last in events] for events in marks])

    def _once(self, work: Work) -> tuple[list[float], list[_Pair]]:
        """Every part once: seconds of the host, and events around the device's work."""
        host: list[float] = []
        events: list[_Pair] = []
        running = work()
        while True:
            if self._filler is not None:
                self._filler.zero_()
            pair = self._events()
            began = time.perf_counter()
            if pair:
                pair[0].record()
            if next(running, running) is running:
                return host, events
            if pair:
                pair[1].record()
                events.append(pair)
            host.append(time.perf_counter() - began)

    def _events(self) -> _Pair | None:
        if not self.on_gpu:
            return None
        make = torch.cuda.Event
        return make(enable_timing=True), make(enable_timing=True)  # type: ignore[no-untyped-call]


def nothing_around() -> AbstractContextManager[object]:
    return nullcontext()
