"""Energy that the GPU counts itself, through NVIDIA's management library. Where it is missing, so is the number."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

_SM_CLOCK = 1


@dataclass(frozen=True)
class EnergyCounter:
    """The total energy counter of one GPU (Volta and newer). missing: why there is none."""

    missing: str | None = None
    _library: Any = None
    _handle: Any = None

    def joules(self) -> float | None:
        """Since the driver was loaded; only differences mean anything. Updated every 0.1 s or so."""
        if self._library is None:
            return None
        millijoules = ctypes.c_ulonglong()
        if self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(millijoules)) != 0:
            return None
        return millijoules.value / 1000

    def clock_mhz(self) -> int | None:
        """Of the multiprocessors, now."""
        if self._library is None:
            return None
        megahertz = ctypes.c_uint()
        found = self._library.nvmlDeviceGetClockInfo(self._handle, _SM_CLOCK, ctypes.byref(megahertz))
        return megahertz.value if found == 0 else None


def energy_counter(device: torch.device) -> EnergyCounter:
    """The counter of torch's device."""
    if device.type != "cuda":
        return EnergyCounter("no GPU")
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return EnergyCounter(f"NVML does not load: {error}")
    if library.nvmlInit_v2() != 0:
        return EnergyCounter("NVML does not start")
    handle = ctypes.c_void_p()
    # By its identity: NVML counts GPUs that CUDA_VISIBLE_DEVICES hides.
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != 0:
        return EnergyCounter("NVML does not find the GPU")
    counter = EnergyCounter(None, library, handle)
    return counter if counter.joules() is not None else EnergyCounter("the GPU does not count its energy")
