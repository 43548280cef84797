"""report.json is complete, versioned and deterministic."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from fp8migrate.checks.schema import CheckResult
from fp8migrate.report.json import MAX_POINTS, render
from fp8migrate.statistics.noninferiority import bounds
from fp8migrate.verdict import SCHEMA_VERSION, PhaseReport

from . import samples


def test_top_level_keys_are_the_documented_ones() -> None:
    from fp8migrate.report import json as module

    found = json.loads(render(samples.report()))
    assert found["schema_version"] == SCHEMA_VERSION
    assert module.__doc__ is not None
    assert [key for key in found if key not in module.__doc__] == []
    assert list(found) == sorted(found)


def test_cells_carry_values_and_the_same_bounds_as_the_decision() -> None:
    report = samples.report("INCONCLUSIVE")
    cell = report.comparisons[0].cells[0]
    entry = json.loads(render(report))["comparisons"][0]["cells"][0]
    expected = bounds(cell.values, cell.sampling_error or 0.0)
    assert (entry["arm"], entry["endpoint"], entry["pairs"]) == ("candidate", "validation_loss", 4)
    assert (entry["mean"], entry["lower"], entry["upper"]) == (expected.mean, expected.lower, expected.upper)
    assert [delta["value"] for delta in entry["deltas"]] == cell.values.tolist()
    assert entry["deltas"][0]["baseline"] == 1.4


def test_a_single_pair_has_no_bounds() -> None:
    report = samples.report()
    entry = next(c for c in json.loads(render(report))["comparisons"][0]["cells"] if c["arm"] == "control")
    assert (entry["pairs"], entry["lower"], entry["upper"]) == (1, None, None)


def test_non_finite_numbers_are_strings_and_missing_ones_null() -> None:
    odd = CheckResult("parity", "fail", "NaN", "NON_FINITE", math.nan, math.inf, "relative", (-math.inf, 1.0))
    report = replace(samples.report(), phases=(PhaseReport("small_scale", "failed", (odd,)),))
    entry = json.loads(render(report))["phases"][0]["results"][0]
    assert (entry["measured"], entry["limit"], entry["interval"]) == ("NaN", "Infinity", ["-Infinity", 1.0])
    assert json.loads(render(samples.minimal()))["integration"] is None


def test_long_curves_are_decimated_and_say_so() -> None:
    steps = np.arange(20_000)
    values = np.linspace(5, 1, steps.size)
    values[12_345] = math.nan
    long = samples.series("loss", steps, values)
    baseline = replace(samples.baseline(), loss=long)
    entry = json.loads(render(replace(samples.report(), baseline=baseline)))["baseline"]
    assert entry["loss"]["decimated"] is True
    assert entry["loss"]["points"] == 20_000
    assert len(entry["loss"]["values"]) == len(entry["loss"]["steps"]) <= MAX_POINTS + 2
    assert entry["loss"]["values"][entry["loss"]["steps"].index(12_345)] == "NaN"


def test_short_curves_are_whole() -> None:
    report = samples.report()
    curve = report.comparisons[0].curves[0].candidate
    entry = json.loads(render(report))["comparisons"][0]["curves"][0]["candidate"]
    assert (entry["decimated"], entry["points"]) == (False, 600)
    assert entry["values"] == curve.values.tolist()
    assert entry["steps"] == curve.steps.tolist()


def test_audit_conversion_and_environment_are_there() -> None:
    found = json.loads(render(samples.report()))
    comparison = found["comparisons"][0]
    assert {"setting": "task.precision.backend", "status": "different", "baseline": "bf16", "candidate": "emulated", "expected": True} in comparison["audit"]  # fmt: skip # noqa: E501
    assert comparison["conversion"]["fp8_flops_share"] == 0.9
    assert found["environment"]["torch"] == "2.11.0"


@pytest.mark.parametrize("name", samples.ALL)
def test_two_renderings_are_equal_to_the_byte(name: str) -> None:
    report = samples.ALL[name]()
    assert render(report) == render(samples.ALL[name]())


def test_lone_surrogates_and_control_characters_are_no_obstacle() -> None:
    found = json.loads(render(replace(samples.report(), headline="a\ud800\x00b")))
    assert found["headline"] == "a��b"
