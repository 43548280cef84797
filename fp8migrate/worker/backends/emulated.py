"""FP8 emulated on BF16 hardware: operands are quantised to FP8 values, then multiplied in BF16 with FP32 accumulation.

Every FP8 value is a BF16 value and every product of two is exact in FP32, so what is left out is only how a tensor core
accumulates (Hopper keeps about 14 bits between promotions to FP32). It says nothing about speed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from fp8migrate.facts.recipes import FORWARD_AND_GRADIENT, Bf16Recipe, Recipe
from fp8migrate.jobs import Precision
from fp8migrate.records.schema import Conversion, LayerConversion
from fp8migrate.sizing.flops import bf16_sites, flops_shares, gemm_sites
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.models.llama import Llama
from fp8migrate.worker.scaling import Quantized, Scaler, scaler_factory


class EmulatedLinear(Linear):
    """A linear layer whose three GEMMs take quantised operands. Without a recipe: the same module with FP8 off."""

    def __init__(self, source: Linear, recipe: Recipe | None) -> None:
        # Not Linear.__init__: it would allocate a weight only to drop it; this layer takes over the source's parameter.
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        self.weight = source.weight
        self._gemm = None
        self._bf16_weight = None
        self._fp8_weight: tuple[tuple[int, bool], Quantized] | None = None
        self.enabled = recipe is not None and not isinstance(recipe, Bf16Recipe)
        if recipe is None or isinstance(recipe, Bf16Recipe):
            return
        forward, gradient = FORWARD_AND_GRADIENT[recipe.format]
        make = scaler_factory(recipe)
        self.input_scaler, self.weight_scaler, self.gradient_scaler = make(forward), make(forward), make(gradient)

    def prepare_input(self, x_tk: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._operand(self.input_scaler.quantize(x_tk)) if self.enabled else super().prepare_input(x_tk)

    def prepare_weight(self) -> tuple[Tensor, Tensor | None]:
        """Quantised once for each value the weight takes, so once a step under gradient accumulation.

        An evaluation's copy is not taken over by training: the scaler would miss that step's amax.
        """
        if not self.enabled:
            return super().prepare_weight()
        key = (self.weight._version, self.weight_scaler.recording)
        if self._fp8_weight is None or self._fp8_weight[0] != key:
            self._fp8_weight = (key, self.weight_scaler.quantize(self.weight.detach()))
        return self._operand(self._fp8_weight[1])

    def prepare_gradient(self, dy_tn: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._operand(self.gradient_scaler.quantize(dy_tn)) if self.enabled else super().prepare_gradient(dy_tn)

    def _operand(self, quantized: Quantized) -> tuple[Tensor, Tensor]:
        return self.gemm.exact_operand(quantized.values), quantized.inverse_scale


def convert(model: Llama, precision: Precision, tokens_per_pass: int) -> Conversion:
    """Replace linear layers by emulated ones, all but those that the policy or their shape keeps in BF16."""
    sites = gemm_sites(model.settings, model.sequence_length)
    shares = flops_shares(sites)
    kept, unmatched = bf16_sites(sites, precision.keep_bf16, tokens_per_pass)
    recipe = precision.recipe
    off = recipe is None or isinstance(recipe, Bf16Recipe)
    name = "fp8 off" if recipe is None or isinstance(recipe, Bf16Recipe) else f"{recipe.kind} {recipe.format}"
    layers = []
    for site in sites:
        if site.name not in kept:
            parent, _, leaf = site.name.rpartition(".")
            source = model.get_submodule(site.name)
            assert isinstance(source, Linear)
            setattr(model.get_submodule(parent), leaf, EmulatedLinear(source, recipe))
        converted = site.name not in kept and not off
        reason = kept.get(site.name, name)
        shape = (site.out_features, site.in_features)
        layers.append(
            LayerConversion(name=site.name, shape=shape, flops_share=shares[site.name], converted=converted, reason=reason)
        )
    return Conversion(
        requested=describe(recipe),
        effective=name if off else f"emulated {name}",
        layers=tuple(layers),
        fp8_flops_share=sum(layer.flops_share for layer in layers if layer.converted),
        unmatched_filters=unmatched,
    )


def describe(recipe: Recipe | None) -> str:
    """A recipe in one line, every setting named."""
    if recipe is None:
        return "fp8 off"
    settings = recipe.model_dump(exclude={"kind"})
    return f"{recipe.kind}({', '.join(f'{key}={value}' for key, value in settings.items())})"


def scalers(model: nn.Module) -> Iterator[Scaler]:
    return (module for module in model.modules() if isinstance(module, Scaler))


def quantized_tensors(model: nn.Module) -> int:
    """Tensors quantised so far."""
    return sum(scaler.count for scaler in scalers(model))


@contextmanager
def forward_mode(model: nn.Module, fp8: bool) -> Iterator[None]:
    """Evaluate with the converted layers in FP8 or in BF16; scalers do not record what they see meanwhile."""
    layers = [module for module in model.modules() if isinstance(module, EmulatedLinear) and hasattr(module, "input_scaler")]
    try:
        _switch(layers, fp8, recording=False)
        yield
    finally:
        _switch(layers, True, recording=True)


def _switch(layers: list[EmulatedLinear], enabled: bool, recording: bool) -> None:
    for layer in layers:
        layer.enabled = enabled
        for scaler in scalers(layer):
            scaler.recording = recording
