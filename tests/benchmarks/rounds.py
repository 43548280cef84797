"""Interleaved rounds, one time of each arm in each: medians, and how far the machine let them scatter."""

from statistics import median, quantiles


def beside(seconds: list[float], base: list[float], unit: str = "ms") -> str:
    """The median time, and the median over rounds of its ratio to the base's time in the same round, with the quartiles."""
    ratios = [value / other for value, other in zip(seconds, base, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{1e3 * median(seconds):.1f} {unit}, {median(ratios):.2f} x bf16 ({low:.2f} to {high:.2f})"
