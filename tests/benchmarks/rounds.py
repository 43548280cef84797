"""Interleaved rounds, one time of each arm in each: medians, and how far the machine let them scatter."""

from statistics import median, quantiles


def spread(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    low, middle, high = quantiles(values, n=4) if len(values) > 1 else values * 3
    return low, middle, high


def beside(seconds: list[float], base: list[float], unit: str = "ms") -> str:
    """The median time, and the median over rounds of its ratio to the base's time in the same round, with the quartiles."""
    low, middle, high = spread([value / other for value, other in zip(seconds, base, strict=True)])
    return f"{1e3 * median(seconds):.1f} {unit}, {middle:.2f} x bf16 ({low:.2f} to {high:.2f})"
