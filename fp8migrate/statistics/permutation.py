"""A sign-flip permutation test beside the t bounds: it assumes symmetry, not normality."""

from itertools import product

import numpy as np
from numpy.typing import ArrayLike

LEAST_PAIRS = 6
_EXACT_UP_TO = 14
_DRAWS = 20_000
_SEED = 20_251_202


def sign_flip_p_value(values: ArrayLike, limit: float) -> float:
    """p-value of H0: the centre of `values` (n,) is at or above `limit`, against below. Small: below the limit.

    All 2ⁿ sign patterns of (values − limit) up to n = 14; above that 20,000 drawn ones with a fixed seed, the observed one
    among them.
    """
    shifted = np.asarray(values, dtype=np.float64) - limit
    if shifted.size <= _EXACT_UP_TO:
        signs = np.array(list(product((1.0, -1.0), repeat=shifted.size)))
    else:
        drawn = np.random.default_rng(_SEED).choice((1.0, -1.0), size=(_DRAWS - 1, shifted.size))
        signs = np.vstack([np.ones(shifted.size), drawn])
    sums = signs @ shifted
    # Ties with the observed sum count; rounding must not break them.
    return float(np.mean(sums <= sums[0] + 1e-12 * np.abs(shifted).sum()))
