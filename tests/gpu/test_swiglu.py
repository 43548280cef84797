"""The baseline's SwiGLU on a GPU: beside plain autograd, and inside a compiled layer."""

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

import torch.nn.functional as F  # noqa: E402 - after the skips
from torch import Tensor  # noqa: E402

from fp8migrate.plan.schema import LlamaModel  # noqa: E402
from fp8migrate.worker.arms import _layer, _run_layer  # noqa: E402
from fp8migrate.worker.models.packed import PackedLlama, swiglu_down  # noqa: E402
from fp8migrate.worker.swiglu_kernel import swiglu_backward  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


def normal(*shape: int, seed: int, std: float = 1.0) -> Tensor:
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16).normal_(
        std=std, generator=torch.Generator("cuda").manual_seed(seed)
    )


@pytest.mark.parametrize("f", [16, 1000, 1024, 2816])
def test_the_kernel_is_autograds_in_double_precision_rounded_once(f: int) -> None:
    gate_up, dh = normal(3, 5, 2 * f, seed=1), normal(3, 5, f, seed=2)
    exact = gate_up.double().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    h = F.silu(gate) * up
    (gradient,) = torch.autograd.grad(h, exact, dh.double())
    for found, expected in zip(swiglu_backward(dh, gate_up), (gradient, h.detach()), strict=True):
        assert found.shape == expected.shape
        # Half an ulp of BF16, and FP32's errors where 1 + g (1 - s) cancels.
        assert ((found.double() - expected).abs() <= 2**-8 * expected.abs() + 1e-6).all()


def test_with_the_product_after_it_it_is_plain_torch() -> None:
    gate_up, down, dy = normal(4, 64, 512, seed=1), normal(128, 256, seed=2, std=0.05), normal(4, 64, 128, seed=3)
    inputs = [each.requires_grad_() for each in (gate_up, down)]
    gate, up = gate_up.chunk(2, dim=-1)
    plain = F.linear(F.silu(gate) * up, down)
    ours = swiglu_down(gate_up, down)
    assert torch.equal(ours, plain)
    for found, expected in zip(torch.autograd.grad(ours, inputs, dy), torch.autograd.grad(plain, inputs, dy), strict=True):
        assert (found - expected).float().norm() < 1e-2 * expected.float().norm()


def test_a_compiled_layer_has_the_gradients_of_the_eager_one() -> None:
    model = PackedLlama(
        LlamaModel(num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, ffn_hidden_size=512),
        *(128, torch.device("cuda"), torch.bfloat16),
    )
    model.fill(seed=3)
    x, found = normal(2, 128, 256, seed=4), []
    for run in (_layer, _run_layer()):
        run(model.layers[0], x, model.cos_te, model.sin_te).float().square().mean().backward()
        found.append({name: each.grad.clone() for name, each in model.layers[0].named_parameters()})
        model.zero_grad(set_to_none=True)
    eager, compiled = found
    for name, gradient in eager.items():
        assert (compiled[name] - gradient).float().norm() < 2e-2 * gradient.float().norm(), name
