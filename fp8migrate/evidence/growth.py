"""What a long screen shows beyond the screen: how much its pairs' gaps have grown from K steps to 4K (PARITY.md 5)."""

from dataclasses import replace
from math import hypot

from fp8migrate.evidence.schema import Cell, Comparison, Growth


def with_growth(long_screen: Comparison, screen: Comparison) -> Comparison:
    """The long screen with its gaps set against those of the same pairs of the screen, which also lends it its floor."""
    (fraction,) = long_screen.fractions
    cells = [(screen.cell("candidate", e, fraction), long_screen.cell("candidate", e, fraction)) for e in long_screen.primary]
    return replace(
        long_screen,
        growth=tuple(_growth(short, long) for short, long in cells if short and long),
        floor_curves=tuple(curves for curves in screen.curves if (curves.arm, curves.fraction) == ("floor", fraction)),
    )


def _growth(short: Cell, long: Cell) -> Growth:
    """Differences over the pairs that both cells have; a pair that is missing in either shows as an incomplete run."""
    before, after = ({delta.pair: delta.value for delta in cell.deltas} for cell in (short, long))
    pairs = tuple(sorted(before.keys() & after.keys()))
    return Growth(
        endpoint=long.endpoint,
        pairs=pairs,
        values=tuple(after[pair] - before[pair] for pair in pairs),
        sampling_error=_sampling_error(short, long),
    )


def _sampling_error(short: Cell, long: Cell) -> float | None:
    """As if the two gaps came from other documents. They come from the same ones, so this is rather too much than too little:
    a document that is hard for the candidate after K steps tends to be so after 4K.
    """
    if short.sampling_error is None or long.sampling_error is None:
        return None
    return hypot(short.sampling_error, long.sampling_error)
