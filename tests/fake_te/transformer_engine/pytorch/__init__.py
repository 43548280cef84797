"""The modules that fp8migrate uses."""

from transformer_engine.pytorch import quantization
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.distributed import checkpoint
from transformer_engine.pytorch.modules import LayerNormLinear, LayerNormMLP, Linear
from transformer_engine.pytorch.quantization import autocast

__all__ = ["DotProductAttention", "LayerNormLinear", "LayerNormMLP", "Linear", "autocast", "checkpoint", "quantization"]
