"""fp8migrate: evidence for moving a training run from BF16 to FP8."""

__version__ = "0.1.0"
