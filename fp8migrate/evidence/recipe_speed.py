"""What a speed measurement says of one recipe of a plan, and whether it is one of that plan at all."""

from dataclasses import dataclass

from fp8migrate.evidence.measurement import Measurement
from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel


@dataclass(frozen=True)
class RecipeSpeed:
    """One arm against BF16's. speedup: BF16's median step over its own; shares: of BF16's, None where one was not measured."""

    speedup: float
    backend: str
    peak_bytes: int | None
    peak_share: float | None
    energy_share: float | None


def foreign(found: Measurement, model: LlamaModel, sequence_length: int, micro_batch_size: int) -> str:
    """How the measured model and shape of a step differ from these: `num_layers 32, here 2`. Empty: they do not."""
    if found.model is None or found.sequence_length is None or found.micro_batch_size is None:
        return "it does not say of which model"
    theirs = _shape(found.model, found.sequence_length, found.micro_batch_size)
    ours = _shape(model, sequence_length, micro_batch_size)
    return ", ".join(f"{key} {theirs[key]}, here {value}" for key, value in ours.items() if theirs[key] != value)


def recipe_speed(found: Measurement, name: str, precision: Precision | None) -> RecipeSpeed | str:
    """The arm of a recipe by its name, or why it does not count, in words; an empty word: there is none.

    precision: what the arm must have been measured in. One of the same name with another keep_bf16, say, is another recipe's.
    """
    arm = next((each for each in found.arms if each.name == name), None)
    baseline = next((each for each in found.arms if each.precision is not None and each.precision.backend == "bf16"), None)
    if arm is None or precision is None:
        return "its measurement failed, measurement.md says why" if name in found.failed else ""
    if arm.precision is None or arm.precision != precision:
        return f"measured with other settings ({_differences(arm.precision, precision)})"
    if baseline is None or arm.speedup is None:
        return "measured without BF16 beside it"
    if not (arm.finite and baseline.finite):
        return "measured with losses that are not finite"
    return RecipeSpeed(
        arm.speedup,
        precision.backend,
        arm.peak_bytes,
        _share(arm.peak_bytes, baseline.peak_bytes),
        _share(arm.joules_per_token, baseline.joules_per_token),
    )


def _shape(model: LlamaModel, sequence_length: int, micro_batch_size: int) -> dict[str, object]:
    return model.model_dump() | {"sequence_length": sequence_length, "micro_batch_size": micro_batch_size}


def _differences(theirs: Precision | None, ours: Precision) -> str:
    if theirs is None:
        return "not on record"
    return ", ".join(key for key in Precision.model_fields if getattr(theirs, key) != getattr(ours, key))


def _share(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None
