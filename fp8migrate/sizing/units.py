"""The matrices that really multiply: every linear layer by itself, or those that read the same tensor as one."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fp8migrate.sizing.flops import GemmSite

# linear: a matrix for each linear layer. packed: query, key and value are one, gate and up are one. fused: packed, and a
# feed-forward is one module, in FP8 as a whole or not at all.
Layout = Literal["linear", "packed", "fused"]

# What the arms of `measure` multiply: Transformer Engine's from fused modules, torchao's from packed matrices.
LAYOUTS: Mapping[str, Layout] = {"transformer_engine": "fused", "torchao": "packed"}
PACKED: Mapping[str, tuple[str, ...]] = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "attention.output": ("attention.output",),
    "mlp.gate_up": ("mlp.gate", "mlp.up"),
    "mlp.down": ("mlp.down",),
}
MLP = ("mlp.gate", "mlp.up", "mlp.down")
_LAYER = re.compile(r"^layers\.(\d+)\.")


@dataclass(frozen=True)
class Unit:
    """One matrix. sites: the linear layers that it holds. together: those that must be in FP8 for it to be (sites included)."""

    name: str
    out_features: int
    in_features: int
    sites: tuple[str, ...]
    together: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """The same matrix in every decoder layer: `layers.*.attention.qkv`."""
        return pattern_of(self.name)


def pattern_of(name: str) -> str:
    """`layers.3.mlp.up` as `layers.*.mlp.up`; names outside the decoder layers as they are."""
    return _LAYER.sub("layers.*.", name)


def layer_and_leaf(name: str) -> tuple[int | None, str]:
    """`layers.3.mlp.up` as 3 and `mlp.up`; names outside the decoder layers as None and themselves."""
    found = _LAYER.match(name)
    return (int(found[1]), name[found.end() :]) if found else (None, name)


def units(sites: Sequence[GemmSite], layout: Layout) -> tuple[Unit, ...]:
    """Every matrix of the model, in the order of its first layer in `sites`."""
    linear = {site.name: site for site in sites if site.is_linear}
    if layout == "linear":
        return tuple(Unit(name, site.out_features, site.in_features, (name,), (name,)) for name, site in linear.items())
    found: dict[str, Unit] = {}
    for name in linear:
        unit = _holding(name, linear, layout)
        found.setdefault(unit.name, unit)
    return tuple(found.values())


def _holding(name: str, linear: Mapping[str, GemmSite], layout: Layout) -> Unit:
    prefix = found[0] if (found := _LAYER.match(name)) else ""
    leaf = name.removeprefix(prefix)
    group = next((group for group, leaves in PACKED.items() if prefix and leaf in leaves), None)
    if group is None:
        return Unit(name, linear[name].out_features, linear[name].in_features, (name,), (name,))
    members = tuple(prefix + each for each in PACKED[group])
    together = tuple(prefix + each for each in MLP) if layout == "fused" and leaf in MLP else members
    rows = sum(linear[each].out_features for each in members)
    return Unit(prefix + group, rows, linear[members[0]].in_features, members, together)
