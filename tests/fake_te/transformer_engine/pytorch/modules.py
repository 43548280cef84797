"""Linear layers with and without a norm before them."""

import torch
import torch.nn.functional as F
from torch import nn

from transformer_engine.common.recipe import DelayedScaling
from transformer_engine.pytorch.distributed import Phase, scales_of_the_first_pass
from transformer_engine.pytorch.quantization import FP8GlobalStateManager, ScalingState


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.fp8, self.fp8_initialized, self.fp8_meta, self.activation_dtype = False, False, {}, None

    def init_fp8_metadata(self, num_gemms=1):
        self.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        if not self.fp8 or self.fp8_initialized:
            return
        recipe = FP8GlobalStateManager.get_fp8_recipe()
        self.fp8_initialized = True
        for name, tensors in (("scaling_fwd", 3), ("scaling_bwd", 2)):
            delayed = isinstance(recipe, DelayedScaling)
            self.fp8_meta[name] = ScalingState(tensors * num_gemms, recipe.amax_history_len) if delayed else object()

    def prepare(self, x, gemms):
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            self.activation_dtype = torch.bfloat16
        else:
            for name, parameter in self.named_parameters():
                if parameter.dtype != x.dtype:
                    raise TypeError(f"input {x.dtype}, {name} {parameter.dtype}")
            self.activation_dtype = x.dtype
        if not (self.fp8 and Phase.second):
            self.init_fp8_metadata(gemms)
        return x

    def norm(self, x):
        return F.rms_norm(x.to(self.activation_dtype), x.shape[-1:], self.layer_norm_weight.to(self.activation_dtype), self.eps)

    def product(self, x, weight, slot):
        x, weight = x.to(self.activation_dtype), weight.to(self.activation_dtype)
        return F.linear(self.rounded(x, 3 * slot), self.rounded(weight, 3 * slot + 1))

    def rounded(self, x, slot):
        """Through E4M3, the gradient as if it had not been."""
        if not self.fp8:
            return x
        state = self.fp8_meta["scaling_fwd"]
        amax = x.detach().abs().max().float()
        if isinstance(state, ScalingState):
            scale = state.scale[slot].clone()
            state.amax_history[0, slot] = torch.maximum(state.amax_history[0, slot], amax)
        else:
            scale = 448.0 / amax
        low = ((x.detach().float() * scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() / scale).to(x.dtype)
        return x + (low - x).detach()


class Linear(Base):
    def __init__(self, in_features, out_features, bias=True, init_method=None, params_dtype=None, device="cuda", name=None):
        super().__init__()
        assert not bias
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=params_dtype, device=device))
        init_method(self.weight)

    def forward(self, inp, is_first_microbatch=None, fp8_output=False, fp8_grad=False):
        inp = self.prepare(inp, 1)
        with scales_of_the_first_pass(self):
            return self.product(inp, self.weight, 0)


class LayerNormLinear(Base):
    def __init__(
        self,
        in_features,
        out_features,
        eps=1e-5,
        init_method=None,
        bias=True,
        normalization="LayerNorm",
        params_dtype=None,
        device="cuda",
        name=None,
    ):
        super().__init__()
        assert not bias
        assert normalization == "RMSNorm"
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(in_features, dtype=params_dtype, device=device))
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=params_dtype, device=device))
        init_method(self.weight)

    def forward(self, inp, is_first_microbatch=None, fp8_output=False, fp8_grad=False):
        return self.product(self.norm(self.prepare(inp, 1)), self.weight, 0)


class LayerNormMLP(Base):
    def __init__(
        self,
        hidden_size,
        ffn_hidden_size,
        eps=1e-5,
        init_method=None,
        bias=True,
        normalization="LayerNorm",
        activation="gelu",
        output_layer_init_method=None,
        params_dtype=None,
        device="cuda",
        name=None,
    ):
        super().__init__()
        assert not bias
        assert (normalization, activation) == ("RMSNorm", "swiglu")
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(hidden_size, dtype=params_dtype, device=device))
        self.fc1_weight = nn.Parameter(torch.empty(2 * ffn_hidden_size, hidden_size, dtype=params_dtype, device=device))
        self.fc2_weight = nn.Parameter(torch.empty(hidden_size, ffn_hidden_size, dtype=params_dtype, device=device))
        init_method(self.fc1_weight)
        output_layer_init_method(self.fc2_weight)

    def forward(self, inp, is_first_microbatch=None):
        gate, up = self.product(self.norm(self.prepare(inp, 2)), self.fc1_weight, 0).chunk(2, dim=-1)
        return self.product(F.silu(gate) * up, self.fc2_weight, 1)
