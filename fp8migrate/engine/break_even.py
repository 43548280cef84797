"""Break-even beside a speed measurement: each linear shape in BF16 and FP8, and the step foretold beside the measured."""

from collections.abc import Sequence
from pathlib import Path

from fp8migrate.evidence.measurement import Measurement
from fp8migrate.jobs import MeasuredArm
from fp8migrate.plan.schema import Plan
from fp8migrate.records.files import replace_file
from fp8migrate.report.break_even import Told, render
from fp8migrate.sizing.break_even import BreakEven, BreakEvenRequest
from fp8migrate.sizing.flops import gemm_sites
from fp8migrate.sizing.policy import resolve_policy
from fp8migrate.sizing.speedup import losers, predict
from fp8migrate.sizing.units import LAYOUTS
from fp8migrate.trainers.builtin import break_even


def break_even_plan(plan: Plan, arms: Sequence[MeasuredArm], measured: Measurement, folder: Path, seconds: float) -> list[Told]:
    """Time the shapes of every FP8 arm that has no lever of its own, and write break_even-<backend>.json and .md.

    measured: of the same arms, in the same session. Raises UsageError, InfrastructureError.
    """
    told: list[Told] = []
    for backend, layout in LAYOUTS.items():
        wanted = [
            arm
            for arm in arms
            if arm.precision.backend == backend and arm.precision.recipe and not arm.precision.recipe.sums_fast
        ]
        if not wanted:
            continue
        request = BreakEvenRequest(
            model=plan.model,
            training=plan.training,
            precisions=tuple({arm.precision.recipe: arm.precision for arm in wanted}.values()),
            layout=layout,
            arms=tuple(wanted),
            device=plan.launch.device,
            seconds=seconds,
        )
        found = break_even(request)
        rows = [_told(plan, arm, found, measured) for arm in wanted]
        replace_file(folder / f"break_even-{backend}.json", found.model_dump_json(indent=1).encode())
        replace_file(folder / f"break_even-{backend}.md", render(found, rows).encode())
        told += rows
    return told


def _told(plan: Plan, arm: MeasuredArm, found: BreakEven, measured: Measurement) -> Told:
    """One arm: what to keep in BF16, and its step foretold beside the one that was measured."""
    precision, training = arm.precision, plan.training
    recipe = precision.recipe
    assert recipe is not None
    sites, tokens = gemm_sites(plan.model, training.sequence_length), training.micro_batch_size * training.sequence_length
    policy = resolve_policy(
        *(sites, recipe, precision.keep_bf16, precision.policy, tokens), kept=precision.kept, odd_shapes=precision.odd_shapes
    )
    steps = {each.name: each.median_s for each in measured.arms}
    prediction = None
    if "baseline" in steps:
        prediction = predict(
            found,
            policy,
            sites,
            backend=precision.backend,
            arm=arm.name,
            tokens_per_pass=tokens,
            bf16_step_s=steps["baseline"],
        )
    keep = losers(
        found,
        sites,
        backend=precision.backend,
        recipe=recipe,
        tokens_per_pass=tokens,
        keep_bf16=precision.keep_bf16,
    )
    return Told(arm.name, precision.backend, recipe.in_words, keep, prediction, steps.get(arm.name))
