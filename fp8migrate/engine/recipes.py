"""One plan under several recipes: each judged as a plan of its own, on the same BF16 runs, and all in one table."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError

from fp8migrate.engine.observer import Observer
from fp8migrate.engine.study import Study, run_study
from fp8migrate.engine.workspace import RUNS
from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import Recipe
from fp8migrate.plan.digest import plan_digest
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.plan.schema import Plan
from fp8migrate.records.files import write_errors
from fp8migrate.report.recipes import RecipeRow, recipe_row, recipes_table

TABLE = "recipes.md"
_RECIPE: TypeAdapter[Recipe] = TypeAdapter(Recipe)


def parse_recipe(text: str, plan: Plan) -> Recipe:
    """`block`, or `{kind: delayed, margin: 12}`. The plan's own recipe keeps its settings. Raises UsageError."""
    if text == plan.candidate.recipe.kind:
        return plan.candidate.recipe
    try:
        given = yaml.safe_load(text)
        return _RECIPE.validate_python({"kind": given} if isinstance(given, str) else given)
    except (yaml.YAMLError, ValidationError) as error:
        problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "this is no YAML"
        raise UsageError(
            f"{text!r}: {problem}",
            where="--recipe",
            next_step="Name a kind (delayed, current, block, tensorwise, rowwise), or say '{kind: delayed, margin: 2}'.",
        ) from error


def with_recipe(loaded: LoadedPlan, recipe: Recipe) -> LoadedPlan:
    """The plan with another candidate.recipe, named after it. Raises UsageError where the two do not go together."""
    document = loaded.plan.model_dump(mode="json", exclude_unset=True)
    document["name"] = f"{loaded.plan.name}-{recipe_name(recipe)}"[:64]
    document.setdefault("candidate", {})["recipe"] = recipe.model_dump(mode="json", exclude_defaults=True) | {
        "kind": recipe.kind
    }
    text = f"# {loaded.path.name} with --recipe {recipe_name(recipe)}\n" + yaml.safe_dump(document, sort_keys=False)
    try:
        plan = Plan.model_validate(yaml.safe_load(text), strict=False)
    except ValidationError as error:
        raise UsageError(f"{recipe_name(recipe)}: {error.errors()[0]['msg']}", where=str(loaded.path)) from error
    return replace(loaded, plan=plan, text=text, sha256=plan_digest(plan))


def recipe_name(recipe: Recipe) -> str:
    """`delayed-margin-12`: the kind, and every setting that is not the default."""
    settings = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
    return "-".join([recipe.kind, *(f"{key}-{value}" for key, value in settings.items())])


def run_recipes(
    loaded: LoadedPlan, recipes: Sequence[Recipe], reports: Path, observer: Observer, *, force: bool = False
) -> Iterator[Study]:
    """Run the plan under each recipe in turn; the table grows with each. BF16 runs and those of the bad recipe are shared.

    Each has its own report folder, `reports/<plan>-<recipe>/`; the runs of all lie in `reports/<plan>/runs/`.
    """
    rows: list[RecipeRow] = []
    home = reports / loaded.plan.name
    for recipe in recipes:
        own = with_recipe(loaded, recipe)
        _share_runs(home, reports / own.plan.name)
        observer.message(f"recipe {recipe_name(recipe)}")
        study = run_study(own, reports, observer, force=force)
        rows.append(recipe_row(recipe_name(recipe), study.report))
        with write_errors(home):
            (home / TABLE).write_text(recipes_table(loaded.plan.name, rows), encoding="utf-8")
        yield study


def _share_runs(home: Path, own: Path) -> None:
    """The recipe's folder finds its runs among those of the plan."""
    with write_errors(own):
        (home / RUNS).mkdir(parents=True, exist_ok=True)
        own.mkdir(parents=True, exist_ok=True)
        link = own / RUNS
        if not link.exists():
            link.symlink_to(Path("..") / home.name / RUNS, target_is_directory=True)
