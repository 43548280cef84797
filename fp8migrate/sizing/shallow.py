"""The time of a whole model from shallow ones: the same layers, a few deep, timed for a second or two.

Time grows by the same amount with each further layer of one kind, for a pass goes through them one by one. So the step of a
model that fits on no single GPU can be foretold, and unlike the sum of single layers it has in it what lies between the
matrices: casts that a norm or SwiGLU does on the way, attention, launches, and the clock that falls under lasting work.
"""

from collections.abc import Iterable, Mapping
from statistics import mean

from fp8migrate.sizing.break_even import BF16_ARM, DepthTime
from fp8migrate.sizing.flops import GemmSite
from fp8migrate.sizing.policy import Policy
from fp8migrate.sizing.units import layer_and_leaf

_SHALLOW, _DEEPER = 1, 5


def depths_of(num_layers: int) -> tuple[int, ...]:
    """How many layers the timed models have."""
    return tuple(dict.fromkeys((_SHALLOW, min(_DEEPER, num_layers))))


def layer_kinds(policy: Policy) -> dict[int, int]:
    """Decoder layers that differ in what runs in FP8: the first of each kind, and how many of it there are."""
    of_layer: dict[int, list[object]] = {}
    for name, site in policy.sites.items():
        number, leaf = layer_and_leaf(name)
        if number is not None:
            of_layer.setdefault(number, []).append((leaf, site.recipes, site.padding))
    kinds: dict[int, int] = {}
    for number, content in of_layer.items():
        like = next((first for first in kinds if of_layer[first] == content), number)
        kinds[like] = kinds.get(like, 0) + 1
    return kinds


def shallow_policy(policy: Policy, like: int, sites: Iterable[GemmSite]) -> Policy:
    """Of a shallow model with these sites, each of whose layers has what layer `like` has."""
    found = {}
    for site in sites:
        number, leaf = layer_and_leaf(site.name)
        found[site.name] = policy.sites[site.name if number is None else f"layers.{like}.{leaf}"]
    return Policy(found)


def whole_seconds(times: Iterable[DepthTime], arm: str, kinds: Mapping[int, int]) -> float | None:
    """Forward and backward of the whole model. None where a time is missing."""
    table = {(each.like, each.depth): each.seconds for each in times if each.arm == arm}
    depths = sorted({depth for _, depth in table})
    if not depths or any((like, depth) not in table for like in kinds for depth in depths_of(sum(kinds.values()))):
        return None
    first, last = depths[0], depths[-1]
    layers, rest = 0.0, []
    for like, count in kinds.items():
        a_layer = (table[like, last] - table[like, first]) / (last - first) if last > first else 0.0
        layers += count * a_layer
        rest.append(table[like, first] - first * a_layer)
    return mean(rest) + layers


def saved_seconds(times: Iterable[DepthTime], arm: str, kinds: Mapping[int, int]) -> float | None:
    """What an arm's forward and backward take less than BF16's; None where a time is missing."""
    times = list(times)
    bf16 = whole_seconds(times, BF16_ARM, {0: sum(kinds.values())})
    own = whole_seconds(times, arm, kinds)
    return None if bf16 is None or own is None else bf16 - own
