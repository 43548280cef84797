"""FP8 emulated on BF16 hardware: operands are quantised to FP8 values, then multiplied in BF16 with FP32 accumulation.

Every FP8 value is a BF16 value and every product of two is exact in FP32, so what is left out is only how a tensor core
accumulates (Hopper keeps about 14 bits between promotions to FP32). It says nothing about speed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from zlib import crc32

from torch import Tensor, nn

from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS, Gemm, Operand, TensorName
from fp8migrate.facts.recipes import Bf16Recipe, Recipe
from fp8migrate.jobs import Precision
from fp8migrate.records.schema import Conversion, LayerConversion
from fp8migrate.sizing.flops import GemmSite, flops_shares, gemm_sites
from fp8migrate.sizing.policy import Policy, SitePolicy, resolve_policy
from fp8migrate.worker.gemm import gemm_for
from fp8migrate.worker.linear import CONTRACTION, Linear, Prepared
from fp8migrate.worker.models.llama import Llama
from fp8migrate.worker.quantize import gemm_operand
from fp8migrate.worker.quantizers import Quantizer, not_recording, quantizers

Recipes = Mapping[Gemm, Recipe]


class EmulatedLinear(Linear):
    """A linear layer whose GEMMs take quantised operands where they have a recipe. Without any: the same module with FP8 off.

    It takes over the source's parameters (a torch.nn.Linear, or one of ours), so weights and optimizer states stay.
    name: the layer's in its model; stochastic rounding draws from a stream of its own for each.
    """

    def __init__(self, source: Linear | nn.Linear, recipes: Recipes, name: str = "") -> None:
        # Not Linear.__init__: it would allocate a weight only to drop it.
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        weight, bias = source.weight, source.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        self.weight = weight
        self.register_parameter("bias", bias)
        self.gemm = gemm_for(weight.device)
        self.enabled = True
        self._operands = _operands(recipes)
        tensors: tuple[TensorName, ...] = ("input", "weight", "gradient")
        self._same = {tensor: _same_operand(self._operands, tensor) for tensor in tensors}
        self._names = {key: key[1] if self._same[key[1]] else f"{key[1]}_for_{key[0]}" for key in self._operands}
        quantizers = {
            slot: Quantizer(self._operands[key], crc32(f"{name}.{slot}".encode())) for key, slot in self._names.items()
        }
        self.quantizers = nn.ModuleDict(quantizers).to(weight.device)

    def prepare(self, gemm: Gemm, tensor: TensorName, values: Tensor) -> Prepared:
        operand = self._operands.get((gemm, tensor)) if self.enabled else None
        if operand is None:
            return super().prepare(gemm, tensor, values)
        quantizer = self.quantizers[self._names[gemm, tensor]]
        assert isinstance(quantizer, Quantizer)
        low, factor = gemm_operand(quantizer.quantize(values, CONTRACTION[gemm, tensor]), operand)
        return Prepared(self.gemm.exact_operand(low), factor)

    @property
    def low_precision_gemms(self) -> frozenset[Gemm]:
        return frozenset(gemm for gemm, _ in self._operands)

    def same_operand(self, tensor: TensorName) -> bool:
        return not self.enabled or self._same[tensor]

    def weight_state(self) -> object:
        """An evaluation's copy is not taken over by training: the quantiser would miss that step's amax."""
        return self.enabled, all(quantizer.tally.recording for quantizer in quantizers(self))


def _operands(recipes: Recipes) -> dict[tuple[Gemm, TensorName], Operand]:
    """Of the GEMMs that are in low precision."""
    found: dict[tuple[Gemm, TensorName], Operand] = {}
    for gemm, recipe in recipes.items():
        pair = recipe.operands(gemm)
        if pair is not None:
            found |= {(gemm, tensor): operand for tensor, operand in zip(GEMM_OPERANDS[gemm], pair, strict=True)}
    return found


def _same_operand(operands: Mapping[tuple[Gemm, TensorName], Operand], tensor: TensorName) -> bool:
    """Whether one copy of a tensor serves both GEMMs that take it."""
    first, second = (operands.get((gemm, tensor)) for gemm in GEMMS if tensor in GEMM_OPERANDS[gemm])
    return first == second and (first is None or not first.directional)


def convert(model: Llama, precision: Precision, tokens_per_pass: int) -> Conversion:
    """Replace linear layers by emulated ones, all but those that the policy or their shape keeps in BF16."""
    sites = gemm_sites(model.settings, model.sequence_length)
    shares = flops_shares(sites)
    policy = policy_of(sites, precision, tokens_per_pass)
    whole_modules = precision.recipe is None or precision.recipe == Bf16Recipe()
    layers = []
    for site in sites:
        chosen = policy.sites[site.name]
        if site.is_linear and (whole_modules or chosen.recipes):
            exchange(model, site.name, chosen.recipes)
        layers.append(
            LayerConversion(
                name=site.name,
                shape=(site.out_features, site.in_features),
                flops_share=shares[site.name],
                gemms=tuple(chosen.recipes),
                reason=chosen.reason,
            )
        )
    requested, share = _requested(precision), policy.low_precision_share(sites)
    return Conversion(
        requested=requested,
        effective=f"emulated {requested}" if share else requested,
        layers=tuple(layers),
        fp8_flops_share=share,
        unmatched_filters=policy.unmatched,
    )


def policy_of(sites: Sequence[GemmSite], precision: Precision, tokens_per_pass: int) -> Policy:
    """What every site gets. Without a recipe (control) FP8 is off everywhere; a stand-in goes exactly where FP8 would be."""
    recipe = precision.recipe or Bf16Recipe()
    policy = resolve_policy(sites, recipe, precision.keep_bf16, precision.policy, tokens_per_pass)
    stand_in = precision.stand_in
    if stand_in is None:
        return policy
    sites_with = {
        name: SitePolicy(dict.fromkeys(site.recipes, stand_in), stand_in.in_words) if site.recipes else site
        for name, site in policy.sites.items()
    }
    return Policy(sites_with, policy.unmatched)


def _requested(precision: Precision) -> str:
    if precision.recipe is None:
        return "fp8 off"
    candidate = "; ".join([precision.recipe.in_words, *(rule.in_words for rule in precision.policy)])
    return candidate if precision.stand_in is None else f"{precision.stand_in.in_words} in the place of {candidate}"


def exchange(model: nn.Module, name: str, recipes: Recipes) -> EmulatedLinear:
    """Put an emulated layer in the place of the linear layer `name`, with its parameters."""
    parent, _, leaf = name.rpartition(".")
    source = model.get_submodule(name)
    assert isinstance(source, Linear | nn.Linear)
    layer = EmulatedLinear(source, recipes, name)
    setattr(model.get_submodule(parent), leaf, layer)
    return layer


@contextmanager
def forward_mode(model: nn.Module, fp8: bool) -> Iterator[None]:
    """Evaluate with the converted layers in FP8 or in BF16; histories do not take in what is seen meanwhile."""
    layers = [module for module in model.modules() if isinstance(module, EmulatedLinear)]
    before = [layer.enabled for layer in layers]
    try:
        for layer in layers:
            layer.enabled = fp8
        with not_recording(model):
            yield
    finally:
        for layer, enabled in zip(layers, before, strict=True):
            layer.enabled = enabled
