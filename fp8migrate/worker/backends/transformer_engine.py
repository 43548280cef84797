"""Transformer Engine: its Linear in the place of linear layers, weights shared bit for bit.

The whole model's pass runs in one te.autocast, for it is on leaving the outermost that delayed scales move on. A layer with
another recipe than the model's opens one of its own inside.
"""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from fp8migrate.errors import UsageError
from fp8migrate.facts.expressible import layer_refusal
from fp8migrate.facts.operands import Gemm
from fp8migrate.facts.recipes import (
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    Recipe,
)
from fp8migrate.jobs import Precision
from fp8migrate.worker.backends.converted import ConvertedLinear
from fp8migrate.worker.backends.te_modules import (
    Passes,
    forget_scales_for_recompute,
    import_transformer_engine,
    keeping_scaling_state,
    own_recipe,
    register_scaling_state,
)
from fp8migrate.worker.linear import Linear
from fp8migrate.worker.recompute import checkpoint


class TransformerEngineLinear(ConvertedLinear):
    """A te.Linear over the source's own parameters, under a recipe, or with FP8 off (te_recipe None: always).

    Delayed scaling's scales and amax histories are buffers of this layer, the same tensors that Transformer Engine uses.
    """

    def __init__(self, source: Linear | nn.Linear, te: ModuleType, te_recipe: Any, gemms: frozenset[Gemm]) -> None:
        self.adopt(source)
        self._gemms, self._passes = gemms, Passes()
        inner = te.Linear(
            self.in_features,
            self.out_features,
            bias=self.bias is not None,
            params_dtype=self.weight.dtype,
            device=self.weight.device,
            init_method=nn.init.zeros_,
        )
        # Beside the module tree: parameters keep the names that they have without Transformer Engine.
        self.__dict__.update(_inner=inner, _te=te, te_recipe=te_recipe)
        self._share_parameters()
        register_scaling_state(self, te, inner, te_recipe, gemms=1)

    @property
    def low_precision_gemms(self) -> frozenset[Gemm]:
        return self._gemms

    @property
    def tensors_quantized(self) -> int:
        """Input and weight of each forward pass that Transformer Engine itself says was in low precision."""
        return 2 * self._passes.in_fp8

    @property
    def ran_without(self) -> bool:
        return self._passes.missed > 0

    def _share_parameters(self) -> None:
        inner = self.__dict__["_inner"]
        if inner._parameters["weight"] is not self.weight:
            inner._parameters["weight"] = self.weight
            if self.bias is not None:
                inner._parameters["bias"] = self.bias

    def forward(self, x: Tensor) -> Tensor:
        self._share_parameters()
        inner, recipe = self.__dict__["_inner"], self.__dict__["te_recipe"]
        wanted = self.enabled and recipe is not None
        first = self.first_microbatch if torch.is_grad_enabled() else None
        # Under autocast Transformer Engine takes activations in BF16 beside master weights of any dtype.
        with torch.autocast(x.device.type, torch.bfloat16), own_recipe(self.__dict__["_te"], recipe, wanted):
            y: Tensor = inner(x, is_first_microbatch=first)
        self._passes.count(inner, wanted)
        return y.to(self.output_dtype(x))

    def leaving_no_trace(self) -> AbstractContextManager[None]:
        return keeping_scaling_state(self)


