"""recipes.md and recipes.json in the plan's report folder: written by `run --recipe`, and again when a measurement was made."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from fp8migrate.engine.measure import MEASUREMENT
from fp8migrate.evidence.measurement import Measurement
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.records.files import replace_file
from fp8migrate.report.recipe_rows import RecipeRow, RecipesTable
from fp8migrate.report.recipes import recipes_table

TABLE = "recipes.md"
ROWS = "recipes.json"


def keep_table(home: Path, loaded: LoadedPlan, rows: Sequence[RecipeRow]) -> None:
    """Write both files anew: a recipe that is not among these rows is in neither. Raises UsageError, InfrastructureError."""
    training = loaded.plan.training
    table = RecipesTable(
        plan=loaded.plan.name,
        path=str(loaded.path),
        model=loaded.plan.model,
        sequence_length=training.sequence_length,
        micro_batch_size=training.micro_batch_size,
        rows=tuple(rows),
    )
    replace_file(home / ROWS, table.model_dump_json(indent=1).encode())
    _write(home, table)


def refresh_table(home: Path) -> str:
    """Write the table again beside the measurement that is there now. What was done, in words; empty: there are no verdicts."""
    try:
        table = RecipesTable.model_validate_json((home / ROWS).read_bytes())
    except FileNotFoundError:
        return ""
    except (OSError, ValidationError):
        return f"Table of recipes left as it was: {home / ROWS} cannot be read. `run --recipe` writes it anew."
    _write(home, table)
    return f"Table: {home / TABLE}"


def _write(home: Path, table: RecipesTable) -> None:
    replace_file(home / TABLE, recipes_table(table, *_measurement(home)).encode())


def _measurement(home: Path) -> tuple[Measurement | None, str]:
    """The one that is there, or why it cannot be read; neither where there is none. Verdicts need no measurement."""
    try:
        return Measurement.model_validate_json((home / MEASUREMENT).read_bytes()), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValidationError):
        return None, f"{MEASUREMENT} cannot be read, or is of another version"
