"""Standard error of a paired relative validation gap that the choice of held-out documents leaves open."""

from math import sqrt

import numpy as np
from numpy.typing import ArrayLike


def clustered_error(baseline: ArrayLike, candidate: ArrayLike) -> float | None:
    """s_val: document-clustered standard error of the mean relative gap, or None with fewer than two documents.

    baseline, candidate: summed negative log-likelihood per pair and document, (pairs, documents), in nats; the same
    documents in every row. The gap is a ratio of sums, so its linearised residuals are summed per document (Cochran,
    Sampling Techniques, ratio estimator): e_k = mean_i (C_ik − (1 + δ_i)·B_ik) / ΣB_i, s_val² = K/(K − 1) · Σ e_k².
    Averaging over pairs inside e_k keeps what a document does to all pairs alike, which more pairs do not remove.
    """
    b, c = np.atleast_2d(np.asarray(baseline, dtype=np.float64)), np.atleast_2d(np.asarray(candidate, dtype=np.float64))
    if b.shape != c.shape:
        raise ValueError(f"baseline {b.shape} and candidate {c.shape} differ in shape")
    documents = b.shape[1]
    if documents < 2 or not (np.isfinite(b).all() and np.isfinite(c).all()):
        return None
    total_b = b.sum(axis=1, keepdims=True)
    ratio = c.sum(axis=1, keepdims=True) / total_b
    residual_k = ((c - ratio * b) / total_b).mean(axis=0)
    return sqrt(documents / (documents - 1) * float(residual_k @ residual_k))
