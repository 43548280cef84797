"""Fused modules over the packed model's parameters, against a stub of Transformer Engine: recipes, sharing, what is kept."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, Recipe, RowwiseRecipe
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel, PolicyRule
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.fused import module_recipes
from fp8migrate.worker.backends import policy_of
from fp8migrate.worker.backends.fused import fuse
from fp8migrate.worker.backends.transformer_engine import TransformerEngine
from fp8migrate.worker.models.fused import FusedLlama, FusedModule, NonGemm, fused_modules
from fp8migrate.worker.models.packed import PackedLlama

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
DELAYED = DelayedRecipe(amax_history_len=4)
pytestmark = pytest.mark.usefixtures("transformer_engine_stub")


def packed() -> PackedLlama:
    found = PackedLlama(MODEL, 32, torch.device("cpu"), torch.bfloat16)
    found.fill(seed=3)
    return found


def fused(
    source: PackedLlama,
    recipe: Recipe | None,
    *,
    keep: tuple[str, ...] = ("lm_head",),
    rules: tuple[PolicyRule, ...] = (),
    non_gemm: NonGemm | None = None,
) -> FusedLlama:
    precision = Precision(backend="transformer_engine", recipe=recipe, keep_bf16=keep, policy=rules)
    recipes = module_recipes(policy_of(gemm_sites(MODEL, 32), precision, 4 * 32))
    head, backend = bool(recipes["lm_head"]), TransformerEngine(precision)
    return fuse(source, backend, recipes, fuse_head=head, non_gemm=non_gemm)


def tokens() -> Tensor:
    return torch.randint(0, 256, (4, 33), generator=torch.Generator().manual_seed(3))


def train(found: nn.Module) -> float:
    logits = found(tokens()[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens()[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def gradients(source: PackedLlama) -> dict[str, Tensor]:
    """By the plain model's names, and none left behind."""
    found = {}
    for part in source.canonical_parameters():
        assert part.parameter.grad is not None, part.name
        found[part.name] = part.of(part.parameter.grad).float()
    source.zero_grad()
    return found


def module(found: FusedLlama, name: str) -> FusedModule:
    each = found.get_submodule(name)
    assert isinstance(each, FusedModule)
    return each


def te_recipe(found: FusedLlama, name: str) -> object:
    return module(found, name).__dict__["te_recipe"]


def test_parameters_are_the_packed_models_own() -> None:
    source = packed()
    found = fused(source, CurrentRecipe(), keep=())
    names = dict(source.named_parameters())
    assert dict(found.named_parameters()).keys() == names.keys()
    assert all(parameter is names[name] for name, parameter in found.named_parameters())
    inner = module(found, "layers.1.fused_mlp").__dict__["_inner"]
    assert inner.fc1_weight is names["layers.1.gate_up.weight"]
    assert inner.fc2_weight is names["layers.1.down.weight"]
    assert inner.layer_norm_weight is names["layers.1.mlp_norm"]


@pytest.mark.parametrize("attention", ["transformer_engine", "torch"])
def test_with_fp8_off_it_is_the_packed_model_within_bf16_rounding(attention: str) -> None:
    source = packed()
    control = fused(source, None, non_gemm=NonGemm(attention))  # type: ignore[arg-type]
    expected_loss = train(source)
    expected = gradients(source)
    assert train(control) == pytest.approx(expected_loss, rel=1e-3)
    for name, found in gradients(source).items():
        assert (found - expected[name]).norm() <= 2e-2 * expected[name].norm(), name
    assert [each.tensors_quantized for each in fused_modules(control)] == [0] * 6
    assert not any(each.ran_without for each in fused_modules(control))


@pytest.mark.parametrize("recipe", [DELAYED, CurrentRecipe()], ids=lambda recipe: recipe.kind)
def test_fp8_steps_are_finite_near_bf16_and_not_it(recipe: Recipe) -> None:
    source = packed()
    found = fused(source, recipe, keep=())
    exact = train(source)
    gradients(source)
    losses = []
    for _ in range(3):  # delayed scaling starts cold
        losses.append(train(found))
        assert all(each.isfinite().all() for each in gradients(source).values())
    assert losses[-1] == pytest.approx(exact, rel=1e-2)
    assert losses[-1] != exact
    # Three passes: input and weight of one, one and two layers, in two decoder layers and, of one, in the head.
    assert sum(each.tensors_quantized for each in fused_modules(found)) == 3 * 2 * (2 * 4 + 1)


def test_histories_are_buffers_that_move_on_once_a_pass() -> None:
    found = fused(packed(), DELAYED)
    mlp = module(found, "layers.0.fused_mlp")
    history = mlp.get_buffer("scaling_fwd_amax_history")
    assert history.shape == (4, 6)  # three tensors of each of two layers
    for passes in (1, 2, 3):
        train(found)
        assert int((history[:, 0] != 0).sum()) == passes
    before = history.clone()
    with mlp.leaving_no_trace(), torch.no_grad():
        found(tokens()[:, :-1] * 0 + 9)
    assert torch.equal(history, before)


