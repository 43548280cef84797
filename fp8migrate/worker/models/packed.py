"""The built-in Llama with matrices that read the same tensor held as one: query, key, value; gate, up.

Plain torch, in the dtype of its weights: what BF16 training runs when every layer is compiled. Its weights are `Llama`'s bit
for bit, and `canonical_parameters` gives each of them the name that it has there. Shapes: b sequences, t positions, d hidden,
h heads, g key-value heads, e head size, f inner width of the feed-forward, v vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp8migrate.plan.schema import LlamaModel
from fp8migrate.worker.models.llama import Llama, rotary_tables


class Part(NamedTuple):
    """A parameter of `Llama`, by the name it has there: a whole parameter of this model, or some of its rows."""

    name: str
    parameter: nn.Parameter
    rows: slice | None

    def of(self, tensor: Tensor) -> Tensor:
        """The part's view of a tensor that has its parameter's shape: the parameter, its gradient, its optimizer state."""
        return tensor if self.rows is None else tensor[self.rows]


class PackedLayer(nn.Module):
    """One decoder layer. Residual stream and results in the weights' dtype; norms, rotation and softmax sum in FP32."""

    def __init__(self, settings: LlamaModel, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        d, e, f = settings.hidden_size, settings.head_size, settings.ffn_hidden_size
        self.settings, self.epsilon = settings, settings.norm_epsilon
        self.heads = (settings.num_heads, settings.num_kv_heads, e)
        self.repeat_kv = False
        self.attention_norm = nn.Parameter(torch.ones(d, device=device, dtype=dtype))
        self.qkv = _linear(d, (settings.num_heads + 2 * settings.num_kv_heads) * e, device, dtype)
        self.output = _linear(settings.num_heads * e, d, device, dtype)
        self.mlp_norm = nn.Parameter(torch.ones(d, device=device, dtype=dtype))
        self.gate_up = _linear(d, 2 * f, device, dtype)
        self.down = _linear(f, d, device, dtype)

    def forward(self, x_btd: Tensor, cos_te: Tensor, sin_te: Tensor) -> Tensor:
        b, t, d = x_btd.shape
        qkv = self.qkv(F.rms_norm(x_btd, (d,), self.attention_norm, self.epsilon))
        q, k, v = split_and_rotate(qkv, cos_te, sin_te, self.heads)
        mixed_btd = attend(q, k, v, self.repeat_kv).reshape(b, t, -1)
        x_btd = x_btd + self.output(mixed_btd)
        gate_up_btc = self.gate_up(F.rms_norm(x_btd, (d,), self.mlp_norm, self.epsilon))
        if x_btd.is_cuda and type(self.down) is nn.Linear:
            return x_btd + swiglu_down(gate_up_btc, self.down.weight)
        gate_btf, up_btf = gate_up_btc.chunk(2, dim=-1)
        return x_btd + self.down(F.silu(gate_btf) * up_btf)  # type: ignore[no-any-return]

    def parts(self) -> Iterator[Part]:
        """Its parameters under the names that they have in `Llama`'s layer."""
        h, g, e = self.heads
        f = self.settings.ffn_hidden_size
        yield Part("attention_norm.weight", self.attention_norm, None)
        yield Part("attention.query.weight", weight_of(self.qkv), slice(0, h * e))
        yield Part("attention.key.weight", weight_of(self.qkv), slice(h * e, (h + g) * e))
        yield Part("attention.value.weight", weight_of(self.qkv), slice((h + g) * e, (h + 2 * g) * e))
        yield Part("attention.output.weight", weight_of(self.output), None)
        yield Part("mlp_norm.weight", self.mlp_norm, None)
        yield Part("mlp.gate.weight", weight_of(self.gate_up), slice(0, f))
        yield Part("mlp.up.weight", weight_of(self.gate_up), slice(f, 2 * f))
        yield Part("mlp.down.weight", weight_of(self.down), None)


def swiglu_down(gate_up_btc: Tensor, down_df: Tensor) -> Tensor:
    """(silu(gate) · up) · downᵀ [b, t, d] on a GPU, with a backward pass that takes what the memory needs."""
    found: Tensor = _SwiGluDown.apply(gate_up_btc, down_df)  # type: ignore[no-untyped-call]
    return found


class _SwiGluDown(torch.autograd.Function):
    """Keeps what a compiled layer would: gate and up, of which h is computed anew."""

    @staticmethod
    def forward(ctx: Any, gate_up_btc: Tensor, down_df: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up_btc, down_df)
        gate_btf, up_btf = gate_up_btc.chunk(2, dim=-1)
        return F.linear(F.silu(gate_btf) * up_btf, down_df)

    @staticmethod
    def backward(ctx: Any, dy_btd: Tensor) -> tuple[Tensor, Tensor]:
        from fp8migrate.worker.swiglu_kernel import swiglu_backward

        gate_up_btc, down_df = ctx.saved_tensors
        d_gate_up_btc, h_btf = swiglu_backward(dy_btd @ down_df, gate_up_btc)
        return d_gate_up_btc, dy_btd.flatten(0, -2).t() @ h_btf.flatten(0, -2)


def split_and_rotate(
    qkv_btc: Tensor, cos_te: Tensor, sin_te: Tensor, heads: tuple[int, int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """q [b, t, h, e], k and v [b, t, g, e] of their joint projection; q and k rotated, in FP32, halves as `llama.rotate`."""
    h, g, e = heads
    b, t, _ = qkv_btc.shape
    q, k, v = torch.split(qkv_btc, [h * e, g * e, g * e], dim=-1)
    cos_t1e, sin_t1e = cos_te[:t, None], sin_te[:t, None]
    turned = []
    for x_bthe in (q.view(b, t, h, e), k.view(b, t, g, e)):
        exact = x_bthe.float()
        first, second = exact.chunk(2, dim=-1)
        turned.append((exact * cos_t1e + torch.cat((-second, first), dim=-1) * sin_t1e).to(qkv_btc.dtype))
    return turned[0], turned[1], v.reshape(b, t, g, e).contiguous()


def attend(q_bthe: Tensor, k_btge: Tensor, v_btge: Tensor, repeat_kv: bool = False) -> Tensor:
    """Causal softmax(q kᵀ / √e) v by torch's fused attention, [b, t, h, e]. repeat_kv: a key-value head for every head."""
    if repeat_kv:
        repeats = q_bthe.shape[2] // k_btge.shape[2]
        k_btge, v_btge = k_btge.repeat_interleave(repeats, dim=2), v_btge.repeat_interleave(repeats, dim=2)
    q, k, v = (x.transpose(1, 2) for x in (q_bthe, k_btge, v_btge))
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


class PackedLlama(nn.Module):
    """Tokens [b, t] to next-token logits [b, t, v] in the weights' dtype.

    around_pass: gives the context that every forward pass runs in. Weights are not set: `fill`, or `of` a `Llama`.
    """

    around_pass: Callable[[], AbstractContextManager[object]] = staticmethod(nullcontext)

    def __init__(self, settings: LlamaModel, sequence_length: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.settings, self.sequence_length = settings, sequence_length
        d, v = settings.hidden_size, settings.vocab_size
        self.embedding = nn.utils.skip_init(nn.Embedding, v, d, device=device, dtype=dtype)  # type: ignore[no-untyped-call]
        self.layers = nn.ModuleList(PackedLayer(settings, device, dtype) for _ in range(settings.num_layers))
        self.norm = nn.Parameter(torch.ones(d, device=device, dtype=dtype))
        self.lm_head = _linear(d, v, device, dtype)
        cos_te, sin_te = rotary_tables(sequence_length, settings.head_size, settings.rope_theta)
        self.register_buffer("cos_te", cos_te.to(device), persistent=False)
        self.register_buffer("sin_te", sin_te.to(device), persistent=False)

    @classmethod
    def of(cls, model: Llama) -> "PackedLlama":
        """A model with another's weights, bit for bit, on its device and in its dtype."""
        weight = model.embedding.weight
        packed = cls(model.settings, model.sequence_length, weight.device, weight.dtype)
        copy_parameters(dict(model.named_parameters()), packed)
        return packed

    @torch.no_grad()
    def fill(self, seed: int) -> None:
        """Normal weights drawn on the device itself: `Llama.initialize`'s scales and not its bits, in a second for any size."""
        generator = torch.Generator(self.norm.device).manual_seed(seed)
        for part in self.canonical_parameters():
            if part.parameter.ndim < 2:
                continue
            std = self.settings.init_std
            if part.name.endswith(("attention.output.weight", "mlp.down.weight")):
                std /= (2 * self.settings.num_layers) ** 0.5
            part.of(part.parameter).normal_(std=std, generator=generator)

    def canonical_parameters(self) -> Iterator[Part]:
        """Every parameter of `Llama` by its name there, as a part of this model's parameters."""
        yield Part("embedding.weight", weight_of(self.embedding), None)
        for number, layer in enumerate(self.layers):
            assert isinstance(layer, PackedLayer)
            for part in layer.parts():
                yield part._replace(name=f"layers.{number}.{part.name}")
        yield Part("norm.weight", self.norm, None)
        yield Part("lm_head.weight", weight_of(self.lm_head), None)

    def hidden(self, tokens_bt: Tensor) -> Tensor:
        """The residual stream after the last layer, [b, t, d]."""
        x_btd = self.embedding(tokens_bt)
        for layer in self.layers:
            x_btd = layer(x_btd, self.cos_te, self.sin_te)
        return x_btd  # type: ignore[no-any-return]

    def forward(self, tokens_bt: Tensor) -> Tensor:
        with self.around_pass():
            return project(self.hidden(tokens_bt), self.norm, self.lm_head.weight, self.settings.norm_epsilon)


def project(x_btd: Tensor, norm_d: Tensor, head_vd: Tensor, epsilon: float) -> Tensor:
    """Logits [b, t, v] of the residual stream."""
    return F.linear(F.rms_norm(x_btd, (x_btd.shape[-1],), norm_d, epsilon), head_vd)


def mean_loss(logits_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Mean next-token loss in nats. To be compiled: eagerly the logits would be held in FP32 as a whole."""
    return F.cross_entropy(logits_btv.flatten(0, 1).float(), targets_bt.flatten())


def head_loss(x_btd: Tensor, norm_d: Tensor, head_vd: Tensor, targets_bt: Tensor, epsilon: float) -> Tensor:
    """`mean_loss` of `project`: one region for the compiler."""
    return mean_loss(project(x_btd, norm_d, head_vd, epsilon), targets_bt)


@torch.no_grad()
def copy_parameters(found: dict[str, nn.Parameter], into: PackedLlama) -> None:
    """Copy parameters by `Llama`'s names."""
    for part in into.canonical_parameters():
        part.of(part.parameter.detach()).copy_(found[part.name])


def _linear(in_features: int, out_features: int, device: torch.device, dtype: torch.dtype) -> nn.Linear:
    """A linear layer whose weight is not set."""
    made = nn.utils.skip_init(nn.Linear, in_features, out_features, bias=False, device=device, dtype=dtype)  # type: ignore[no-untyped-call]
    assert isinstance(made, nn.Linear)
    return made


def weight_of(layer: nn.Linear | nn.Embedding) -> nn.Parameter:
    weight = layer.weight
    assert isinstance(weight, nn.Parameter)
    return weight
