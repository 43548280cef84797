"""Several recipes of one plan side by side: verdict, learned-quality gap with its interval, forward penalty, coverage."""

from collections.abc import Sequence
from dataclasses import dataclass

from fp8migrate.report.cells import Gap, deciding
from fp8migrate.report.words import percent
from fp8migrate.verdict import Report, main_comparison

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
)


@dataclass(frozen=True, eq=False)
class RecipeRow:
    """One recipe. gap: at the endpoint that decided, of the design that says most; fp8_share: of the GEMM FLOPs.

    kernels: FP8 GEMM kernels of a training step, and how many its layers asked for; None where none were looked at.
    """

    recipe: str
    verdict: str
    code: str
    emulated: bool
    gap: Gap | None
    penalty: Gap | None
    training: Gap | None
    fp8_share: float | None
    kernels: tuple[int, int] | None


def recipe_row(name: str, report: Report) -> RecipeRow:
    """What a report says of its recipe in one line."""
    comparison = main_comparison(report.comparisons)
    result = next(
        (r for phase in report.phases for r in phase.results if r.check == "kernels" and r.measured is not None), None
    )
    conversion = comparison.conversion if comparison else report.integration.conversion if report.integration else None
    return RecipeRow(
        recipe=name,
        verdict=report.verdict.name,
        code=report.verdict.code,
        emulated=any(each.emulated for each in report.comparisons),
        gap=deciding(comparison, comparison.primary[0]) if comparison else None,
        penalty=deciding(comparison, "forward_penalty") if comparison else None,
        training=deciding(comparison, "training_loss") if comparison else None,
        fp8_share=conversion.fp8_flops_share if conversion else None,
        kernels=(int(result.measured or 0), int(result.limit or 0)) if result else None,
    )


def recipes_table(plan: str, rows: Sequence[RecipeRow]) -> str:
    """Markdown: the table, and how to read it."""
    lines = [f"# {plan}: recipes side by side", "", _line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(_cells(row)) for row in rows]
    lines += [
        "",
        "Gap: candidate against BF16, validation loss under a BF16 forward, mean over pairs with one-sided 95 % bounds.",
        "Training loss: each arm under its own forward, so with the forward penalty in it. In brackets: the same bounds.",
        "Forward penalty: the candidate's own weights under an FP8 forward against a BF16 forward.",
        "FP8 kernels: GEMM kernels in FP8 that a profiled training step ran, of those that its layers asked for.",
    ]
    return "\n".join(lines) + "\n"


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


def _with_bounds(gap: Gap | None) -> str:
    if gap is None:
        return "—"
    return percent(gap.mean) if gap.lower is None else f"{percent(gap.mean)} ({percent(gap.lower)} to {percent(gap.upper)})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
