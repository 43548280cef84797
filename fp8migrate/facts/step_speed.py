"""How much faster a whole training step was under a recipe than in BF16: orders recipes, and predicts no run's speed.

One H200, torch 2.11, Transformer Engine 2.20.2 and torchao 0.18; Llama-3-8B's shape, 2 x 4096 tokens, no recompute, attention,
head, loss and optimizer in high precision, the same stack in BF16 beside it.
"""

from collections.abc import Mapping

SOURCE = "measured on one H200 at Llama-3-8B's shape"

# By kind of recipe. Not measured: rowwise_with_gw_hp.
STEP_SPEED: Mapping[str, float] = {"delayed": 1.395, "current": 1.36, "block": 1.23, "rowwise": 1.08}

# MXFP8 and NVFP4 GEMMs exist from compute capability 10.0 on; none of their steps was measured.
NEEDS_BLACKWELL = ("mxfp8", "nvfp4")
