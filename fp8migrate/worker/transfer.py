"""Between host and device without either waiting for the other."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fp8migrate.worker.clock import Instant


def to_device(tokens: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Token numbers as int64 on a device. From pinned memory: from any other, CUDA waits for all that was handed to it."""
    found = torch.from_numpy(tokens.astype(np.int64))
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found.to(device)


class Readback:
    """Scalars of one dtype and device on their way to the host; what is handed to the device later is not waited for."""

    def __init__(self, *scalars: Tensor) -> None:
        values = torch.stack([scalar.detach() for scalar in scalars])
        if values.device.type == "cuda":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
        else:
            self._values = values
        self.arrival = Instant(values.device)

    def read(self) -> list[float]:
        """Waits until they are there."""
        self.arrival.wait()
        return [float(value) for value in self._values]
