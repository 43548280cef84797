"""Arms that `measure` is asked for, by --recipe and --arm. A recipe's arm has the name of its row in the table of recipes."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from fp8migrate.engine.measure import arm_of, default_arms, why_unmeasured
from fp8migrate.engine.preflight import preflight
from fp8migrate.engine.recipes import Variant, parse_variant, with_variant
from fp8migrate.errors import UsageError
from fp8migrate.facts.backends import BackendName
from fp8migrate.jobs import MeasuredArm
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.plan.schema import Plan


def wanted_arms(loaded: LoadedPlan, recipes: Sequence[str], names: Sequence[str]) -> tuple[MeasuredArm, ...]:
    """With recipes: BF16, one arm each, then those named. Without: those named, or the default.

    Raises UsageError, PlanError: every one is checked before anything is measured.
    """
    plan = loaded.plan
    if not recipes:
        return tuple(arm_of(plan, name) for name in names or default_arms(plan))
    variants = [parse_variant(text, plan) for text in recipes]
    arms = [arm_of(plan, "baseline"), *(_arm(loaded, each) for each in variants), *(arm_of(plan, name) for name in names)]
    return tuple({arm.name: arm for arm in arms}.values())  # one of each name: results go by names


def _arm(loaded: LoadedPlan, variant: Variant) -> MeasuredArm:
    own = with_variant(loaded, variant)
    if why := why_unmeasured(own.plan):
        raise UsageError(f"{variant.written}: {why}", where="--recipe", next_step=_instead(loaded.plan, own.plan, variant))
    preflight(own)
    return arm_of(own.plan, "candidate").model_copy(update={"name": variant.name})


def _instead(plan: Plan, own: Plan, variant: Variant) -> str:
    """What to ask for in the place of a variant that is not measured: first of all the recipe on the plan's own backend.

    own: the plan with the variant.
    """
    libraries: tuple[BackendName | None, ...] = (None, "transformer_engine", "torchao")
    for library in libraries:
        candidate = own.candidate.model_copy(update={"backend": library or plan.candidate.backend})
        if not why_unmeasured(own.model_copy(update={"candidate": candidate})):
            return f"Say --recipe {shlex.quote(replace(variant, backend=library).written)}, or leave it out."
    return "Leave it out: no library whose speed is measured has it."
