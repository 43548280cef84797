"""FP8 emulated on BF16 hardware: operands are quantised to FP8 values, then multiplied in BF16 with FP32 accumulation.

Every FP8 value is a BF16 value and every product of two is exact in FP32, so what is left out is only how a tensor core
accumulates (Hopper keeps about 14 bits between promotions to FP32). It says nothing about speed.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from zlib import crc32

from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.expressible import layer_refusal
from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS, Gemm, Operand, TensorName
from fp8migrate.facts.recipes import Recipe
from fp8migrate.jobs import Precision
from fp8migrate.worker.backends.converted import ConvertedLinear
from fp8migrate.worker.linear import CONTRACTION, Linear, Prepared
from fp8migrate.worker.quantize import gemm_operand
from fp8migrate.worker.quantizers import Quantizer, SameChances, not_recording, quantized_tensors, quantizers
from fp8migrate.worker.recompute import checkpoint

Recipes = Mapping[Gemm, Recipe]


class EmulatedLinear(ConvertedLinear):
    """A linear layer whose GEMMs take quantised operands where they have a recipe. Without any: the same module with FP8 off.

    It takes over the source's parameters (a torch.nn.Linear, or one of ours), so weights and optimizer states stay.
    name: the layer's in its model; stochastic rounding draws from a stream of its own for each.
    """

    def __init__(self, source: Linear | nn.Linear, recipes: Recipes, name: str = "") -> None:
        self.adopt(source)
        self._operands = _operands(recipes)
        tensors: tuple[TensorName, ...] = ("input", "weight", "gradient")
        self._same = {tensor: _same_operand(self._operands, tensor) for tensor in tensors}
        self._names = {key: key[1] if self._same[key[1]] else f"{key[1]}_for_{key[0]}" for key in self._operands}
        quantizers = {
            slot: Quantizer(self._operands[key], crc32(f"{name}.{slot}".encode())) for key, slot in self._names.items()
        }
        self.quantizers = nn.ModuleDict(quantizers).to(self.weight.device)

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

    @property
    def tensors_quantized(self) -> int:
        return quantized_tensors(self)

    def leaving_no_trace(self) -> AbstractContextManager[None]:
        return not_recording(self)

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


class Emulated:
    """The backend."""

    name = "emulated"

    def __init__(self, precision: Precision) -> None:
        pass

    def layer(self, source: Linear | nn.Linear, recipes: Recipes, name: str) -> EmulatedLinear:
        if refused := layer_refusal("emulated", recipes):
            raise UsageError(f"{name}: {refused}", where="candidate")
        return EmulatedLinear(source, recipes, name)

    def around_pass(self) -> AbstractContextManager[object]:
        return nullcontext()

    def checkpoint(self, layer: nn.Module, *inputs: Tensor) -> Tensor:
        return checkpoint(layer, *inputs, inside=SameChances(layer))
