"""The packed Llama: the same weights bit for bit, the same function, the names of the plain one."""

import torch

from fp8migrate.plan.schema import LlamaModel, Training
from fp8migrate.worker.adamw import FastAdamW
from fp8migrate.worker.models.llama import Llama
from fp8migrate.worker.models.packed import PackedLlama

MODEL = LlamaModel(num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, ffn_hidden_size=48)
TRAINING = Training(
    num_steps=10, sequence_length=16, micro_batch_size=2, global_batch_size=2, learning_rate=1e-2, warmup_steps=1
)


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))


def test_weights_have_the_plain_models_names_shapes_and_bits() -> None:
    plain = Llama(MODEL, 16, seed=3)
    packed = PackedLlama.of(plain)
    found = {part.name: part.of(part.parameter) for part in packed.canonical_parameters()}
    expected = dict(plain.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    held = sum(parameter.numel() for parameter in packed.parameters())
    assert held == sum(parameter.numel() for parameter in plain.parameters())


def test_it_computes_what_the_plain_model_computes() -> None:
    """float32 here, BF16-rounded products there: as near as BF16 lets them be."""
    plain = Llama(MODEL, 16, seed=3)
    with torch.no_grad():
        expected, found = plain(tokens()), PackedLlama.of(plain)(tokens())
    assert (found - expected).norm() <= 2e-2 * expected.norm()


def test_filling_draws_the_scales_of_the_plain_model() -> None:
    packed = PackedLlama(MODEL, 16, torch.device("cpu"), torch.float32)
    packed.fill(seed=5)
    spread = {part.name: part.of(part.parameter).std().item() for part in packed.canonical_parameters()}
    assert abs(spread["layers.1.mlp.gate.weight"] / 0.02 - 1) < 0.1
    # Into the residual stream: 1 / √(2 · layers) of it.
    assert abs(spread["layers.1.mlp.down.weight"] / (0.02 / 2) - 1) < 0.1
    assert torch.equal(packed.norm, torch.ones(32))


def test_a_clipped_step_is_clipping_and_a_step() -> None:
    models = [PackedLlama.of(Llama(MODEL, 16, seed=3)) for _ in range(2)]
    optimizers = [FastAdamW(model, TRAINING, "torch") for model in models]
    for number, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
        model(tokens()).float().square().mean().backward()
        if number == 0:
            assert optimizer.clipped_step(1e-3) > 1e-3  # it does clip
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert (a - b).abs().max() <= 1e-4 * TRAINING.learning_rate
