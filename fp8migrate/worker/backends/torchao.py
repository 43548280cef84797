"""torchao's float8 training: its Float8Linear in the place of linear layers, weights shared.

Where it emulates (no GPU with FP8), its own emulation runs: for tests alone, at five times the time of ours.
"""

import dataclasses
import logging
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.backends import refusal
from fp8migrate.facts.expressible import layer_refusal
from fp8migrate.facts.operands import GEMMS, Gemm
from fp8migrate.facts.recipes import Recipe, RowwiseHighPrecisionRecipe, RowwiseRecipe, TensorwiseRecipe
from fp8migrate.jobs import Precision
from fp8migrate.worker.backends.converted import ConvertedLinear
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.recompute import checkpoint, recomputing

# The casts of Float8LinearConfig that each GEMM takes its two operands by.
_CASTS: dict[Gemm, tuple[str, str]] = {
    "forward": ("cast_config_input", "cast_config_weight"),
    "data_gradient": ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    "weight_gradient": ("cast_config_grad_output_for_grad_weight", "cast_config_input_for_grad_weight"),
}


# Shapes of linear layers, with and without gradients, that one process may compile.
_MOST_GRAPHS = 256


def import_quietly(name: str) -> ModuleType:
    """A module of torchao, which logs and warns while it loads. Raises UsageError where it is missing or does not fit torch."""
    import importlib

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"candidate.backend is torchao, and it is not installed here ({error})", next_step="pip install torchao"
        ) from error
    except (ImportError, OSError, RuntimeError) as error:
        raise UsageError(
            f"torchao does not load beside torch {torch.__version__}: {error}",
            next_step="Install the torchao that its compatibility table names for this torch.",
        ) from error
    finally:
        logging.disable(before)


def compiled(module: nn.Module) -> Any:
    """As torchao is meant to be used: without it each cast is half a dozen kernels. One graph for each shape and mode."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor

    dynamo.recompile_limit = max(dynamo.recompile_limit, _MOST_GRAPHS)
    # Jobs run side by side: a pool of compilers in each would crowd the machine.
    inductor.compile_threads = 1
    return torch.compile(module, dynamic=False)


class TorchaoLinear(ConvertedLinear):
    """A Float8Linear over the source's own weight. Switched off, or without recipes, it multiplies in BF16 as we do."""

    def __init__(self, source: Linear | nn.Linear, config: Any, gemms: frozenset[Gemm]) -> None:
        self.adopt(source)
        self._gemms, self._calls = gemms, 0
        # Beside the module tree: parameters keep the names that they have without torchao.
        self.__dict__.update(_inner=None, _run=None)
        if gemms:
            inner = import_quietly("torchao.float8.float8_linear").Float8Linear.from_float(self, config)
            self.__dict__.update(_inner=inner, _run=inner if config.emulate else compiled(inner))

    @property
    def low_precision_gemms(self) -> frozenset[Gemm]:
        return self._gemms

    @property
    def tensors_quantized(self) -> int:
        """Input and weight of each forward pass; torchao tells no more."""
        return 2 * self._calls

    def leaving_no_trace(self) -> AbstractContextManager[None]:
        return nullcontext()  # scales are of the tensor at hand: there is no state

    def forward(self, x: Tensor) -> Tensor:
        inner = self.__dict__["_inner"]
        if inner is None or not self.enabled:
            return super().forward(x)
        if inner.weight is not self.weight:  # exchanged meanwhile, or computed in each pass: then no parameter
            for name in ("weight", "bias"):
                inner._parameters.pop(name, None)
            inner.weight, inner.bias = self.weight, self.bias
        if not torch.compiler.is_compiling() and not recomputing():
            self._calls += 1
        y: Tensor = self.__dict__["_run"](x.to(torch.bfloat16))
        return y.to(self.output_dtype(x))


class Torchao:
    """The backend."""

    name = "torchao"

    def __init__(self, precision: Precision) -> None:
        self._settings = import_quietly("torchao.float8.config")

    def layer(self, source: Linear | nn.Linear, recipes: Mapping[Gemm, Recipe], name: str) -> TorchaoLinear:
        emulate = not (source.weight.is_cuda and torch.cuda.get_device_capability(source.weight.device) >= (8, 9))
        config = self.config(recipes, name, emulate=emulate) if recipes else None
        return TorchaoLinear(source, config, frozenset(recipes))

    def around_pass(self) -> AbstractContextManager[object]:
        return nullcontext()

    def checkpoint(self, layer: nn.Module, *inputs: Tensor) -> Tensor:
        return checkpoint(layer, *inputs)

    def config(self, recipes: Mapping[Gemm, Recipe], name: str, *, emulate: bool = False) -> Any:
        """Float8LinearConfig of one layer; GEMMs without a recipe stay in high precision."""
        if refused := layer_refusal("torchao", recipes):
            raise UsageError(f"{name}: {refused}", where="candidate")
        (recipe,) = set(recipes.values())
        if not isinstance(recipe, TensorwiseRecipe | RowwiseRecipe | RowwiseHighPrecisionRecipe):
            raise UsageError(f"{name}: {refusal('torchao', recipe.kind, None)}", where="candidate")
        config = self._settings.Float8LinearConfig.from_recipe_name(recipe.kind)
        off = self._settings.CastConfig(scaling_type=self._settings.ScalingType.DISABLED)
        casts = {
            cast: dataclasses.replace(off, target_dtype=getattr(config, cast).target_dtype)
            for gemm in GEMMS
            if gemm not in recipes
            for cast in _CASTS[gemm]
        }
        powers = recipe.round_scales_to_power_of_2
        return dataclasses.replace(config, **casts, round_scales_to_power_of_2=powers, emulate=emulate)
