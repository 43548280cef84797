"""Parameters and GEMM FLOPs of a model, site by site.

A linear layer y = x · wᵀ with out × in weights costs 2 · out · in FLOPs per token forward, and the same again for the data
gradient and for the weight gradient. Attention's products (QKᵀ and PV) cost 4 · sequence · hidden per token forward and twice
that backward, over the full square as in the usual count (PaLM, arXiv 2204.02311, appendix B): a causal mask is not
deducted, so the share of FLOPs in FP8 is never overstated. Norms, rotary positions and the embedding look-up are no GEMMs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8migrate.facts.operands import Gemm
from fp8migrate.plan.schema import LlamaModel, Training


@dataclass(frozen=True)
class ParameterCount:
    """Trainable parameters by part. Embedding and lm_head are two matrices (untied); linear layers have no bias."""

    embedding: int
    attention: int
    mlp: int
    norms: int
    lm_head: int

    @property
    def total(self) -> int:
        return self.embedding + self.attention + self.mlp + self.norms + self.lm_head

    @property
    def non_embedding(self) -> int:
        """Without the embedding and lm_head: what grows with depth and width alone."""
        return self.attention + self.mlp + self.norms


@dataclass(frozen=True)
class GemmSite:
    """One place in the model where GEMMs run. FLOPs are per token of the batch.

    `out_features` and `in_features` are 0 for attention's products. Without weights, their backward is data gradient alone.
    """

    name: str
    out_features: int
    in_features: int
    forward_flops: int
    dgrad_flops: int
    wgrad_flops: int

    @property
    def is_linear(self) -> bool:
        return self.out_features > 0

    @property
    def flops(self) -> int:
        """Forward and both backward GEMMs, per token."""
        return self.forward_flops + self.dgrad_flops + self.wgrad_flops

    def flops_of(self, gemm: Gemm) -> int:
        """One GEMM's, per token."""
        return {"forward": self.forward_flops, "data_gradient": self.dgrad_flops, "weight_gradient": self.wgrad_flops}[gemm]


def count_parameters(model: LlamaModel) -> ParameterCount:
    """Parameters of the built-in Llama-style model."""
    linear = {name: out * in_ for name, out, in_ in _layer_linears(model)}
    attention = sum(size for name, size in linear.items() if name.startswith("attention."))
    mlp = sum(size for name, size in linear.items() if name.startswith("mlp."))
    return ParameterCount(
        embedding=model.vocab_size * model.hidden_size,
        attention=model.num_layers * attention,
        mlp=model.num_layers * mlp,
        norms=(2 * model.num_layers + 1) * model.hidden_size,
        lm_head=model.vocab_size * model.hidden_size,
    )


def gemm_sites(model: LlamaModel, sequence_length: int) -> tuple[GemmSite, ...]:
    """Every GEMM site in the order of the forward pass, lm_head last."""
    sites = []
    for layer in range(model.num_layers):
        sites += [_linear(f"layers.{layer}.{name}", out, in_) for name, out, in_ in _layer_linears(model)]
        sites.append(_products(f"layers.{layer}.attention.products", sequence_length, model.hidden_size))
    sites.append(_linear("lm_head", model.vocab_size, model.hidden_size))
    return tuple(sites)


def flops_per_token(model: LlamaModel, sequence_length: int) -> int:
    """GEMM FLOPs of one training step per token: forward and backward."""
    return sum(site.flops for site in gemm_sites(model, sequence_length))


def step_flops_per_token(model: LlamaModel, training: Training) -> int:
    """GEMM FLOPs that a training step runs per token: with recompute those of the decoder layers' forward once more."""
    sites = gemm_sites(model, training.sequence_length)
    again = sum(site.forward_flops for site in sites if site.name.startswith("layers.")) if training.recompute else 0
    return sum(site.flops for site in sites) + again


def forward_flops_per_token(model: LlamaModel, sequence_length: int) -> int:
    """GEMM FLOPs of an evaluation per token."""
    return sum(site.forward_flops for site in gemm_sites(model, sequence_length))


def flops_shares(sites: Sequence[GemmSite]) -> dict[str, float]:
    """Each site's share of the model's GEMM FLOPs, forward and backward; the shares sum to 1."""
    total = sum(site.flops for site in sites)
    return {site.name: site.flops / total for site in sites}


def _layer_linears(model: LlamaModel) -> tuple[tuple[str, int, int], ...]:
    """(name within the layer, out_features, in_features) of one decoder layer."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    kv = model.num_kv_heads * model.head_size
    return (
        ("attention.query", hidden, hidden),
        ("attention.key", kv, hidden),
        ("attention.value", kv, hidden),
        ("attention.output", hidden, hidden),
        ("mlp.gate", ffn, hidden),
        ("mlp.up", ffn, hidden),
        ("mlp.down", hidden, ffn),
    )


def _linear(name: str, out_features: int, in_features: int) -> GemmSite:
    flops = 2 * out_features * in_features
    return GemmSite(name, out_features, in_features, flops, flops, flops)


def _products(name: str, sequence_length: int, hidden_size: int) -> GemmSite:
    forward = 4 * sequence_length * hidden_size
    return GemmSite(name, 0, 0, forward, 2 * forward, 0)
