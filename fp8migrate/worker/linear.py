"""The linear layer of every backend: a high-precision weight, GEMMs in BF16 or over quantised operands.

y = x · wᵀ + b   forward          operands x, w
dx = dy · w      data gradient    operands dy, w
dw = dyᵀ · x     weight gradient  operands dy, x

The backward GEMMs take what the forward pass prepared of x and w. Shapes: t tokens, k in_features, n out_features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from fp8migrate.facts.operands import Gemm as GemmName
from fp8migrate.facts.operands import TensorName
from fp8migrate.worker.gemm import Gemm, gemm_for

# The dimension that each GEMM sums over, in the layout of x [t, k], w [n, k], dy [t, n].
CONTRACTION: dict[tuple[GemmName, TensorName], int] = {
    ("forward", "input"): 1,
    ("forward", "weight"): 1,
    ("data_gradient", "gradient"): 1,
    ("data_gradient", "weight"): 0,
    ("weight_gradient", "gradient"): 0,
    ("weight_gradient", "input"): 0,
}


class Prepared(NamedTuple):
    """An operand as `Gemm.matmul` takes it, and the factor that its product is multiplied by."""

    values: Tensor
    factor: Tensor | None = None


class _Products(torch.autograd.Function):
    """The three products over operands that the layer prepared; asks the layer to prepare dy (and the weight) in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x_tk: Tensor,
        weight_nk: Tensor,
        bias_n: Tensor | None,
        layer: "Linear",
        x: Prepared,
        w: Prepared,
        x_for_dw: Prepared | None,
        w_for_dx: Prepared | None,
    ) -> Tensor:
        ctx.layer, ctx.dtypes = layer, (x_tk.dtype, weight_nk.dtype)
        # Without a prepared weight the weight itself is kept: no memory of its own, and sharded weights can be freed meanwhile.
        kept_weight = weight_nk if w_for_dx is None and ctx.needs_input_grad[0] else None
        ctx.save_for_backward(*(x_for_dw or (None, None)), *(w_for_dx or (None, None)), kept_weight)
        with _without_autocast(x_tk.device):
            y = layer.gemm.matmul(x.values, w.values.t(), x.factor, w.factor, bias_n)
        wanted = layer.output_dtype(x_tk)
        # Compiled by torch 2.11, a cast that does nothing on the way out makes all gradients zero.
        return y if y.dtype == wanted else y.to(wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy_tn,) = gradients
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise RuntimeError("a low-precision linear layer has no second derivative: backward with create_graph=False")
        layer: Linear = ctx.layer
        x_values, x_factor, w_values, w_factor, weight_nk = ctx.saved_tensors
        needs_dx, needs_dw, needs_db = ctx.needs_input_grad[:3]
        dx = dw = db = None
        with _without_autocast(dy_tn.device):
            dy_for_dx, dy_for_dw = layer.prepare_gradient(dy_tn, needs_dx, needs_dw)
            if dy_for_dx is not None:
                w = Prepared(w_values, w_factor) if weight_nk is None else layer.prepare("data_gradient", "weight", weight_nk)
                dx = layer.gemm.matmul(dy_for_dx.values, w.values, dy_for_dx.factor, w.factor).to(ctx.dtypes[0])
            if dy_for_dw is not None:
                dw = layer.gemm.matmul(dy_for_dw.values.t(), x_values, dy_for_dw.factor, x_factor).to(ctx.dtypes[1])
            if needs_db:
                db = dy_tn.sum(0, dtype=torch.float32).to(ctx.dtypes[1])
        return dx, dw, db, None, None, None, None, None


@dataclass
class _StepsTaken:
    """Optimizer steps in this process. torch's fused optimizers change weights without moving their versions on."""

    count: int = 0

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.count += 1


_steps_taken = _StepsTaken()
register_optimizer_step_post_hook(_steps_taken)


def _without_autocast(device: torch.device) -> torch.autocast:
    """Operands have the dtype that they should have: autocast would round float32 products to BF16 before they are scaled."""
    return torch.autocast(device.type, enabled=False)


