"""Backends: what executes the linear layers. A new one is one file and one line in `BACKENDS`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn

from fp8migrate.facts.operands import Gemm
from fp8migrate.facts.recipes import Bf16Recipe, Recipe
from fp8migrate.jobs import Precision
from fp8migrate.records.schema import Conversion, LayerConversion
from fp8migrate.sizing.flops import GemmSite, flops_shares, gemm_sites
from fp8migrate.sizing.fused import module_recipes
from fp8migrate.sizing.policy import Policy, resolve_policy
from fp8migrate.worker.backends import bf16, emulated
from fp8migrate.worker.backends.converted import ConvertedLinear, exchange
from fp8migrate.worker.backends.padded import padded
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.llama import Llama


class Backend(Protocol):
    """Makes layers of one kind for one arm. Built with the arm's precision; raises UsageError where it cannot run here."""

    name: str

    def layer(self, source: Linear | nn.Linear, recipes: Mapping[Gemm, Recipe], name: str) -> ConvertedLinear:
        """A layer with the source's parameters whose GEMMs have these recipes; none: its module with FP8 off."""
        ...

    def around_pass(self) -> AbstractContextManager[object]:
        """What every forward pass of the model runs in."""
        ...

    def checkpoint(self, layer: nn.Module, *inputs: Tensor) -> Tensor:
        """Run a decoder layer without keeping its activations; its second forward pass gives the same bits."""
        ...


def _transformer_engine(precision: Precision) -> Backend:
    # Imported when asked for: it takes seconds, and is not installed everywhere.
    from fp8migrate.worker.backends.transformer_engine import TransformerEngine

    return TransformerEngine(precision)


def _torchao(precision: Precision) -> Backend:
    from fp8migrate.worker.backends.torchao import Torchao

    return Torchao(precision)


BACKENDS: dict[str, Callable[[Precision], Backend]] = {
    "emulated": emulated.Emulated,
    "transformer_engine": _transformer_engine,
    "torchao": _torchao,
}


def convert(model: Llama, precision: Precision, tokens_per_pass: int) -> Conversion:
    """Bring a model, on its device already, into `precision` in place. Parameters keep their names and values.

    Linear layers are replaced, all but those that the policy or their shape keeps in BF16. tokens_per_pass: rows of every
    linear layer's input, for the shape rules. Raises UsageError where the backend cannot run here.
    """
    if precision.backend == "bf16":
        return bf16.describe(model)
    backend = BACKENDS[precision.backend](precision)
    sites = gemm_sites(model.settings, model.sequence_length)
    shares = flops_shares(sites)
    policy = policy_of(sites, precision, tokens_per_pass)
    fp8_off = precision.recipe is None or precision.recipe == Bf16Recipe()
    fused = precision.modules == "fused" and precision.backend == "transformer_engine"
    if fused:
        _fuse_layers(model, backend, policy)
    layers = []
    for site in sites:
        chosen = policy.sites[site.name]
        if site.is_linear and (fp8_off or chosen.recipes) and not (fused and site.name.startswith("layers.")):
            make = padded(backend.layer, chosen.padding) if chosen.padding else backend.layer
            exchange(model, site.name, make, chosen.recipes)
        layers.append(
            LayerConversion(
                name=site.name,
                shape=(site.out_features, site.in_features),
                flops_share=shares[site.name],
                gemms=tuple(chosen.recipes),
                reason=chosen.reason,
            )
        )
    model.around_pass, model.checkpoint = backend.around_pass, backend.checkpoint
    requested, share = _requested(precision), policy.low_precision_share(sites)
    return Conversion(
        requested=requested,
        effective=f"{backend.name} {requested}" if share else requested,
        layers=tuple(layers),
        fp8_flops_share=share,
        unmatched_filters=policy.unmatched,
        notes=policy.notes,
    )


def _fuse_layers(model: Llama, backend: Backend, policy: Policy) -> None:
    from fp8migrate.worker.backends.fused import fuse_layers
    from fp8migrate.worker.backends.transformer_engine import TransformerEngine

    assert isinstance(backend, TransformerEngine)
    fuse_layers(model, backend, module_recipes(policy))


def policy_of(sites: Sequence[GemmSite], precision: Precision, tokens_per_pass: int) -> Policy:
    """What every site gets. Without a recipe (control) FP8 is off everywhere; a stand-in goes exactly where FP8 would be."""
    recipe = precision.recipe or Bf16Recipe()
    policy = resolve_policy(
        *(sites, recipe, precision.keep_bf16, precision.policy, tokens_per_pass),
        kept=precision.kept,
        odd_shapes=precision.odd_shapes,
        modules=precision.modules,
    )
    stand_in = precision.stand_in
    if stand_in is None:
        return policy
    sites_with = {
        name: replace(site, recipes=dict.fromkeys(site.recipes, stand_in), reason=stand_in.in_words) if site.recipes else site
        for name, site in policy.sites.items()
    }
    return replace(policy, sites=sites_with)


def _requested(precision: Precision) -> str:
    if precision.recipe is None:
        return "fp8 off"
    candidate = "; ".join([precision.recipe.in_words, *(rule.in_words for rule in precision.policy)])
    return candidate if precision.stand_in is None else f"{precision.stand_in.in_words} in the place of {candidate}"


__all__ = ["BACKENDS", "Backend", "convert"]
