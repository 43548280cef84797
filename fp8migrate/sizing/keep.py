"""Layers that stay in BF16 for their size, or because the advisor says so: by name, for the plan's model and for a shrunk one.

Both are decided on the plan's own model. In a shrunk one every layer is smaller, and what was judged has other numbers: a layer
there stands for the one at the same relative depth of the plan's model, and is kept where that one is.
"""

from collections.abc import Sequence

from fp8migrate.plan.schema import Candidate, LlamaModel
from fp8migrate.sizing.flops import GemmSite, gemm_sites

# Layers by name, and why each is kept.
Kept = tuple[tuple[str, str], ...]

_ADVISED = "advised: "


def kept_layers(candidate: Candidate, own: LlamaModel, model: LlamaModel, advised: Kept = ()) -> Kept:
    """Layers of `model` that the candidate keeps for their size or on advice. own: the plan's model, of which both are said."""
    if candidate.keep_smaller_than is None and not advised:
        return ()
    whose = "" if model == own else " in the plan's model"
    small = {name: f"{why}{whose}" for name, why in _small(_linear(own), candidate.keep_smaller_than)}
    unfit = dict(advised)
    found = []
    for name, counterpart in counterparts(model, own):
        if counterpart in small:
            found.append((name, small[counterpart]))
        elif counterpart in unfit:
            of = "" if name == counterpart else f", of {counterpart} in the plan's model"
            found.append((name, f"{_ADVISED}{unfit[counterpart]}{of}"))
    return tuple(found)


def advised_names(kept: Kept) -> tuple[str, ...]:
    """Of kept layers those that the advisor chose."""
    return tuple(name for name, why in kept if why.startswith(_ADVISED))


def counterparts(model: LlamaModel, own: LlamaModel) -> Sequence[tuple[str, str]]:
    """Every linear layer of `model`, and that of the plan's own model which it stands for: first for first, last for last."""
    deepest, own_deepest = model.num_layers - 1, own.num_layers - 1
    found = []
    for site in _linear(model):
        head, *rest = site.name.split(".", 2)
        if head == "layers":
            number = round(int(rest[0]) * own_deepest / deepest) if deepest else 0
            found.append((site.name, f"layers.{number}.{rest[1]}"))
        else:
            found.append((site.name, site.name))
    return found


def _small(sites: Sequence[GemmSite], smaller_than: int | None) -> Kept:
    if smaller_than is None:
        return ()
    return tuple(
        (site.name, f"keep_smaller_than {smaller_than}: {site.out_features} × {site.in_features} weights")
        for site in sites
        if site.out_features * site.in_features < smaller_than
    )


def _linear(model: LlamaModel) -> list[GemmSite]:
    # Shapes of linear layers do not depend on the length of sequences.
    return [site for site in gemm_sites(model, 1) if site.is_linear]
