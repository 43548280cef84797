"""Layers padded with zeros on the backends that run FP8 themselves, on a Hopper GPU: beside our emulation of the same layer."""

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

from torch import Tensor  # noqa: E402 - after the skips

from fp8migrate.facts.recipes import (  # noqa: E402
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Recipe,
    RowwiseRecipe,
    TensorwiseRecipe,
)
from fp8migrate.jobs import Precision  # noqa: E402
from fp8migrate.plan.schema import LlamaModel  # noqa: E402
from fp8migrate.worker.backends import convert  # noqa: E402
from fp8migrate.worker.backends.converted import (  # noqa: E402
    forward_mode,
    layers_without_fp8,
    leaving_no_trace,
    tensors_quantized,
)
from fp8migrate.worker.backends.padded import PaddedLinear  # noqa: E402
from fp8migrate.worker.models.llama import Llama, token_losses  # noqa: E402
from fp8migrate.worker.quantizers import end_pass  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

# 250 and 3 × 127 = 381 tokens: neither features nor tokens are what FP8 GEMMs take.
MODEL = LlamaModel(num_layers=1, hidden_size=256, num_heads=4, num_kv_heads=2, ffn_hidden_size=250)
SEQUENCE, BATCH = 127, 3
CASES: dict[str, tuple[str, Recipe]] = {
    "delayed": ("transformer_engine", DelayedRecipe(amax_history_len=4)),
    "current": ("transformer_engine", CurrentRecipe()),
    "block": ("transformer_engine", BlockRecipe()),
    "tensorwise": ("torchao", TensorwiseRecipe()),
    "rowwise": ("torchao", RowwiseRecipe()),
}
every_case = pytest.mark.parametrize(("backend", "recipe"), CASES.values(), ids=CASES.keys())


def model(backend: str, recipe: Recipe) -> Llama:
    if backend != "emulated":
        pytest.importorskip(backend, reason=f"{backend} is not installed")
    found = Llama(MODEL, SEQUENCE, seed=1).cuda()
    precision = Precision(backend=backend, recipe=recipe, odd_shapes="pad")  # type: ignore[arg-type]
    conversion = convert(found, precision, BATCH * SEQUENCE)
    assert all("padded: " in layer.reason for layer in conversion.layers if layer.converted)
    assert sum(layer.converted for layer in conversion.layers) == 8
    return found


def pass_through(found: Llama, number: int = 0) -> dict[str, Tensor]:
    """Loss and gradients of one pass."""
    tokens = torch.randint(0, 256, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(number)).cuda()
    loss = token_losses(found, tokens).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    end_pass(found)
    gradients = {name: p.grad.clone() for name, p in found.named_parameters() if p.grad is not None}
    found.zero_grad(set_to_none=True)
    return {"loss": loss.detach(), **gradients}


@every_case
def test_padded_layers_are_those_of_our_emulation(backend: str, recipe: Recipe) -> None:
    """Gradients nearer to the emulation's than those are to BF16's: the same roundings, up to accumulation and ties."""
    ours, theirs = model("emulated", recipe), model(backend, recipe)
    plain = Llama(MODEL, SEQUENCE, seed=1).cuda()
    for number in range(5):  # delayed scales start cold
        passes = [pass_through(each, number) for each in (ours, theirs, plain)]
    expected, found, exact = passes
    assert found.keys() == expected.keys() == exact.keys()
    for name, value in found.items():
        assert value.shape == exact[name].shape
        assert bool(torch.isfinite(value).all()), name
    emulated, real, bf16 = (torch.cat([each[name].flatten() for name in sorted(each)]) for each in passes)
    apart, effect = (real - emulated).norm() / bf16.norm(), (emulated - bf16).norm() / bf16.norm()
    print(f"\n{recipe.kind}: from the emulation {apart:.3g}, emulation from BF16 {effect:.3g}")
    assert 0 < apart < effect < 0.5
    assert tensors_quantized(theirs) >= 5 * 8 * 2
    assert layers_without_fp8(theirs) == ()


@every_case
def test_names_state_and_switches_are_those_of_other_layers(backend: str, recipe: Recipe) -> None:
    found, plain = model(backend, recipe), Llama(MODEL, SEQUENCE, seed=1)
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert isinstance(found.get_submodule("layers.0.mlp.down"), PaddedLinear)
    pass_through(found)
    before = {name: buffer.clone() for name, buffer in found.named_buffers()}
    if recipe.kind == "delayed":
        assert any("layers.0.mlp.down" in name for name in before)
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long, device="cuda")
    with torch.no_grad(), leaving_no_trace(found):
        found(tokens)
    assert all(torch.equal(before[name], buffer) for name, buffer in found.named_buffers())
    with forward_mode(found, fp8=False), torch.no_grad():
        off = found(tokens)
    with torch.no_grad():
        assert torch.equal(off, plain.cuda()(tokens))