class Linear(nn.Module):
    """A linear layer with a weight [out, in] and perhaps a bias [out] whose GEMMs run in BF16.

    Copies of the weight in low precision are made once for each value that it takes, so once a step under gradient
    accumulation: its autograd version, its storage and the optimizer steps of this process tell. They are dropped when the
    parameter is exchanged, as FSDP2 does at each gather. Where the parameter is sharded or computed (parametrizations), in
    inference mode and when compiled none is kept, and the weight is quantised in each pass. What no sign tells of is a change
    in place through `weight.data`: use torch.no_grad() instead.
    """

    gemm: Gemm
    bias: nn.Parameter | None
    _weights: dict[GemmName, tuple[object, Prepared]]
    _sharded: bool

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=torch.float32))
        self.register_parameter("bias", None)
        self.gemm = gemm_for(self.weight.device)

    def __setattr__(self, name: str, value: Any) -> None:
        """FSDP2 gathers weights into a new parameter's storage without moving its version on: exchanging it must be noticed."""
        super().__setattr__(name, value)
        if name == "weight":
            self.__dict__["_weights"] = {}
            # By name: importing it takes longer than a small job.
            self.__dict__["_sharded"] = self.__dict__.get("_sharded", False) or type(value).__name__ == "DTensor"

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: versions start anew there, and a copy of the weight would outlive its value."""
        return self.__dict__ | {"_weights": {}}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Linear":
        """Moved to another device, it multiplies as that device does."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._weights = {}
        self.gemm = gemm_for(self.weight.device)
        return self

    def output_dtype(self, x: Tensor) -> torch.dtype:
        """x's own; under autocast the dtype that it gives a linear layer."""
        kind = x.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype

    def prepare(self, gemm: GemmName, tensor: TensorName, values: Tensor) -> Prepared:
        """One tensor as one GEMM's operand. BF16 here; backends quantise."""
        return Prepared(self.gemm.operand(values))

    def same_operand(self, tensor: TensorName) -> bool:
        """Whether both GEMMs that take a tensor take the same copy of it."""
        return True

    def weight_state(self) -> object:
        """What, besides the weight, its copies depend on."""
        return None

    def _keeps_copies(self) -> bool:
        if torch.compiler.is_compiling() or self._sharded or torch.is_inference_mode_enabled():
            return False
        weight = self._parameters.get("weight")  # absent where it is computed anew at each look
        return weight is not None and not weight.is_inference()

    def prepare_weight(self, gemm: GemmName) -> Prepared:
        state = (self.weight._version, self.weight.data_ptr(), _steps_taken.count, self.weight_state())
        found = self._weights.get(gemm)
        if found is None or found[0] != state:
            found = self._weights[gemm] = (state, self.prepare(gemm, "weight", self.weight.detach()))
        return found[1]

    def prepare_gradient(self, dy_tn: Tensor, needs_dx: bool, needs_dw: bool) -> tuple[Prepared | None, Prepared | None]:
        """dy for the data gradient and for the weight gradient, where they are needed."""
        for_dx = self.prepare("data_gradient", "gradient", dy_tn) if needs_dx else None
        if for_dx is not None and self.same_operand("gradient"):
            return for_dx, for_dx if needs_dw else None
        return for_dx, self.prepare("weight_gradient", "gradient", dy_tn) if needs_dw else None

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., in] to [..., out], in x's dtype."""
        x_tk = x.reshape(-1, self.in_features)
        if x_tk.shape[0] == 0:  # an expert without tokens: there is nothing to quantise, and gradients are zero
            empty = F.linear(x_tk.to(self.weight.dtype), self.weight, self.bias).to(self.output_dtype(x))
            return empty.view(*x.shape[:-1], self.out_features)
        learning = torch.is_grad_enabled()
        keeps_copies = self._keeps_copies()
        with torch.no_grad():
            x_low = self.prepare("forward", "input", x_tk.detach())
            x_for_dw = w_for_dx = None
            if learning and self.weight.requires_grad:
                same = self.same_operand("input")
                x_for_dw = x_low if same else self.prepare("weight_gradient", "input", x_tk.detach())
            if not keeps_copies:
                w_low = self.prepare("forward", "weight", self.weight.detach())
            else:
                w_low = self.prepare_weight("forward")
                if learning and x_tk.requires_grad:
                    w_for_dx = w_low if self.same_operand("weight") else self.prepare_weight("data_gradient")
        apply: Callable[..., Tensor] = _Products.apply
        y = apply(x_tk, self.weight, self.bias, self, x_low, w_low, x_for_dw, w_for_dx)
        # Not a view: FSDP2 hangs its hooks on a layer's output, and a view would lose them to an in-place operation.
        return y if x.ndim == 2 else torch.ops.aten._unsafe_view(y, (*x.shape[:-1], self.out_features))
