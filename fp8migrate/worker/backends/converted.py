"""What the linear layer of every FP8 backend offers to tasks, whatever executes its GEMMs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager

from torch import nn

from fp8migrate.facts.operands import Gemm
from fp8migrate.facts.recipes import Recipe
from fp8migrate.worker.gemm import gemm_for
from fp8migrate.worker.linear import Linear


class Converted(nn.Module, ABC):
    """A module some of whose GEMMs run in low precision while `enabled`, over its source's own parameters.

    first_microbatch: of an optimizer step with several micro-batches, whether this is the first; None: no copy of the weight
    may outlive the pass. tensors_quantized: so far, as far as this process can tell: the proof that low precision ran.
    """

    enabled: bool
    first_microbatch: bool | None = None

    @property
    @abstractmethod
    def low_precision_gemms(self) -> frozenset[Gemm]:
        """Of each linear layer inside."""

    @property
    @abstractmethod
    def gemm_weights(self) -> tuple[nn.Parameter, ...]:
        """Of its linear layers."""

    @property
    def matrices(self) -> int:
        """Linear layers inside, as GEMMs see them: query, key and value may be one."""
        return 1

    @property
    @abstractmethod
    def tensors_quantized(self) -> int: ...

    @property
    def ran_without(self) -> bool:
        """Whether low precision was asked of a pass that then ran without it, as far as this process can tell."""
        return False

    @abstractmethod
    def leaving_no_trace(self) -> AbstractContextManager[None]:
        """What is seen meanwhile does not enter the module's scaling state."""


class ConvertedLinear(Linear, Converted):
    """A linear layer in the place of another, with its parameters."""

    @property
    def gemm_weights(self) -> tuple[nn.Parameter, ...]:
        assert isinstance(self.weight, nn.Parameter)
        return (self.weight,)

    def adopt(self, source: Linear | nn.Linear) -> None:
        """Take over sizes and parameters, the same objects. In place of Linear.__init__, which would allocate a weight."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = source.in_features, source.out_features
        weight, bias = source.weight, source.bias
        assert isinstance(weight, nn.Parameter)
        assert bias is None or isinstance(bias, nn.Parameter)
        self.weight = weight
        self.register_parameter("bias", bias)
        self.gemm = gemm_for(weight.device)
        self.enabled = True


def converted_modules(model: nn.Module) -> dict[str, Converted]:
    """By name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Converted)}


def converted_layers(model: nn.Module) -> list[Converted]:
    return list(converted_modules(model).values())


def tensors_quantized(model: nn.Module) -> int:
    """Tensors quantised so far."""
    return sum(layer.tensors_quantized for layer in converted_layers(model))


def layers_without_fp8(model: nn.Module) -> tuple[str, ...]:
    """Names of layers that were to be in low precision, and of which a pass, or every pass, was not. None before the first."""
    found = [(name, layer) for name, layer in converted_modules(model).items() if layer.low_precision_gemms]
    if not any(layer.tensors_quantized or layer.ran_without for _, layer in found):
        return ()
    return tuple(name for name, layer in found if layer.ran_without or not layer.tensors_quantized)


@contextmanager
def leaving_no_trace(model: nn.Module) -> Iterator[None]:
    """Scaling state of no layer takes in what is seen meanwhile: an evaluation leaves no trace in training."""
    with ExitStack() as stack:
        for layer in converted_layers(model):
            stack.enter_context(layer.leaving_no_trace())
        yield


@contextmanager
def forward_mode(model: nn.Module, fp8: bool) -> Iterator[None]:
    """Evaluate with the converted layers in FP8 or in BF16, without a trace."""
    layers = converted_layers(model)
    before = [(layer.enabled, layer.first_microbatch) for layer in layers]
    try:
        for layer in layers:
            layer.enabled, layer.first_microbatch = fp8, None
        with leaving_no_trace(model):
            yield
    finally:
        for layer, (enabled, first) in zip(layers, before, strict=True):
            layer.enabled, layer.first_microbatch = enabled, first


def begin_microbatch(model: nn.Module, number: int, of: int) -> None:
    """Tell the layers which micro-batch of an optimizer step comes: low-precision copies of weights last for the step."""
    for layer in converted_layers(model):
        layer.first_microbatch = None if of == 1 else number == 0


# A layer with the source's parameters whose GEMMs have these recipes; none: the backend's module with FP8 off.
MakeLayer = Callable[[Linear | nn.Linear, Mapping[Gemm, Recipe], str], ConvertedLinear]


def exchange(model: nn.Module, name: str, make: MakeLayer, recipes: Mapping[Gemm, Recipe]) -> ConvertedLinear:
    """Put a converted layer in the place of the linear layer `name`, with its parameters."""
    parent, _, leaf = name.rpartition(".")
    source = model.get_submodule(name)
    assert isinstance(source, Linear | nn.Linear)
    layer = make(source, recipes, name)
    setattr(model.get_submodule(parent), leaf, layer)
    return layer
