"""Whether a logged run learned, and where it jumped."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fp8migrate.evidence.learning import flat, gross_jumps, not_learned
from tests.logs import curve

Array = NDArray[np.float64]


def noisy(level: Array, noise: float = 0.03, seed: int = 0) -> Array:
    return np.asarray(level + noise * np.random.default_rng(seed).standard_normal(level.size))


RISE = np.linspace(0, 1, 1000)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "level",
    [curve(3), 2.1 - 0.1 * RISE, 1.9 - 0.04 * RISE, 10.9 * np.exp(-RISE)],
    ids=["pre-training", "fine-tuning", "a long continuation", "a slow fall"],
)
def test_what_falls_has_learned(level: Array, seed: int) -> None:
    assert (not_learned(noisy(level, seed=seed)), flat(noisy(level, seed=seed))) == ("", "")


@pytest.mark.parametrize(
    ("level", "says"),
    [
        (np.full(1000, 3.0), "does not fall"),
        (3.0 + 0.2 * RISE, "does not fall"),
        (10.8 - 0.2 * RISE, "nats, where it began at 10.8"),
        (np.where(RISE < 0.6, curve(1), 7.5), "it diverged by itself"),
    ],
    ids=["flat", "rising", "a uniform guess", "diverged"],
)
def test_what_does_not_has_not(level: Array, says: str) -> None:
    losses = noisy(level, noise=0.01)
    assert says in not_learned(losses) or says in flat(losses)


def test_few_points_tell_only_their_ends() -> None:
    assert not_learned(np.array([4.0, 3.5, 3.2])) == ""
    assert "no lower than it begins" in not_learned(np.array([4.0, 3.5, 4.2]))
    assert not_learned(np.array([4.0])) == ""
    assert not_learned(np.array([np.nan, np.nan])) == ""


def test_a_noisy_short_curve_that_falls_by_a_quarter_has_learned() -> None:
    """A public golden file of 100 steps: 10.9 down to 8.2 by way of 6.2."""
    level = np.linspace(10.9, 8.2, 40)
    level[2] = 6.2
    assert (not_learned(noisy(level, noise=0.8)), flat(noisy(level, noise=0.8))) == ("", "")


def test_a_jump_to_more_than_twice_the_largest_of_the_eight_before() -> None:
    losses = np.full(100, 3.0)
    losses[50] = 6.01
    losses[55] = 7.0  # within eight of the first, and below twice it
    losses[80] = 5.99
    assert gross_jumps(losses) == [50]
    losses[3] = 100.0  # nothing before it to be measured by
    assert gross_jumps(losses) == [50]
    assert gross_jumps(np.full(8, 3.0)) == []


def test_a_nan_is_no_jump_and_spoils_only_the_eight_after_it() -> None:
    losses = np.full(100, 3.0)
    losses[40], losses[60] = np.nan, 10.0
    assert gross_jumps(losses) == [60]
