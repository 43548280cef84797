"""One plan under several recipes: each judged as a plan of its own, on the same BF16 runs, and all in one table."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from fp8migrate.engine.measure import measured_precision
from fp8migrate.engine.observer import NamedObserver, Observer
from fp8migrate.engine.recipe_table import keep_table
from fp8migrate.engine.study import Study, run_studies
from fp8migrate.errors import UsageError
from fp8migrate.facts.backends import BackendName
from fp8migrate.facts.recipes import Recipe
from fp8migrate.plan.digest import plan_digest
from fp8migrate.plan.load import LoadedPlan
from fp8migrate.plan.problems import nearest
from fp8migrate.plan.schema import Modules, Plan
from fp8migrate.report.recipe_rows import RecipeRow, recipe_row

# Of a plan (plan/schema.py).
MAX_NAME = 64
_RECIPE: TypeAdapter[Recipe] = TypeAdapter(Recipe)
_KINDS = tuple(str(each.model_fields["kind"].default) for each in get_args(get_args(Recipe)[0]))
_LAYERS: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])
_MODULES: TypeAdapter[Modules] = TypeAdapter(Modules)
# In names of folders, which have MAX_NAME characters.
_SHORT = {"backward_split_accumulator": "split", "amax_history_len": "history"}


@dataclass(frozen=True)
class Variant:
    """A recipe to put in the plan's place, and what else of the candidate differs; None: as in the plan."""

    recipe: Recipe
    backend: BackendName | None = None
    keep_bf16: tuple[str, ...] | None = None
    modules: Modules | None = None

    @property
    def written(self) -> str:
        """As --recipe takes it."""
        settings: dict[str, object] = self.recipe.model_dump(mode="json", exclude_defaults=True) | {"kind": self.recipe.kind}
        if self.keep_bf16 is not None:
            settings["keep_bf16"] = list(self.keep_bf16)
        if self.modules is not None:
            settings["modules"] = self.modules
        text = yaml.safe_dump(settings, default_flow_style=True, width=1000).strip()
        return f"{self.backend}:{text}" if self.backend else text

    @property
    def name(self) -> str:
        """`emulated-delayed-margin-12`: backend and layers where named, kind, every setting that is not the default."""
        settings = self.recipe.model_dump(mode="json", exclude_defaults=True, exclude={"kind"})
        parts: list[str] = [*([self.backend] if self.backend else []), self.recipe.kind]
        parts += [f"{_SHORT.get(key, key)}-{str(value).lower()}" for key, value in settings.items()]
        if self.keep_bf16 is not None:
            parts.append("keep-" + ("+".join(self.keep_bf16) or "none"))
        if self.modules is not None:
            parts.append(self.modules)
        return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(parts))


def parse_variant(text: str, plan: Plan) -> Variant:
    """`block`, `emulated:block` or `{kind: delayed, margin: 12, keep_bf16: [], modules: fused}`.

    The plan's own kind has the plan's settings. Raises UsageError.
    """
    backend = next((name for name in get_args(BackendName) if text.startswith(f"{name}:")), None)
    recipe = text.removeprefix(f"{backend}:").strip()
    if recipe == plan.candidate.recipe.kind:
        return Variant(plan.candidate.recipe, backend)
    try:
        given = yaml.safe_load(recipe)
        settings = dict(given) if isinstance(given, dict) else {"kind": given}
        kept = _LAYERS.validate_python(settings.pop("keep_bf16")) if "keep_bf16" in settings else None
        modules = _MODULES.validate_python(settings.pop("modules")) if "modules" in settings else None
        return Variant(_RECIPE.validate_python(settings), backend, kept, modules)
    except (yaml.YAMLError, ValidationError) as error:
        raise UsageError(
            f"{text!r}: {_problem(error)}",
            where="--recipe",
            next_step="Name a kind, or say '{kind: delayed, margin: 2}'; emulated:block runs block on another backend.",
        ) from error


