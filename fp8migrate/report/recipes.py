"""Several recipes of one plan side by side: verdict, learned-quality gap and its interval, forward penalty, coverage, speed."""

import shlex
from collections.abc import Mapping, Sequence

from fp8migrate.evidence.measurement import Measurement
from fp8migrate.evidence.recipe_speed import RecipeSpeed, foreign, recipe_speed
from fp8migrate.report.emulation import emulated_against_real
from fp8migrate.report.markdown import text
from fp8migrate.report.recipe_rows import RecipeRow, RecipesTable, RowGap
from fp8migrate.report.words import percent

_GIB = 2**30
_HEAD = (
    "Recipe",
    "Verdict",
    "Learned quality, gap",
    "95 % bounds",
    "Pairs",
    "Training loss",
    "Forward penalty",
    "FP8 of GEMM FLOPs",
    "FP8 kernels",
    "Step, × BF16",
    "Peak memory, × BF16",
    "Energy a token, × BF16",
)
_LAYERS = {"transformer_engine": "fused modules (Transformer Engine)", "torchao": "compiled layers (torchao)"}


def recipes_table(table: RecipesTable, found: Measurement | None, unreadable: str = "") -> str:
    """Markdown: the table, and how to read it.

    found: the measurement that is there, of whatever model. unreadable: why one that is there is no `found`.
    """
    left_out = unreadable
    if found is not None and (other := foreign(found, table.model, table.sequence_length, table.micro_batch_size)):
        left_out = f"it is of another model or step: {other}" if found.model is not None else other
    speeds: dict[str, RecipeSpeed | str] = {}
    if found is not None and not left_out:
        speeds = {row.recipe: recipe_speed(found, row.recipe, row.precision) for row in table.rows if _measurable(row)}
    lines = [f"# {table.plan}: recipes side by side", "", _line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line([*_cells(row), *_speed_cells(speeds.get(row.recipe, ""))]) for row in table.rows]
    lines += [
        "",
        "Gap: candidate against BF16, validation loss under a BF16 forward, mean over pairs with one-sided 95 % bounds.",
        "Training loss: each arm under its own forward, so with the forward penalty in it. In brackets: the same bounds.",
        "Forward penalty: the candidate's own weights under an FP8 forward against a BF16 forward.",
        "FP8 kernels: GEMM kernels in FP8 that a profiled training step ran, of those that its layers asked for.",
        " ".join(_about_speed(table, found, speeds, left_out)),
        *emulated_against_real(table.rows),
    ]
    return "\n".join(lines) + "\n"


def _measurable(row: RecipeRow) -> bool:
    return row.precision is not None and not row.emulated


def _about_speed(
    table: RecipesTable, found: Measurement | None, speeds: Mapping[str, RecipeSpeed | str], left_out: str
) -> list[str]:
    """Sentences: where speed comes from, what does not count and why, and how to measure what is missing."""
    said: list[str] = []
    if measured := [each for each in speeds.values() if isinstance(each, RecipeSpeed)]:
        assert found is not None
        said.append(_source(found, {each.backend for each in measured}))
    if left_out:
        said.append(f"The measurement that is there is left out: {left_out}.")
    said += [f"{name}: {why}." for name, why in speeds.items() if isinstance(why, str) and why]
    wanted = [row for row in table.rows if _measurable(row)]
    if any(not isinstance(speeds.get(row.recipe), RecipeSpeed) for row in wanted):
        recipes = [word for row in wanted for word in ("--recipe", row.written)]
        command = shlex.join(["fp8migrate", "measure", table.path, *recipes])
        said.append(f"Speed, memory and energy where there are none: `{command}` on a GPU with FP8.")
    if not wanted:
        said.append("Speed, memory and energy: of emulated FP8 they are not measured.")
    return said


def _source(found: Measurement, backends: set[str]) -> str:
    layers = " or ".join(words for backend, words in _LAYERS.items() if backend in backends)
    early = "" if found.complete else " (ended early)"
    gpu = text(str(found.environment.get("device_name")))
    return (
        "Step: how many times as fast as BF16's; memory and energy: of BF16's, less is better. Measured by `measure`"
        f"{early} on {gpu}, {_size(found.parameters)} parameters, {found.tokens_per_step} tokens a step, BF16 weights and "
        f"AdamW states, {layers}; verdicts are of the trainer with FP32 master weights."
    )


def _size(parameters: int) -> str:
    return f"{parameters / 1e9:.2f}B" if parameters >= 10**9 else f"{parameters / 1e6:.3g}M"


def _speed_cells(speed: RecipeSpeed | str) -> list[str]:
    if isinstance(speed, str):
        return ["—"] * 3
    if speed.peak_share is None or speed.peak_bytes is None:
        memory = "—"
    else:
        memory = f"{speed.peak_share:.2f} ({speed.peak_bytes / _GIB:.1f} GiB)"
    return [f"{speed.speedup:.2f}", memory, "—" if speed.energy_share is None else f"{speed.energy_share:.2f}"]


def _cells(row: RecipeRow) -> list[str]:
    gap, penalty = row.gap, row.penalty
    verdict = row.verdict if row.code == row.verdict else f"{row.verdict} ({row.code})"
    bounds = "—" if gap is None or gap.lower is None else f"{percent(gap.lower)} to {percent(gap.upper)}"
    kernels = "emulated" if row.emulated else "—" if row.kernels is None else f"{row.kernels[0]} of {row.kernels[1]}"
    return [
        row.recipe,
        verdict,
        "—" if gap is None else percent(gap.mean),
        bounds,
        "—" if gap is None else gap.counted,
        _with_bounds(row.training),
        _with_bounds(penalty),
        "—" if row.fp8_share is None else f"{100 * row.fp8_share:.1f} %",
        kernels,
    ]


def _with_bounds(gap: RowGap | None) -> str:
    if gap is None:
        return "—"
    return percent(gap.mean) if gap.lower is None else f"{percent(gap.mean)} ({percent(gap.lower)} to {percent(gap.upper)})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
