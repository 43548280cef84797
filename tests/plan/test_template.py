"""The starting plan loads, holds every key, and tells each default as it is."""

import re
from pathlib import Path

import pytest

from fp8migrate.errors import ExitCode, PlanError
from fp8migrate.plan.digest import plan_digest
from fp8migrate.plan.load import LoadedPlan, load_plan
from fp8migrate.plan.problems import plan_schema
from fp8migrate.plan.template import starting_plan

TEXT = starting_plan("my-plan")
MODELS = {"Plan": plan_schema(), **plan_schema()["$defs"]}
KEYS = [(model, key) for model, schema in MODELS.items() for key in schema["properties"]]


def load(tmp_path: Path, text: str) -> LoadedPlan:
    path = tmp_path / "plan.yaml"
    path.write_text(text, encoding="utf-8")
    return load_plan(path)


def test_it_loads_and_can_run_as_it_is(tmp_path: Path) -> None:
    plan = load(tmp_path, TEXT).plan
    assert plan.name == "my-plan"
    assert plan.design.branch is not None
    assert plan.design.branch.pairs >= 4


@pytest.mark.parametrize(("model", "key"), KEYS)
def test_every_key_of_every_model_is_there(model: str, key: str) -> None:
    properties = MODELS[model]["properties"]
    if model.endswith("Recipe") or model == "ScratchDesign":  # kinds that are not chosen stand in a comment, on one line
        shown = [line for line in TEXT.splitlines() if all(f"{other}: " in line for other in properties)]
        assert shown or model == "DelayedRecipe"
    assert re.search(rf"\b{key}:", TEXT)


def test_every_line_with_a_value_is_explained() -> None:
    previous = ""
    for line in TEXT.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            assert "  # " in line or previous.lstrip().startswith("# ")
        assert len(line) <= 128
        previous = line


def test_every_description_of_a_key_in_use_is_quoted() -> None:
    for model in ("Plan", "LlamaModel", "Training", "Candidate", "Design", "Parity", "Budget", "SmallScalePhase", "Launch"):
        for item in MODELS[model]["properties"].values():
            assert item["description"] in TEXT


def test_a_default_that_is_left_out_changes_nothing(tmp_path: Path) -> None:
    """Every key but those that starting.yaml sets, taken out one at a time."""
    values = (Path(__file__).parents[2] / "fp8migrate/plan/templates/starting.yaml").read_text(encoding="utf-8")
    chosen = {match[1] for match in re.finditer(r"^ *(\w+):", values, re.MULTILINE)} | {"name"}
    lines = TEXT.splitlines(keepends=True)
    tried = 0
    for number, line in enumerate(lines):
        match = re.match(r" *(\w+): \S", line)
        if match is None or match[1] in chosen or (match[1] == "format" and "e2m1" in line):
            continue
        tried += 1
        without = "".join(lines[:number] + lines[number + 1 :])
        without = re.sub(r"(?m)^(trainer|budget): .*\n(?=\n)", r"\1: {}\n", without)
        assert load(tmp_path, without).sha256 == plan_digest(load(tmp_path, TEXT).plan)
    assert tried > 25


@pytest.mark.parametrize("name", ["123", "1e5", "true", "null", "0", "a.b-c_d", "x" * 64])
def test_names_that_look_like_something_else_stay_names(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, starting_plan(name)).plan.name == name


@pytest.mark.parametrize("name", ["", "a b", "../x", "a\nb", "a\n", "é", "x" * 65, "-x"])
def test_names_that_no_plan_can_have_are_refused(name: str) -> None:
    with pytest.raises(PlanError) as caught:
        starting_plan(name)
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value).startswith(
        "name: expected 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit"
    )
