"""Layers whose shape FP8 GEMMs do not take, and what the plan does with them: told before anything runs."""

import re
from collections.abc import Mapping, Sequence

from fp8migrate.plan.schema import LlamaModel, OddShapes, Plan
from fp8migrate.plan.shrink import shrink
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.planned import planned_policy

_NUMBER = re.compile(r"^layers\.\d+\.")


def kept_for_shape(plan: Plan, model: LlamaModel) -> dict[str, str]:
    """Layers that padding would bring into FP8, and what is wrong with their shape."""
    choices: tuple[OddShapes, ...] = ("keep", "pad")
    kept, padded = (planned_policy(plan, model, odd_shapes=choice).kept for choice in choices)
    return {name: why.partition(": ")[0] for name, why in kept.items() if name not in padded}


def odd_shape_lines(plan: Plan) -> list[str]:
    """One line for each model that the plan trains and that has such layers: which, why, and what is done with them."""
    small = shrink(plan.model, plan.phases.small_scale.shrink)
    models = {"the model": plan.model}
    if small != plan.model:
        models["the shrunk model"] = small
    return [line for words, model in models.items() if (line := _line(plan, model, words))]


def _line(plan: Plan, model: LlamaModel, words: str) -> str:
    linear = sum(site.is_linear for site in gemm_sites(model, plan.training.sequence_length))
    if plan.candidate.odd_shapes == "keep":
        kept = kept_for_shape(plan, model)
        done = f"{len(kept)} of {linear} linear layers of {words} stay in BF16 for their shape"
        rest = "candidate.odd_shapes: pad runs them in FP8, padded with zeros."
        return f"{done}: {_grouped(kept)}. {rest}" if kept else ""
    sites = planned_policy(plan, model, odd_shapes="pad").sites
    padded = {name: site.reason.rpartition("padded: ")[2] for name, site in sites.items() if site.padding and site.recipes}
    done = f"{len(padded)} of {linear} linear layers of {words} run in FP8 padded with zeros"
    return f"{done}: {_grouped(padded)}." if padded else ""


def _grouped(layers: Mapping[str, str]) -> str:
    """`layers.*.mlp.gate, layers.*.mlp.up (out_features 250 …); layers.*.mlp.down (in_features 250 …)`."""
    by_reason: dict[str, dict[str, None]] = {}
    for name, why in layers.items():
        by_reason.setdefault(why, {})[_NUMBER.sub("layers.*.", name)] = None
    return "; ".join(f"{', '.join(_names(list(names)))} ({why})" for why, names in by_reason.items())


def _names(names: Sequence[str]) -> Sequence[str]:
    return names if len(names) <= 7 else [*names[:6], f"{len(names) - 6} more"]