def test_a_module_of_another_recipe_stands_inside_the_pass() -> None:
    rule = PolicyRule(layers="layers.*.mlp.*", recipe=CurrentRecipe())
    found = fused(packed(), DELAYED, rules=(rule,))
    for _ in range(2):
        train(found)
    assert type(te_recipe(found, "layers.0.fused_mlp")).__name__ == "Float8CurrentScaling"
    assert not list(module(found, "layers.0.fused_mlp").buffers())
    history = module(found, "layers.1.fused_output").get_buffer("scaling_fwd_amax_history")
    assert int((history[:, 0] != 0).sum()) == 2


def test_one_site_kept_keeps_its_whole_module_and_no_other() -> None:
    found = fused(packed(), CurrentRecipe(), keep=("lm_head", "layers.0.mlp.up", "layers.1.attention.key"))
    kept = ["layers.0.fused_mlp", "layers.1.fused_qkv"]
    low = ["layers.0.fused_qkv", "layers.0.fused_output", "layers.1.fused_output", "layers.1.fused_mlp"]
    train(found)
    assert [te_recipe(found, name) for name in kept] == [None, None]
    assert [module(found, name).tensors_quantized for name in kept] == [0, 0]
    assert [module(found, name).tensors_quantized for name in low] == [2, 2, 2, 4]
    assert found.fused_head is None


def test_a_module_switched_off_runs_in_bf16_and_is_not_missed() -> None:
    found = fused(packed(), CurrentRecipe())
    for each in fused_modules(found):
        each.enabled = False
    train(found)
    assert sum(each.tensors_quantized for each in fused_modules(found)) == 0
    assert not any(each.ran_without for each in fused_modules(found))


def test_a_module_whose_library_ran_without_fp8_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own word counts, not what was asked of it."""
    found = fused(packed(), CurrentRecipe())
    inner = module(found, "layers.0.fused_output").__dict__["_inner"]

    def never(num_gemms: int = 1) -> None:
        inner.fp8 = False

    monkeypatch.setattr(inner, "init_fp8_metadata", never)
    train(found)
    assert [each.ran_without for each in fused_modules(found)] == [False, True, False, False, False, False]


def test_master_weights_beside_bf16_activations() -> None:
    """Weights in FP32 are taken under autocast alone; their gradients are FP32."""
    source = PackedLlama(MODEL, 32, torch.device("cpu"), torch.float32)
    source.fill(seed=3)
    found = fused(source, CurrentRecipe())
    assert train(found) == pytest.approx(train(packed()), rel=1e-2)
    assert {parameter.grad.dtype for parameter in found.parameters() if parameter.grad is not None} == {torch.float32}


@pytest.mark.parametrize("recipe", [DELAYED, CurrentRecipe()], ids=lambda recipe: recipe.kind)
def test_fast_accumulation_is_said_of_the_backward_products(recipe: Recipe) -> None:
    for split in (True, False):
        changed = recipe.model_copy(update={"backward_split_accumulator": split})
        said = te_recipe(fused(packed(), changed), "layers.0.fused_mlp")
        assert [said.fp8_gemm_dgrad.use_split_accumulator, said.fp8_gemm_wgrad.use_split_accumulator] == [split, split]


@pytest.mark.parametrize(
    ("site", "recipe", "said"),
    [
        ("layers.*.mlp.up", CurrentRecipe(), "layers.0.mlp.gate, layers.0.mlp.up, layers.0.mlp.down are one fused module"),
        ("layers.1.attention.query", CurrentRecipe(), "layers.1.attention.query, .* cannot have different recipes"),
        ("layers.*.attention.output", RowwiseRecipe(), "has no recipe rowwise"),
    ],
)
def test_recipes_that_a_fused_module_cannot_have_are_refused(site: str, recipe: Recipe, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        fused(packed(), DELAYED, rules=(PolicyRule(layers=site, recipe=recipe),))


def test_padding_is_refused_with_what_to_say() -> None:
    odd = LlamaModel(num_layers=1, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=130)
    precision = Precision(backend="transformer_engine", recipe=DELAYED, odd_shapes="pad")
    policy = policy_of(gemm_sites(odd, 32), precision, 4 * 32)
    with pytest.raises(UsageError, match=r"(?s)layers\.0\.mlp\.gate.*take no padding.*odd_shapes: keep"):
        module_recipes(policy)


def test_the_stub_knows_the_librarys_keywords_alone() -> None:
    """What makes these tests worth something: a keyword that is not there is an error, as with the library itself."""
    import transformer_engine.pytorch as te  # type: ignore[import-untyped,import-not-found,unused-ignore]
    from transformer_engine.common.recipe import (  # type: ignore[import-untyped,import-not-found,unused-ignore]
        DelayedScaling,
    )

    for made in (te.Linear, te.LayerNormLinear, te.LayerNormMLP):
        with pytest.raises(TypeError, match="unexpected keyword argument 'epsilon'"):
            made(64, 64, bias=False, epsilon=1e-5)
    for made in (DelayedScaling, te.autocast):
        with pytest.raises(TypeError, match="unexpected keyword argument 'history'"):
            made(history=4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'causal'"):
        te.DotProductAttention(4, 16, causal=True)
