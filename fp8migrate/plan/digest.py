"""The digest of a plan's meaning: what a report is bound to, and by which a changed plan is told from a reformatted one."""

import hashlib
from typing import Any

import orjson

from fp8migrate.plan.schema import Plan

# What changes no result: the name, how much may be spent, how many jobs run side by side and how long a silent one is
# waited for. The device and the threads per job stay in, for results depend on them.
_WITHOUT_EFFECT: dict[str, Any] = {"name": True, "budget": True, "launch": {"max_parallel", "stall_timeout_seconds"}}


def meaning(plan: Plan) -> dict[str, Any]:
    """Every effective setting as plain data, defaults filled in. Margins stand as the fractions that are applied."""
    settings = plan.model_dump(mode="json", exclude=_WITHOUT_EFFECT)
    parity = plan.parity
    serve_margin = parity.serve_margin_fraction if parity.serve == "fp8" else None
    settings["parity"] |= {"margin": parity.margin_fraction, "serve_margin": serve_margin}
    return settings


def plan_digest(plan: Plan) -> str:
    """SHA-256 (hex) of the plan's meaning: comments, order, and defaults left out or written out make no difference."""
    return hashlib.sha256(orjson.dumps(meaning(plan), option=orjson.OPT_SORT_KEYS)).hexdigest()
