"""The model against its equations in float64, written out a second time without torch's layers."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fp8migrate.plan.schema import LlamaModel
from fp8migrate.sizing.flops import count_parameters
from fp8migrate.worker.models.llama import Llama, attend, rotary_tables, rotate, token_losses
from fp8migrate.worker.runtime import make_deterministic
from tests.worker.runs import MODEL

Array = NDArray[np.float64]
T = 12


def new_model(settings: LlamaModel = MODEL, seed: int = 0) -> Llama:
    """With large weights: at the usual 0.02 attention is all but uniform, and an error in it does not show."""
    make_deterministic(1)
    return Llama(settings.model_copy(update={"init_std": 0.3}), T, seed)


def some_tokens(batch: int = 3, length: int = T) -> torch.Tensor:
    return torch.randint(0, 256, (batch, length), generator=torch.Generator().manual_seed(1))


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * weight


def turned(x_te: Array, theta: float) -> Array:
    """Each pair (i, i + e/2) turned by position · theta^(−2i/e), as complex numbers."""
    t, e = x_te.shape
    z = x_te[:, : e // 2] + 1j * x_te[:, e // 2 :]
    z = z * np.exp(1j * np.outer(np.arange(t), theta ** (-np.arange(0, e, 2) / e)))
    return np.concatenate([z.real, z.imag], axis=1)


def attention(q_te: Array, k_te: Array, v_te: Array) -> Array:
    """Causal softmax, one position at a time."""
    rows = []
    for t in range(len(q_te)):
        scores = k_te[: t + 1] @ q_te[t] / np.sqrt(q_te.shape[1])
        weights = np.exp(scores - scores.max())
        rows.append(weights @ v_te[: t + 1] / weights.sum())
    return np.stack(rows)


def logits(model: Llama, tokens: list[int]) -> Array:
    """Of one sequence, [t, vocab]."""
    s = model.settings
    w = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    x = w["embedding.weight"][tokens]
    e, shared = s.head_size, s.num_heads // s.num_kv_heads
    for layer in range(s.num_layers):
        at = f"layers.{layer}."
        a = rms_norm(x, w[at + "attention_norm.weight"], s.norm_epsilon)
        q, k, v = (a @ w[f"{at}attention.{part}.weight"].T for part in ("query", "key", "value"))
        heads = []
        for h in range(s.num_heads):
            one, other = slice(h * e, (h + 1) * e), slice(h // shared * e, (h // shared + 1) * e)
            heads.append(attention(turned(q[:, one], s.rope_theta), turned(k[:, other], s.rope_theta), v[:, other]))
        x = x + np.concatenate(heads, axis=1) @ w[at + "attention.output.weight"].T
        m = rms_norm(x, w[at + "mlp_norm.weight"], s.norm_epsilon)
        gate, up = (m @ w[f"{at}mlp.{part}.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[at + "mlp.down.weight"].T
    return rms_norm(x, w["norm.weight"], s.norm_epsilon) @ w["lm_head.weight"].T


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_are_those_of_the_equations(kv_heads: int) -> None:
    """Up to the BF16 rounding of every GEMM's operands and result: 2 layers, 8 bits."""
    settings = MODEL.model_copy(update={"num_heads": 4, "num_kv_heads": kv_heads})
    model, tokens = new_model(settings), some_tokens()
    found = model(tokens).detach().double().numpy()
    expected = np.stack([logits(model, row) for row in tokens.tolist()])
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert 0 < error < 0.02


def test_token_losses_are_cross_entropies_in_nats() -> None:
    model, tokens = new_model(), some_tokens(length=T + 1)
    z = model(tokens[:, :-1]).detach().double()
    expected = torch.logsumexp(z, -1) - z.gather(-1, tokens[:, 1:, None])[..., 0]
    found = token_losses(model, tokens)
    assert found.shape == (3, T)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attention_of_both_gemm_modes(dtype: torch.dtype, kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 4, T, 8, generator=generator)
    k, v = (torch.randn(2, kv_heads, T, 8, generator=generator) for _ in range(2))
    found = attend(q.to(dtype), k.to(dtype), v.to(dtype))
    assert found.dtype == dtype
    shared = 4 // kv_heads
    numpy = [x.to(dtype).double().numpy() for x in (q, k, v)]
    for b in range(2):
        for h in range(4):
            expected = attention(numpy[0][b, h], numpy[1][b, h // shared], numpy[2][b, h // shared])
            tolerance = 1e-5 if dtype == torch.float32 else 0.03
            np.testing.assert_allclose(found[b, h].double().numpy(), expected, atol=tolerance)


def test_no_position_sees_a_later_one() -> None:
    model, tokens = new_model(), some_tokens()
    changed = tokens.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 256
    before, after = model(tokens).detach(), model(changed).detach()
    assert torch.equal(before[:, :7], after[:, :7])
    assert not torch.equal(before[:, 7:], after[:, 7:])


def test_rotary_positions_keep_lengths_and_depend_on_distance() -> None:
    cos, sin = rotary_tables(T, 8, 10000.0)
    x, y = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, T, 8)
    rx, ry = rotate(x, cos, sin)[0, 0], rotate(y, cos, sin)[0, 0]
    torch.testing.assert_close(rx.norm(dim=-1), x[0, 0].norm(dim=-1))
    products = rx @ ry.T
    for distance in range(-5, 6):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-4)
    assert torch.equal(rx[0], x[0, 0, 0])


def test_initial_weights_follow_the_seed_alone() -> None:
    first, again, other = (Llama(MODEL, T, seed) for seed in (3, 3, 4))
    for (name, a), b, c in zip(first.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert name.endswith("norm.weight") or not torch.equal(a, c)


def test_initial_weights_are_as_large_as_said() -> None:
    """Projections into the residual stream are smaller by √(2 · layers) = 2."""
    weights = {name: p.detach() for name, p in Llama(MODEL, T, 0).named_parameters()}
    assert float(weights["embedding.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(weights["layers.1.mlp.gate.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(weights["layers.1.mlp.down.weight"].std()) == pytest.approx(0.01, rel=0.05)
    assert float(weights["layers.0.attention.output.weight"].std()) == pytest.approx(0.01, rel=0.05)
    assert torch.equal(weights["norm.weight"], torch.ones(32))


def test_the_sizing_counts_the_parameters_that_there_are() -> None:
    assert sum(p.numel() for p in Llama(MODEL, T, 0).parameters()) == count_parameters(MODEL).total
