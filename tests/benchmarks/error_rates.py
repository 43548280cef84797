"""PARITY.md 9 by simulation: how often the rule and the naive ones pass or fail what they should not, as a Markdown table."""

from collections.abc import Iterator

from tests.error_rates import MARGIN, NAIVE, NOT_DIFFERENT, Design, Noise, Rates, allowance, groups, pairs, rates

_REPLICATES = 8000
# Most that may be found, with three standard errors of _REPLICATES draws.
_AT_MARGIN, _AT_ZERO = allowance(0.05, _REPLICATES), allowance(0.01, _REPLICATES)
_HEAD = ("design", "n", "spread", "PASS at m", "FAIL at m", "PASS at 0", "FAIL at 0", *NAIVE, NOT_DIFFERENT)

DESIGNS = (
    *map(pairs, (2, 3, 4, 5, 6, 7, 8, 12)),
    *map(groups, (2, 3, 4, 5, 6, 7, 8, 13)),
    groups(3, 5),
    groups(5, 3),
    *(groups(n, own_data=True) for n in (2, 4, 8, 13)),
)


def run() -> Iterator[tuple[str, str]]:
    yield _row(_HEAD), ""
    yield _row(("---",) * 3 + ("---:",) * (len(_HEAD) - 3)), ""
    misses = []
    for design in DESIGNS:
        for spread in (1, 3):
            noise = Noise(spread=spread)
            at_margin = rates(design, MARGIN, noise, _REPLICATES, seed=1)
            at_zero = rates(design, 0.0, noise, _REPLICATES, seed=2)
            yield _row(_cells(design, spread, at_margin, at_zero)), ""
            misses += [f"{what}, {design.name} {design.size}, spread × {spread}" for what in _misses(at_margin, at_zero)]
    yield "", ""
    yield f"above the limits (at m {100 * _AT_MARGIN:.1f} %, FAIL at 0 {100 * _AT_ZERO:.1f} %)", "; ".join(misses) or "none"


def _misses(at_margin: Rates, at_zero: Rates) -> Iterator[str]:
    found = (("PASS at m", at_margin.passed, _AT_MARGIN), ("FAIL at m", at_margin.failed, _AT_MARGIN))
    for what, rate, most in (*found, ("FAIL at 0", at_zero.failed, _AT_ZERO)):
        if rate > most:
            yield f"{what} {100 * rate:.1f} %"


def _cells(design: Design, spread: int, at_margin: Rates, at_zero: Rates) -> tuple[str, ...]:
    shares = (at_margin.passed, at_margin.failed, at_zero.passed, at_zero.failed, *at_margin.naive.values())
    return design.name, design.size, f"× {spread}", *(f"{100 * share:.1f}" for share in shares)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
