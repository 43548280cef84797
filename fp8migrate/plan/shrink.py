"""A smaller model of the same shape, and the learning rate it is trained at.

What is divided is the parameters of the decoder layers' linear maps: they do the work that moves to FP8, while the vocabulary's
two matrices do not shrink with depth and would be most of a small model with 128256 tokens. Depth and width shrink by the same
ratio, the cube root of the factor, so hidden_size / num_layers stays; head size, query heads per key-value head and
ffn_hidden_size / hidden_size stay where whole numbers allow, and every GEMM dimension is a multiple of 16.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log

from fp8migrate.errors import PlanError
from fp8migrate.plan.schema import LearningRateRule, LlamaModel, Training

ALIGNMENT = 16

# A shrunk model's layer parameters are within this of the target, or the model is refused.
TOLERANCE = 0.10
# Its hidden_size / num_layers is within this factor of the original's, or it is no longer the same shape.
MAX_ASPECT_CHANGE = 3.0

# What a departure costs, per unit of the logarithm of its ratio, and for other heads than the original's once more: within the
# tolerance, what attention and feed-forward are made of is kept before the size is met exactly.
_SIZE, _HEADS, _FFN, _ASPECT, _OTHER_HEADS = 5.0, 3.0, 8.0, 1.0, 0.5

# Above this rate small byte-level models get worse: of 2, 4 and 8e-3, hidden size 48 was best at 4e-3 (measured).
MAX_LEARNING_RATE = 4e-3


@dataclass(frozen=True)
class _Shape:
    """The sizes that are chosen; the numbers of heads follow from them."""

    num_layers: int
    hidden_size: int
    head_size: int
    queries_per_kv: int
    ffn_hidden_size: int

    @property
    def layer_parameters(self) -> int:
        """Weights of the linear maps of all layers."""
        attention = 2 * self.hidden_size**2 * (1 + 1 / self.queries_per_kv)
        return self.num_layers * round(attention + 3 * self.hidden_size * self.ffn_hidden_size)


def layer_parameters(model: LlamaModel) -> int:
    """Weights of the decoder layers' linear maps: what `shrink` divides."""
    return _shape(model).layer_parameters


def shrink(model: LlamaModel, factor: float) -> LlamaModel:
    """The model with its layer parameters divided by `factor`, to within TOLERANCE; 1 returns it as it is.

    PlanError where no aligned model of that size has the shape.
    """
    if not 1 <= factor < inf:
        raise PlanError(f"expected a number ≥ 1, got {factor:g}", where="phases.small_scale.shrink")
    if factor == 1:
        return model
    shape = _shape(model)
    target = shape.layer_parameters / factor
    best = min(_candidates(shape, target), key=lambda found: _cost(found, shape, target), default=None)
    if best is None:
        raise PlanError(
            f"the layers hold {shape.layer_parameters:,} parameters; no model of this shape with sizes in multiples of "
            f"{ALIGNMENT} holds 1/{factor:g} of that, {target:,.0f}, to within {TOLERANCE:.0%}",
            where="phases.small_scale.shrink",
            next_step="Choose another factor; 1 runs the model as it is.",
        )
    num_heads = best.hidden_size // best.head_size
    sizes = {
        "num_layers": best.num_layers,
        "hidden_size": best.hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_heads // best.queries_per_kv,
        "ffn_hidden_size": best.ffn_hidden_size,
    }
    return LlamaModel.model_validate(model.model_dump() | sizes)


def shrunk_training(training: Training, big: LlamaModel, small: LlamaModel, rule: LearningRateRule) -> Training:
    """The plan's training for the shrunk model: only the learning rate may differ.

    inverse_width: Adam's rate for hidden matrices goes as 1 / width (Yang et al., µP, arXiv 2203.03466, table 8; the rates of
    the GPT-3 family, arXiv 2005.14165, table 2.1, fall as width^-0.8). It is raised to MAX_LEARNING_RATE at most.
    """
    return training.model_copy(update={"learning_rate": _learning_rate(training.learning_rate, big, small, rule)})


