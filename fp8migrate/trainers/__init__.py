"""Trainers: a task becomes a command line. One file a trainer; this registry is the only place that lists them."""

from collections.abc import Callable, Mapping

from fp8migrate.plan.schema import Plan
from fp8migrate.trainers.builtin import Builtin
from fp8migrate.trainers.schema import Trainer

TRAINERS: Mapping[str, Callable[[], Trainer]] = {"builtin": Builtin}


def trainer_for(plan: Plan) -> Trainer:
    """The trainer that the plan names."""
    return TRAINERS[plan.trainer.kind]()
