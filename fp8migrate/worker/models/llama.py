"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The residual stream, the norms and the softmax are FP32; GEMM operands and results are BF16, or FP8 where a backend converted
the layer. Shapes: b sequences, t positions, d hidden, h heads, g key-value heads, e head size.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp8migrate.plan.schema import LlamaModel
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.recompute import Checkpoint, checkpoint


class RMSNorm(nn.Module):
    """x / rms(x) · weight, in FP32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x_btd: Tensor) -> Tensor:
        return F.rms_norm(x_btd, (x_btd.shape[-1],), self.weight, self.epsilon)


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, settings: LlamaModel) -> None:
        super().__init__()
        d, e = settings.hidden_size, settings.head_size
        self.num_heads, self.num_kv_heads, self.head_size = settings.num_heads, settings.num_kv_heads, e
        self.query = Linear(d, settings.num_heads * e)
        self.key = Linear(d, settings.num_kv_heads * e)
        self.value = Linear(d, settings.num_kv_heads * e)
        self.output = Linear(settings.num_heads * e, d)

    def forward(self, x_btd: Tensor, cos_te: Tensor, sin_te: Tensor) -> Tensor:
        b, t, _ = x_btd.shape
        q_bhte = self.query(x_btd).view(b, t, self.num_heads, self.head_size).transpose(1, 2)
        k_bgte = self.key(x_btd).view(b, t, self.num_kv_heads, self.head_size).transpose(1, 2)
        v_bgte = self.value(x_btd).view(b, t, self.num_kv_heads, self.head_size).transpose(1, 2)
        q_bhte, k_bgte = rotate(q_bhte, cos_te, sin_te), rotate(k_bgte, cos_te, sin_te)
        dtype = self.query.gemm.dtype
        mixed_bhte = attend(q_bhte.to(dtype), k_bgte.to(dtype), v_bgte.to(dtype)).to(x_btd.dtype)
        output: Tensor = self.output(mixed_bhte.transpose(1, 2).reshape(b, t, -1))
        return output


def attend(q_bhte: Tensor, k_bgte: Tensor, v_bgte: Tensor) -> Tensor:
    """Causal softmax(q kᵀ / √e) v; each key-value head serves h / g query heads."""
    if q_bhte.is_cuda:
        return F.scaled_dot_product_attention(q_bhte, k_bgte, v_bgte, is_causal=True, enable_gqa=True)
    repeats = q_bhte.shape[1] // k_bgte.shape[1]
    if repeats > 1:
        k_bgte, v_bgte = k_bgte.repeat_interleave(repeats, dim=1), v_bgte.repeat_interleave(repeats, dim=1)
    if q_bhte.dtype == torch.float32:
        return F.scaled_dot_product_attention(q_bhte, k_bgte, v_bgte, is_causal=True)
    # torch's fused attention has a slow BF16 backward on CPU; plain products halve the step.
    t, e = q_bhte.shape[-2:]
    mask_tt = torch.full((t, t), float("-inf"), device=q_bhte.device).triu(1)
    scores = (q_bhte @ k_bgte.transpose(-1, -2)).to(torch.float32) * e**-0.5 + mask_tt
    return torch.softmax(scores, dim=-1).to(q_bhte.dtype) @ v_bgte


def rotate(x_bhte: Tensor, cos_te: Tensor, sin_te: Tensor) -> Tensor:
    """Rotary position embedding (arXiv 2104.09864), halves rotated as Llama's released code does."""
    first, second = x_bhte.chunk(2, dim=-1)
    return x_bhte * cos_te + torch.cat((-second, first), dim=-1) * sin_te


def rotary_tables(positions: int, head_size: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin, [positions, head_size]."""
    frequencies = theta ** (-torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x))."""

    def __init__(self, settings: LlamaModel) -> None:
        super().__init__()
        self.gate = Linear(settings.hidden_size, settings.ffn_hidden_size)
        self.up = Linear(settings.hidden_size, settings.ffn_hidden_size)
        self.down = Linear(settings.ffn_hidden_size, settings.hidden_size)

    def forward(self, x_btd: Tensor) -> Tensor:
        output: Tensor = self.down(F.silu(self.gate(x_btd)) * self.up(x_btd))
        return output


class DecoderLayer(nn.Module):
    def __init__(self, settings: LlamaModel) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(settings.hidden_size, settings.norm_epsilon)
        self.attention = Attention(settings)
        self.mlp_norm = RMSNorm(settings.hidden_size, settings.norm_epsilon)
        self.mlp = SwiGLU(settings)

    def forward(self, x_btd: Tensor, cos_te: Tensor, sin_te: Tensor) -> Tensor:
        x_btd = x_btd + self.attention(self.attention_norm(x_btd), cos_te, sin_te)
        return x_btd + self.mlp(self.mlp_norm(x_btd))  # type: ignore[no-any-return]


class Llama(nn.Module):
    """Byte tokens [b, t] to next-token logits [b, t, vocab], FP32.

    around_pass: gives the context that every forward pass runs in; a backend may need one. checkpoint: runs a decoder layer
    whose activations are recomputed; a backend may need its own.
    """

    cos_te: Tensor
    sin_te: Tensor
    around_pass: Callable[[], AbstractContextManager[object]] = staticmethod(nullcontext)
    checkpoint: Checkpoint = staticmethod(checkpoint)

    def __init__(self, settings: LlamaModel, sequence_length: int, seed: int, *, recompute: bool = False) -> None:
        super().__init__()
        self.settings, self.sequence_length, self.recompute = settings, sequence_length, recompute
        self.embedding = nn.Embedding(settings.vocab_size, settings.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(settings) for _ in range(settings.num_layers))
        self.norm = RMSNorm(settings.hidden_size, settings.norm_epsilon)
        self.lm_head = Linear(settings.hidden_size, settings.vocab_size)
        cos_te, sin_te = rotary_tables(sequence_length, settings.head_size, settings.rope_theta)
        self.register_buffer("cos_te", cos_te, persistent=False)
        self.register_buffer("sin_te", sin_te, persistent=False)
        self.initialize(seed)

    def initialize(self, seed: int) -> None:
        """Normal weights by seed; projections into the residual stream scaled by 1/√(2 · layers), as GPT-2 and Llama do.

        Drawn on the CPU in the order of the parameters' names, so that every arm and device starts from the same bits.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in sorted(self.named_parameters()):
            if parameter.ndim < 2:
                continue
            std = self.settings.init_std
            if name.endswith(("attention.output.weight", "mlp.down.weight")):
                std /= (2 * self.settings.num_layers) ** 0.5
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * std)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        with self.around_pass():
            x_btd = self.embedding(tokens_bt)
            again = self.recompute and torch.is_grad_enabled()
            for layer in self.layers:
                if again:
                    x_btd = self.checkpoint(layer, x_btd, self.cos_te, self.sin_te)
                else:
                    x_btd = layer(x_btd, self.cos_te, self.sin_te)
            logits: Tensor = self.lm_head(self.norm(x_btd))
        return logits


def token_losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """Next-token losses in nats, [b, t], of tokens [b, t + 1]."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none").view(tokens.shape[0], -1)
