"""Transformer Engine's fused modules in the place of decoder layers, or of the whole packed model."""

from collections.abc import Mapping

from fp8migrate.sizing.fused import Recipes
from fp8migrate.worker.backends.te_modules import import_transformer_engine
from fp8migrate.worker.backends.transformer_engine import TransformerEngine
from fp8migrate.worker.models.fused import FusedDecoderLayer, FusedLlama, ModuleRecipe, NonGemm
from fp8migrate.worker.models.llama import DecoderLayer, Llama
from fp8migrate.worker.models.packed import PackedLlama


def fuse(
    packed: PackedLlama,
    backend: TransformerEngine,
    recipes: Mapping[str, Recipes],
    *,
    fuse_head: bool,
    non_gemm: NonGemm | None = None,
) -> FusedLlama:
    """The packed model's parameters run by Transformer Engine. recipes: of every module (`sizing.fused.module_recipes`)."""
    settled = {name: _settled(backend, each, name) for name, each in recipes.items()}
    te = import_transformer_engine()
    model = FusedLlama(packed, te, settled.__getitem__, fuse_head=fuse_head, non_gemm=non_gemm)
    model.around_pass = backend.around_pass
    return model


def fuse_layers(model: Llama, backend: TransformerEngine, recipes: Mapping[str, Recipes]) -> None:
    """Put fused modules in the place of every decoder layer, over its own parameters. The head stays as it is."""
    te = import_transformer_engine()
    for number, layer in enumerate(model.layers):
        assert isinstance(layer, DecoderLayer)
        prefix = f"layers.{number}."
        settled = {
            name.removeprefix(prefix): _settled(backend, each, name)
            for name, each in recipes.items()
            if name.startswith(prefix)
        }
        model.layers[number] = FusedDecoderLayer(layer, model.settings, te, settled.__getitem__)


def _settled(backend: TransformerEngine, recipes: Recipes, name: str) -> ModuleRecipe:
    return ModuleRecipe(backend.recipe_of(recipes, name), frozenset(recipes))
