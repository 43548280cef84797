"""The built-in Llama from Transformer Engine's fused modules, over parameters that the model has already.

Per layer: LayerNormLinear (RMSNorm, then query, key and value as one matrix), rotation, attention, Linear, LayerNormMLP
(RMSNorm, gate and up as one matrix, SwiGLU, down). A fused module is in FP8 as a whole or not at all: a site that the policy
keeps in BF16 keeps the module that holds it. `FusedLlama` runs the packed model's parameters, for measuring;
`FusedDecoderLayer` stands in the place of a `DecoderLayer`, for training. Shapes as in `packed`.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fp8migrate.facts.operands import Gemm
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.sizing.fused import FUSED
from fp8migrate.worker.backends.converted import Converted
from fp8migrate.worker.backends.te_modules import Passes, keeping_scaling_state, own_recipe, register_scaling_state
from fp8migrate.worker.models.llama import DecoderLayer, RMSNorm
from fp8migrate.worker.models.packed import PackedLayer, PackedLlama, attend, project, split_and_rotate, weight_of


@dataclass(frozen=True)
class NonGemm:
    """Who does what is no GEMM: Transformer Engine (attention by cuDNN), or torch."""

    attention: Literal["transformer_engine", "torch"] = "transformer_engine"
    rotation: Literal["transformer_engine", "compiled", "torch"] = "transformer_engine"


@dataclass(frozen=True)
class ModuleRecipe:
    """Of a fused module: Transformer Engine's recipe (None: FP8 off), and which GEMMs of each matrix it has in FP8."""

    te_recipe: Any = None
    gemms: frozenset[Gemm] = frozenset()


# By `layers.0.mlp` or `lm_head`.
RecipeOf = Callable[[str], ModuleRecipe]


@dataclass(frozen=True)
class Weights:
    """What a module multiplies by. given: Transformer Engine's parameters by its names, asked for at each pass.

    parameters: those of the model that its matrices are made of. matrices: GEMMs' matrices. reads, writes: the modules of a
    DecoderLayer whose input it takes, and whose outputs, one beside the other, it gives.
    """

    given: Callable[[], Mapping[str, Tensor]]
    parameters: tuple[nn.Parameter, ...]
    matrices: int = 1
    reads: str = ""
    writes: tuple[str, ...] = ()


class FusedModule(Converted):
    """A module of Transformer Engine over parameters of ours, under a recipe; None: FP8 off.

    Delayed scaling's scales and amax histories are buffers of this module, the same tensors that Transformer Engine uses.
    """

    def __init__(self, te: ModuleType, inner: nn.Module, weights: Weights, recipe: ModuleRecipe) -> None:
        super().__init__()
        self.enabled, self.first_microbatch = True, None
        self.weights, self._gemms, self._passes = weights, recipe.gemms, Passes()
        # Beside the module tree: parameters are those of the model, and keep their names.
        self.__dict__.update(_inner=inner, _te=te, te_recipe=recipe.te_recipe)
        # Transformer Engine takes parameters of another dtype than the activations' under autocast alone.
        self._master_weights = weights.parameters[0].dtype != torch.bfloat16
        self._share()
        register_scaling_state(self, te, inner, recipe.te_recipe, weights.matrices)

    def _share(self) -> None:
        inner = self.__dict__["_inner"]
        for name, parameter in self.weights.given().items():
            assert name in inner._parameters
            inner._parameters[name] = parameter

    @property
    def low_precision_gemms(self) -> frozenset[Gemm]:
        return self._gemms

    @property
    def gemm_weights(self) -> tuple[nn.Parameter, ...]:
        return self.weights.parameters

    @property
    def matrices(self) -> int:
        return self.weights.matrices

    @property
    def tensors_quantized(self) -> int:
        """Input and weight of each linear layer in each forward pass that Transformer Engine itself says was in FP8."""
        return 2 * self.matrices * self._passes.in_fp8

    @property
    def ran_without(self) -> bool:
        return self._passes.missed > 0

    def forward(self, x: Tensor) -> Tensor:
        self._share()
        inner, recipe = self.__dict__["_inner"], self.__dict__["te_recipe"]
        first = self.first_microbatch if torch.is_grad_enabled() else None
        wanted = self.enabled and recipe is not None
        mixed = torch.autocast(x.device.type, torch.bfloat16) if self._master_weights else nullcontext()
        with mixed, own_recipe(self.__dict__["_te"], recipe, wanted):
            y: Tensor = inner(x, is_first_microbatch=first)
        self._passes.count(inner, wanted)
        return y

    def leaving_no_trace(self) -> AbstractContextManager[None]:
        return keeping_scaling_state(self)


