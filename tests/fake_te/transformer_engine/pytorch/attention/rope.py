"""Rotary positions."""

import torch


def apply_rotary_pos_emb(t, freqs, tensor_format="sbhd", interleaved=False, fused=False):
    assert (tensor_format, interleaved, fused) == ("bshd", False, True)
    assert freqs.shape[1:3] == (1, 1)
    assert freqs.dtype == torch.float32
    angles = freqs[:, 0]
    first, second = t.float().chunk(2, dim=-1)
    return (t.float() * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()).to(t.dtype)
