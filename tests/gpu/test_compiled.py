"""torch.compile on a GPU: fused kernels give what eager layers give, recipe by recipe."""

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402 - after the skip

from fp8migrate.facts.operands import GEMMS  # noqa: E402
from fp8migrate.facts.recipes import MIGRATION_RECIPES, DelayedRecipe, Recipe  # noqa: E402
from fp8migrate.worker.backends.emulated import EmulatedLinear  # noqa: E402
from fp8migrate.worker.quantizers import end_pass, quantizers  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore"),
]
RECIPES = tuple(DelayedRecipe(amax_history_len=3) if recipe.kind == "delayed" else recipe for recipe in MIGRATION_RECIPES)


def layer(recipe: Recipe) -> nn.Module:
    torch.manual_seed(0)
    source = nn.Linear(1024, 768, device="cuda", dtype=torch.bfloat16)
    return EmulatedLinear(source, dict.fromkeys(GEMMS, recipe), "layer")


def passes(model: nn.Module, scaling: nn.Module) -> list[Tensor]:
    found = []
    for seed in range(3):
        generator = torch.Generator("cuda").manual_seed(seed)
        x = torch.randn(512, 1024, generator=generator, device="cuda").bfloat16().requires_grad_()
        dy = (torch.randn(512, 768, generator=generator, device="cuda") * 1e-3).bfloat16()
        scaling.zero_grad()
        y = model(x)
        y.backward(dy)
        end_pass(scaling)
        with torch.no_grad():  # an update, as between any two steps: without one, eager layers keep their copy of the weight
            for parameter in scaling.parameters():
                parameter.mul_(1 - 2**-6)
        found += [y.detach(), x.grad, *(parameter.grad.clone() for parameter in scaling.parameters())]
    return found + [buffer.clone() for each in quantizers(scaling) for buffer in each.buffers()]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.kind)
def test_compiled_layers_are_the_eager_ones(recipe: Recipe) -> None:
    """All bits but for the last of BF16 where a sum was taken in another order: in one of a thousand values at most."""
    eager, model = layer(recipe), layer(recipe)
    try:
        compiled = torch.compile(model, fullgraph=True)
        for found, expected in zip(passes(compiled, model), passes(eager, eager), strict=True):
            differing = float((found != expected).double().mean())
            assert differing <= 1e-3
            torch.testing.assert_close(found, expected, rtol=2**-7, atol=float(expected.abs().max()) * 2**-12)
    finally:
        torch._dynamo.reset()
