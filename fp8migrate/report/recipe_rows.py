"""What the table of recipes is written from: one row a recipe, kept as JSON beside it."""

from pydantic import ConfigDict

from fp8migrate.jobs import Precision
from fp8migrate.plan.schema import LlamaModel
from fp8migrate.report.cells import Gap, deciding
from fp8migrate.settings import Settings
from fp8migrate.verdict import Report, main_comparison


class RowGap(Settings):
    """Of a Gap what a row shows. Runs that diverged have gaps that are not finite.

    start: design and fraction. by_pair: each pair's number and gap.
    """

    # JSON has no NaN: it is written as a word, which only a model that is not strict reads back.
    model_config = ConfigDict(allow_inf_nan=True, ser_json_inf_nan="strings", strict=False)

    mean: float
    lower: float | None
    upper: float | None
    counted: str
    start: tuple[str, float | None]
    by_pair: tuple[tuple[int, float], ...]


class RecipeRow(Settings):
    """One recipe. gap: at the endpoint that decided, of the design that says most; fp8_share: of the GEMM FLOPs.

    written: as --recipe takes it. kernels: FP8 GEMM kernels of a training step, and how many its layers asked for; None where
    none were looked at. precision: of the arm that measures its speed; None where that is not measured.
    """

    recipe: str
    written: str
    verdict: str
    code: str
    emulated: bool
    gap: RowGap | None
    penalty: RowGap | None
    training: RowGap | None
    fp8_share: float | None
    kernels: tuple[int, int] | None
    precision: Precision | None


class RecipesTable(Settings):
    """What the table is written from, beside a measurement. path: of the plan; model, …: of the plan, not of a shrunk one."""

    plan: str
    path: str
    model: LlamaModel
    sequence_length: int
    micro_batch_size: int
    rows: tuple[RecipeRow, ...]


def recipe_row(name: str, report: Report, *, written: str, precision: Precision | None) -> RecipeRow:
    """What a report says of its recipe in one line."""
    comparison = main_comparison(report.comparisons)
    result = next(
        (r for phase in report.phases for r in phase.results if r.check == "kernels" and r.measured is not None), None
    )
    conversion = comparison.conversion if comparison else report.integration.conversion if report.integration else None
    integration_emulated = report.integration is not None and report.integration.emulated
    return RecipeRow(
        recipe=name,
        written=written,
        verdict=report.verdict.name,
        code=report.verdict.code,
        emulated=integration_emulated or any(each.emulated for each in report.comparisons),
        gap=_shown(deciding(comparison, comparison.primary[0])) if comparison else None,
        penalty=_shown(deciding(comparison, "forward_penalty")) if comparison else None,
        training=_shown(deciding(comparison, "training_loss")) if comparison else None,
        fp8_share=conversion.fp8_flops_share if conversion else None,
        kernels=(int(result.measured or 0), int(result.limit or 0)) if result else None,
        precision=precision,
    )


def _shown(gap: Gap | None) -> RowGap | None:
    if gap is None:
        return None
    by_pair = tuple(zip(gap.numbers, gap.values.tolist(), strict=True))
    return RowGap(
        mean=gap.mean,
        lower=gap.lower,
        upper=gap.upper,
        counted=gap.counted,
        start=(gap.design, gap.fraction),
        by_pair=by_pair,
    )