class TransformerEngine:
    """The backend."""

    name = "transformer_engine"

    def __init__(self, precision: Precision) -> None:
        if not torch.cuda.is_available():
            raise UsageError(
                "candidate.backend is transformer_engine, and torch sees no CUDA GPU",
                next_step="Say candidate.backend: emulated to judge the recipe without one.",
            )
        self._te = import_transformer_engine()
        self._recipes: dict[tuple[Recipe, bool], Any] = {}
        recipe = precision.recipe
        off = recipe is None or recipe.kind == "bf16"
        self._default = None if off or recipe is None else self._te_recipe(recipe, forward_only=False)
        self._delayed = any(isinstance(each, DelayedRecipe) for each in precision.low_precision_recipes)

    def layer(self, source: Linear | nn.Linear, recipes: Mapping[Gemm, Recipe], name: str) -> TransformerEngineLinear:
        return TransformerEngineLinear(source, self._te, self.recipe_of(recipes, name), frozenset(recipes))

    def around_pass(self) -> AbstractContextManager[object]:
        if torch.is_grad_enabled():
            forget_scales_for_recompute(self._te)
        found: AbstractContextManager[object] = self._te.autocast(enabled=self._default is not None, recipe=self._default)
        return found

    def checkpoint(self, layer: nn.Module, *inputs: Tensor) -> Tensor:
        """By the library, which gives the second pass the autocast of the first one and its delayed scales, moved on since.

        As a bound method: in a module's tree the library looks for its own modules, and ours stand beside the tree. Finding
        none, it would leave all to torch, and the second pass would run without FP8 or by the next pass's scales.
        """
        if self._delayed and os.environ.get("NVTE_UNFUSED_FP8_UPDATE", "0") != "0":
            raise UsageError(
                "with NVTE_UNFUSED_FP8_UPDATE set, every recomputed layer moves Transformer Engine's delayed scales on",
                where="training.recompute",
                next_step="Unset NVTE_UNFUSED_FP8_UPDATE, say training.recompute: false, or choose candidate.recipe current.",
            )
        return checkpoint(layer.__call__, *inputs, run=self._te.checkpoint)

    def recipe_of(self, recipes: Mapping[Gemm, Recipe], name: str) -> Any:
        if not recipes:
            return None
        if refused := layer_refusal("transformer_engine", recipes):
            raise UsageError(f"{name}: {refused}", where="candidate")
        (recipe,) = set(recipes.values())
        return self._te_recipe(recipe, forward_only=set(recipes) == {"forward"})

    def _te_recipe(self, recipe: Recipe, forward_only: bool) -> Any:
        """One object for each recipe: layers of one recipe share the model's."""
        key = (recipe, forward_only)
        if key not in self._recipes:
            self._recipes[key] = te_recipe(recipe, forward_only=forward_only)
        return self._recipes[key]


def te_recipe(recipe: Recipe, *, forward_only: bool = False) -> Any:
    """Transformer Engine's recipe object for ours. Every setting that an NVTE_ variable could change is given by name.

    Raises UsageError for a recipe that it has not.
    """
    from transformer_engine.common import recipe as library

    formats = {"hybrid": library.Format.HYBRID, "e4m3": library.Format.E4M3}
    common = {"backward_override": "high_precision" if forward_only else None}
    if isinstance(recipe, DelayedRecipe):
        delayed = library.DelayedScaling(
            margin=recipe.margin,
            fp8_format=formats[recipe.format],
            amax_history_len=recipe.amax_history_len,
            amax_compute_algo=recipe.amax_compute,
            **common,
        )
        return _with_backward_sums(delayed, recipe.backward_split_accumulator)
    if isinstance(recipe, CurrentRecipe) and recipe.format in formats:
        powers = recipe.use_power_2_scales
        found = library.Float8CurrentScaling(fp8_format=formats[recipe.format], use_power_2_scales=powers, **common)
        return _with_backward_sums(_with_power_2_scales(found, powers), recipe.backward_split_accumulator)
    if isinstance(recipe, BlockRecipe):
        found = library.Float8BlockScaling(
            fp8_format=formats[recipe.format],
            x_block_scaling_dim=recipe.x_block_scaling_dim,
            w_block_scaling_dim=recipe.w_block_scaling_dim,
            grad_block_scaling_dim=recipe.grad_block_scaling_dim,
            use_f32_scales=False,
            **common,
        )
        return _with_power_2_scales(found, True)
    if isinstance(recipe, Mxfp8Recipe):
        squares = recipe.enable_2d_quantization
        return library.MXFP8BlockScaling(fp8_format=formats[recipe.format], enable_2d_quantization=squares, **common)
    if isinstance(recipe, Nvfp4Recipe):
        return library.NVFP4BlockScaling(
            disable_rht=recipe.disable_rht,
            disable_stochastic_rounding=recipe.disable_stochastic_rounding,
            disable_2d_quantization=recipe.disable_2d_quantization,
            row_scaled_activation=False,
            nvfp4_4over6="none",
            **common,
        )
    raise UsageError(
        f"Transformer Engine has no recipe {recipe.in_words}",
        where="candidate.recipe",
        next_step="It has delayed, current, block, mxfp8 and nvfp4 in E4M3 or hybrid; others: candidate.backend emulated.",
    )


def _with_power_2_scales(found: Any, powers: bool) -> Any:
    """The constructor's argument does not reach what the casts go by: that is the class's, from a variable (2.20)."""
    from transformer_engine.common import recipe as library

    cast = library.QParams(power_2_scale=powers, amax_epsilon=0.0)
    found.fp8_quant_fwd_inp = found.fp8_quant_fwd_weight = found.fp8_quant_bwd_grad = cast
    return found


def _with_backward_sums(found: Any, split: bool) -> Any:
    """Modules ask a recipe for these two by name, and take True where it has none, as delayed scaling (2.20)."""
    from transformer_engine.common.recipe import MMParams

    found.fp8_gemm_dgrad = found.fp8_gemm_wgrad = MMParams(use_split_accumulator=split)
    return found
