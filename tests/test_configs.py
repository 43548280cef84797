"""Every plan in configs/ loads, can be carried out as written, and says what it is."""

from pathlib import Path

import pytest

from fp8migrate.engine.preflight import preflight
from fp8migrate.plan.load import load_plan

CONFIGS = Path(__file__).parents[1] / "configs"
PLANS = sorted(CONFIGS.glob("*.yaml"))


def test_the_plans_that_the_readme_names_are_there() -> None:
    assert {"quickstart.yaml", "broken_recipe.yaml"} <= {path.name for path in PLANS}


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.name)
def test_a_plan_loads_and_can_be_carried_out(path: Path) -> None:
    loaded = load_plan(path)
    preflight(loaded)
    assert loaded.plan.name == path.stem
    assert path.read_text().startswith("#")


def test_the_broken_recipe_differs_from_the_quickstart_in_its_candidate_alone() -> None:
    sound, broken = (load_plan(CONFIGS / name).plan for name in ("quickstart.yaml", "broken_recipe.yaml"))
    assert broken.candidate.recipe != sound.candidate.recipe
    assert broken.model_copy(update={"name": sound.name, "candidate": sound.candidate}) == sound
