"""Attention in one call."""

import torch.nn.functional as F
from torch import nn


class DotProductAttention(nn.Module):
    def __init__(
        self,
        num_attention_heads,
        kv_channels,
        num_gqa_groups=None,
        attention_dropout=0.0,
        qkv_format="sbhd",
        attn_mask_type="causal",
    ):
        super().__init__()
        assert (attention_dropout, qkv_format, attn_mask_type) == (0.0, "bshd", "causal")
        self.repeats = num_attention_heads // num_gqa_groups

    def forward(self, query_layer, key_layer, value_layer):
        assert all(x.is_contiguous() for x in (query_layer, key_layer, value_layer))
        k, v = (x.repeat_interleave(self.repeats, dim=2).transpose(1, 2) for x in (key_layer, value_layer))
        mixed = F.scaled_dot_product_attention(query_layer.transpose(1, 2), k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(2)