def learning_rate_sentence(training: Training, big: LlamaModel, small: LlamaModel, rule: LearningRateRule) -> str:
    """The rule and what it made of the plan's learning rate, in one sentence."""
    before, after = training.learning_rate, _learning_rate(training.learning_rate, big, small, rule)
    if rule == "keep":
        return f"Learning rate {before:g} as in the plan (rule keep)."
    widths = f"{big.hidden_size} / {small.hidden_size}"
    cap = f"{MAX_LEARNING_RATE:g}" if after > before else "the plan's own"
    capped = f", capped at {cap}" if after < before * big.hidden_size / small.hidden_size else ""
    return f"Learning rate {before:g} × {widths} (rule inverse_width{capped}) = {after:g}."


def _learning_rate(rate: float, big: LlamaModel, small: LlamaModel, rule: LearningRateRule) -> float:
    if rule == "keep":
        return rate
    return min(rate * big.hidden_size / small.hidden_size, max(rate, MAX_LEARNING_RATE))


def _shape(model: LlamaModel) -> _Shape:
    group = model.num_heads // model.num_kv_heads
    return _Shape(model.num_layers, model.hidden_size, model.head_size, group, model.ffn_hidden_size)


def _candidates(shape: _Shape, target: float) -> Iterator[_Shape]:
    """Aligned shapes within TOLERANCE of the target, none larger than the original in any dimension."""
    for hidden in range(ALIGNMENT, shape.hidden_size + 1, ALIGNMENT):
        ideal_ffn = hidden * shape.ffn_hidden_size / shape.hidden_size
        for head_size, group in _head_choices(hidden, shape):
            for ffn in _near_multiples(ideal_ffn, shape.ffn_hidden_size):
                below = int(target / _Shape(1, hidden, head_size, group, ffn).layer_parameters)
                for layers in (below, below + 1):
                    found = _Shape(layers, hidden, head_size, group, ffn)
                    if 1 <= layers <= shape.num_layers and _same_shape(found, shape, target):
                        yield found


def _same_shape(found: _Shape, shape: _Shape, target: float) -> bool:
    near = abs(found.layer_parameters / target - 1) <= TOLERANCE and found.layer_parameters <= shape.layer_parameters
    return near and 1 / MAX_ASPECT_CHANGE <= _aspect_change(found, shape) <= MAX_ASPECT_CHANGE


def _aspect_change(found: _Shape, shape: _Shape) -> float:
    return found.hidden_size * shape.num_layers / (found.num_layers * shape.hidden_size)


def _head_choices(hidden: int, shape: _Shape) -> Iterator[tuple[int, int]]:
    """(head size, queries per key-value head) that divide the width and leave key and value GEMMs aligned.

    Besides the original head size only multiples of 8 are tried, which fused attention kernels ask for.
    """
    for head_size in sorted({shape.head_size, *range(8, 2 * shape.head_size, 8)}):
        num_heads, rest = divmod(hidden, head_size)
        if rest:
            continue
        for group in range(1, shape.queries_per_kv + 1):
            if shape.queries_per_kv % group == 0 and num_heads % group == 0 and (hidden // group) % ALIGNMENT == 0:
                yield head_size, group


def _near_multiples(ideal: float, largest: int) -> list[int]:
    """The aligned sizes on both sides of an ideal one, none above `largest`; small models meet their size by more of them."""
    below = int(ideal // ALIGNMENT)
    more = 2 if ideal < 64 * ALIGNMENT else 0
    sizes = (ALIGNMENT * multiple for multiple in range(below - more, below + 2 + more))
    return [size for size in sizes if ALIGNMENT <= size <= largest]


def _cost(found: _Shape, shape: _Shape, target: float) -> float:
    """How far a shape is from the target and from the original's proportions."""
    heads = abs(log(found.head_size / shape.head_size)) + abs(log(found.queries_per_kv / shape.queries_per_kv))
    ffn = abs(log(found.ffn_hidden_size * shape.hidden_size / (found.hidden_size * shape.ffn_hidden_size)))
    aspect = abs(log(_aspect_change(found, shape)))
    size = abs(log(found.layer_parameters / target))
    return _SIZE * size + _HEADS * heads + (_OTHER_HEADS if heads else 0.0) + _FFN * ffn + _ASPECT * aspect