class _Fused:
    """The forward pass of a decoder layer in fused modules, whoever holds its parameters."""

    heads: tuple[int, int, int]
    repeat_kv: bool
    non_gemm: NonGemm
    fused_qkv: FusedModule
    fused_output: FusedModule
    fused_mlp: FusedModule

    def fuse(
        self, te: ModuleType, settings: LlamaModel, weights: Mapping[str, Weights], recipe_of: RecipeOf, non_gemm: NonGemm
    ) -> None:
        """Make the modules. weights: of each of FUSED."""
        h, g, e = self.heads = (settings.num_heads, settings.num_kv_heads, settings.head_size)
        self.non_gemm = non_gemm
        weight = weights["qkv"].parameters[0]
        common = {"bias": False, "params_dtype": weight.dtype, "device": weight.device, "init_method": nn.init.zeros_}
        norm = {"eps": settings.norm_epsilon, "normalization": "RMSNorm"}
        d, f = settings.hidden_size, settings.ffn_hidden_size
        mlp = te.LayerNormMLP(d, f, **norm, activation="swiglu", output_layer_init_method=nn.init.zeros_, **common)
        made = {
            "qkv": te.LayerNormLinear(d, (h + 2 * g) * e, **norm, **common),
            "output": te.Linear(h * e, d, **common),
            "mlp": mlp,
        }
        self.fused_qkv, self.fused_output, self.fused_mlp = (
            FusedModule(te, made[name], weights[name], recipe_of(name)) for name in FUSED
        )
        if non_gemm.attention == "transformer_engine":
            self.__dict__["_attention"] = te.DotProductAttention(
                num_attention_heads=h, kv_channels=e, num_gqa_groups=g, qkv_format="bshd", attn_mask_type="causal"
            )

    def forward(self, x_btd: Tensor, cos_te: Tensor, sin_te: Tensor) -> Tensor:
        """x may be FP32 beside master weights; modules take and give BF16."""
        q, k, v = self.turn(self.fused_qkv(x_btd), cos_te, sin_te)
        x_btd = x_btd + self.fused_output(self.mix(q, k, v))
        return x_btd + self.fused_mlp(x_btd)  # type: ignore[no-any-return]

    def turn(self, qkv_btc: Tensor, cos_te: Tensor, sin_te: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, [b, t, h or g, e]; q and k rotated."""
        if self.non_gemm.rotation == "torch":
            return split_and_rotate(qkv_btc, cos_te, sin_te, self.heads)
        if self.non_gemm.rotation == "compiled":
            turned: tuple[Tensor, Tensor, Tensor] = _compiled_rotation()(qkv_btc, cos_te, sin_te, self.heads)
            return turned
        from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb

        h, g, e = self.heads
        b, t, _ = qkv_btc.shape
        q, k, v = torch.split(qkv_btc, [h * e, g * e, g * e], dim=-1)
        # Its kernel takes angles, not their cosines.
        angles_t11e = torch.atan2(sin_te[:t].double(), cos_te[:t].double()).float()[:, None, None]
        q, k = (apply_rotary_pos_emb(x.view(b, t, -1, e), angles_t11e, tensor_format="bshd", fused=True) for x in (q, k))
        return q, k, v.reshape(b, t, g, e).contiguous()

    def mix(self, q_bthe: Tensor, k_btge: Tensor, v_btge: Tensor) -> Tensor:
        """Causal attention, [b, t, h · e]."""
        b, t = q_bthe.shape[:2]
        if self.non_gemm.attention == "torch":
            return attend(q_bthe, k_btge, v_btge, self.repeat_kv).reshape(b, t, -1)
        mixed: Tensor = self.__dict__["_attention"](q_bthe, k_btge, v_btge)
        return mixed.reshape(b, t, -1)


class FusedLayer(_Fused, PackedLayer):
    """A decoder layer that shares the packed layer's parameters and runs in Transformer Engine's modules."""

    def __init__(self, source: PackedLayer, te: ModuleType, recipe_of: RecipeOf, non_gemm: NonGemm) -> None:
        nn.Module.__init__(self)
        self.settings, self.epsilon, self.repeat_kv = source.settings, source.epsilon, source.repeat_kv
        self.attention_norm, self.mlp_norm = source.attention_norm, source.mlp_norm
        self.qkv, self.output, self.gate_up, self.down = source.qkv, source.output, source.gate_up, source.down
        qkv, output, gate_up, down = (weight_of(each) for each in (self.qkv, self.output, self.gate_up, self.down))
        weights = {
            "qkv": _as_they_are({"layer_norm_weight": self.attention_norm, "weight": qkv}, (qkv,)),
            "output": _as_they_are({"weight": output}, (output,)),
            "mlp": _as_they_are(
                {"layer_norm_weight": self.mlp_norm, "fc1_weight": gate_up, "fc2_weight": down}, (gate_up, down), 2
            ),
        }
        self.fuse(te, source.settings, weights, recipe_of, non_gemm)


def _as_they_are(given: Mapping[str, nn.Parameter], parameters: tuple[nn.Parameter, ...], matrices: int = 1) -> Weights:
    return Weights(lambda: given, parameters, matrices)


class FusedDecoderLayer(_Fused, DecoderLayer):
    """In the place of a `DecoderLayer`, with its parameters under its names. Matrices that fused modules hold as one are put
    together in each pass: a copy of the weights each time, which `FusedLlama` saves.
    """

    def __init__(self, source: DecoderLayer, settings: LlamaModel, te: ModuleType, recipe_of: RecipeOf) -> None:
        nn.Module.__init__(self)
        self.attention_norm, self.mlp_norm = source.attention_norm, source.mlp_norm
        self.attention, self.mlp = source.attention, source.mlp
        self.repeat_kv = False
        attention, mlp = self.attention, self.mlp
        joined = (attention.query.weight, attention.key.weight, attention.value.weight)
        gate, up, down, output = mlp.gate.weight, mlp.up.weight, mlp.down.weight, attention.output.weight
        weights = {
            "qkv": Weights(
                lambda: {"layer_norm_weight": _norm_weight(self.attention_norm), "weight": torch.cat(joined)},
                joined,
                reads="attention_norm",
                writes=FUSED["qkv"],
            ),
            "output": Weights(lambda: {"weight": output}, (output,), reads="attention.output", writes=FUSED["output"]),
            "mlp": Weights(
                lambda: {
                    "layer_norm_weight": _norm_weight(self.mlp_norm),
                    "fc1_weight": torch.cat((gate, up)),
                    "fc2_weight": down,
                },
                (gate, up, down),
                matrices=2,
                reads="mlp_norm",
                writes=("mlp.down",),
            ),
        }
        self.fuse(te, settings, weights, recipe_of, NonGemm(rotation="torch"))


def _norm_weight(norm: RMSNorm) -> nn.Parameter:
    return norm.weight


class FusedLlama(PackedLlama):
    """The packed model's parameters, the same objects, run by Transformer Engine.

    fused_head: the last norm and lm_head as one module too, where its recipe or the plan wants that.
    """

    def __init__(
        self, source: PackedLlama, te: ModuleType, recipe_of: RecipeOf, *, fuse_head: bool, non_gemm: NonGemm | None = None
    ) -> None:
        nn.Module.__init__(self)
        self.settings, self.sequence_length = source.settings, source.sequence_length
        self.embedding, self.norm, self.lm_head = source.embedding, source.norm, source.lm_head

        def layer(number: int, each: nn.Module) -> FusedLayer:
            assert isinstance(each, PackedLayer)
            return FusedLayer(each, te, lambda name: recipe_of(f"layers.{number}.{name}"), non_gemm or NonGemm())

        self.layers = nn.ModuleList(layer(number, each) for number, each in enumerate(source.layers))
        for name in ("cos_te", "sin_te"):
            self.register_buffer(name, getattr(source, name), persistent=False)
        self.fused_head = self._head(te, recipe_of("lm_head")) if fuse_head else None

    def _head(self, te: ModuleType, recipe: ModuleRecipe) -> FusedModule:
        weight = weight_of(self.lm_head)
        inner = te.LayerNormLinear(
            weight.shape[1],
            weight.shape[0],
            eps=self.settings.norm_epsilon,
            normalization="RMSNorm",
            bias=False,
            params_dtype=weight.dtype,
            device=weight.device,
            init_method=nn.init.zeros_,
        )
        given = {"layer_norm_weight": self.norm, "weight": weight}
        return FusedModule(te, inner, _as_they_are(given, (weight,)), recipe)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        with self.around_pass():
            x_btd = self.hidden(tokens_bt)
            if self.fused_head is not None:
                logits: Tensor = self.fused_head(x_btd)
                return logits
            return self._plain_head(x_btd)

    def _plain_head(self, x_btd: Tensor) -> Tensor:
        weight = self.lm_head.weight
        if weight.dtype == torch.bfloat16:
            return project(x_btd, self.norm, weight, self.settings.norm_epsilon)
        # Master weights: the product in BF16, as every linear layer's.
        normed = F.rms_norm(x_btd, (x_btd.shape[-1],), self.norm, self.settings.norm_epsilon)
        return F.linear(normed.to(torch.bfloat16), weight.to(torch.bfloat16))


def fused_modules(model: nn.Module) -> list[FusedModule]:
    return [module for module in model.modules() if isinstance(module, FusedModule)]


def _compiled_rotation() -> Callable[..., Any]:
    global _rotation
    if _rotation is None:
        _rotation = torch.compile(split_and_rotate, fullgraph=True, dynamic=False)
    return _rotation


_rotation: Callable[..., Any] | None = None
