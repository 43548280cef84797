"""Every key of the plan can be explained: it has a description, and words for what it takes."""

import pytest

from fp8migrate.plan.problems import describe, plan_schema

MODELS = {"Plan": plan_schema(), **plan_schema()["$defs"]}
KEYS = [(model, key) for model, schema in MODELS.items() for key in schema.get("properties", {})]


@pytest.mark.parametrize(("model", "key"), KEYS)
def test_every_key_has_a_short_description(model: str, key: str) -> None:
    schema = MODELS[model]
    description = schema["properties"][key].get("description", "")
    assert 0 < len(description) <= 110
    assert "\n" not in description


@pytest.mark.parametrize(("model", "key"), KEYS)
def test_every_key_has_words_for_what_it_takes(model: str, key: str) -> None:
    assert describe(MODELS[model]["properties"][key])