def _problem(error: yaml.YAMLError | ValidationError) -> str:
    if isinstance(error, yaml.YAMLError):
        return "this is no YAML"
    details = error.errors()[0]
    kinds = ", ".join(_KINDS)
    if details["type"] == "union_tag_not_found":
        return f"no kind of recipe; expected one of {kinds}"
    if details["type"] == "union_tag_invalid":
        kind = str(details["ctx"]["tag"])
        return f"{kind} is no kind of recipe; expected one of {kinds}{nearest(kind, _KINDS)}"
    key = ".".join(str(part) for part in details["loc"] if part not in _KINDS)
    if details["type"] == "extra_forbidden":
        return f"unknown key {key}; besides the recipe's own settings keep_bf16 and modules may stand here"
    said = details["msg"].removeprefix("Value error, ")
    return f"{key}: {said}" if key else said


def with_variant(loaded: LoadedPlan, variant: Variant, among: Sequence[Variant] = ()) -> LoadedPlan:
    """The plan with another candidate, named after it. Raises UsageError where the two do not go together.

    among: the variants of one study. The advisor forecasts the recipes of all in each, so that all share one BF16 run.
    """
    document, recipe = loaded.plan.model_dump(mode="json", exclude_unset=True), variant.recipe
    document["name"] = name = f"{loaded.plan.name}-{variant.name}"
    if len(name) > MAX_NAME:
        raise UsageError(
            f"{name} is longer than {MAX_NAME} characters, and no folder's name",
            where=str(loaded.path),
            next_step="Give the plan a shorter name.",
        )
    candidate = document.setdefault("candidate", {})
    candidate["recipe"] = {"kind": recipe.kind, **recipe.model_dump(mode="json", exclude_defaults=True)}
    if variant.keep_bf16 is not None:
        candidate["keep_bf16"] = list(variant.keep_bf16)
    if variant.modules:
        candidate["modules"] = variant.modules
    if variant.backend:
        candidate["backend"] = variant.backend
    others = list(dict.fromkeys(each.recipe for each in among or (variant,)))
    advisor = document.setdefault("phases", {}).setdefault("baseline", {}).setdefault("advisor", {})
    advisor["recipes"] = [each.model_dump(mode="json", exclude_defaults=True) | {"kind": each.kind} for each in others]
    text = f"# {loaded.path.name} with --recipe {variant.name}\n" + yaml.safe_dump(document, sort_keys=False)
    try:
        plan = Plan.model_validate(yaml.safe_load(text), strict=False)
    except ValidationError as error:
        said = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise UsageError(f"{variant.name}: {said}", where=str(loaded.path)) from error
    options = " ".join(f"--recipe {shlex.quote(each.written)}" for each in among or (variant,))
    return replace(loaded, plan=plan, text=text, sha256=plan_digest(plan), options=options)


def run_variants(
    loaded: LoadedPlan, variants: Sequence[Variant], reports: Path, observer: Observer, *, force: bool = False
) -> list[Study]:
    """Run the plan under each recipe, side by side; the table grows with each. Runs that several need are done once.

    Each has its own report folder, `reports/<plan>-<recipe>/`; the runs of all lie in `reports/<plan>/runs/`.
    """
    plans = [with_variant(loaded, variant, variants) for variant in variants]
    home = reports / loaded.plan.name
    studies: dict[int, Study] = {}

    def ended(number: int, study: Study) -> None:
        studies[number] = study
        rows = [_row(variants[each], plans[each], studies[each]) for each in sorted(studies)]
        keep_table(home, loaded, rows)
        observer.message(f"{variants[number].name}: {study.report.headline}")

    observers = [NamedObserver(variant.name, observer) for variant in variants]
    run_studies(plans, home, reports, observers, ended, force=force)
    return [studies[number] for number in range(len(variants))]


def _row(variant: Variant, own: LoadedPlan, study: Study) -> RecipeRow:
    return recipe_row(variant.name, study.report, written=variant.written, precision=measured_precision(own.plan))
