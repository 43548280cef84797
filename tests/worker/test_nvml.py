"""Energy from NVIDIA's management library: absent, refusing, or a fake one that counts."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fp8migrate.worker.nvml import energy_counter

GPU = torch.device("cuda")


class Library:
    """What of NVML is used, with a counter in millijoules. refuses: functions that return an error."""

    def __init__(self, *refuses: str) -> None:
        self.refuses, self.millijoules, self.asked = refuses, 1500, b""

    def _code(self, name: str) -> int:
        return 3 if name in self.refuses else 0  # 3: not supported

    def nvmlInit_v2(self) -> int:
        return self._code("init")

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        self.asked = name
        handle._obj.value = 7
        return self._code("handle")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, value: Any) -> int:
        assert handle.value == 7
        value._obj.value = self.millijoules
        return self._code("energy")

    def nvmlDeviceGetClockInfo(self, handle: ctypes.c_void_p, kind: int, value: Any) -> int:
        assert (handle.value, kind) == (7, 1)  # of the multiprocessors
        value._obj.value = 1980
        return self._code("clock")


def install(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-12"))


def test_energy_and_clock_of_the_gpu_that_torch_means(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    install(monkeypatch, library)
    counter = energy_counter(GPU)
    assert counter.missing is None
    assert library.asked == b"GPU-ab-12"
    assert counter.joules() == 1.5
    library.millijoules = 2**40  # more than 32 bits
    assert counter.joules() == 2**40 / 1000
    assert counter.clock_mhz() == 1980


def test_a_counter_that_stops_answering_gives_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    install(monkeypatch, library)
    counter = energy_counter(GPU)
    library.refuses = ("energy", "clock")
    assert (counter.joules(), counter.clock_mhz()) == (None, None)


@pytest.mark.parametrize(
    ("refuses", "said"),
    [
        ("init", "NVML does not start"),
        ("handle", "NVML does not find the GPU"),
        ("energy", "the GPU does not count its energy"),
    ],
)
def test_what_is_refused_is_said(monkeypatch: pytest.MonkeyPatch, refuses: str, said: str) -> None:
    install(monkeypatch, Library(refuses))
    counter = energy_counter(GPU)
    assert (counter.missing, counter.joules(), counter.clock_mhz()) == (said, None, None)


def test_without_the_library_or_a_gpu_there_is_no_number_and_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    counter = energy_counter(GPU)
    assert counter.missing == "NVML does not load: libnvidia-ml.so.1: cannot open shared object file"
    assert (counter.joules(), counter.clock_mhz()) == (None, None)
    assert energy_counter(torch.device("cpu")).missing == "no GPU"
