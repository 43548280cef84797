"""What the report says in words, and what it must not forget to say."""

from dataclasses import replace

import pytest

from fp8migrate.records.schema import Conversion, LayerConversion
from fp8migrate.report import view
from fp8migrate.report.cells import deciding, gap, gaps
from fp8migrate.report.view import coverage_groups

from . import samples


def test_titles_tell_comparisons_apart() -> None:
    branch = samples.comparison(pairs=2, steps=4)
    screen = samples.comparison("SCREENED", design="screen", fractions=(0.3, 0.6), pairs=2, steps=4)
    other = replace(branch, recipe="current hybrid")
    report = samples.report(comparisons=(screen, branch, other, branch))
    titles = [title for title, _ in view.titled(report)]
    assert titles == ["Screen", "Branch, delayed hybrid", "Branch, current hybrid", "Branch, delayed hybrid (2)"]


def test_the_comparison_that_can_pass_is_the_main_one() -> None:
    branch = samples.comparison(pairs=2, steps=4)
    screen = samples.comparison("SCREENED", design="screen", fractions=(0.3, 0.6), pairs=2, steps=4)
    assert view.main_comparison(samples.report(comparisons=(branch, screen))) is branch
    assert view.main_comparison(samples.report(comparisons=(screen,))) is screen
    assert view.main_comparison(samples.minimal()) is None


def test_the_deciding_start_is_the_one_with_the_highest_upper_bound() -> None:
    comparison = samples.comparison("SCREENED", design="screen", fractions=(0.3, 0.6, 0.9), steps=4)
    worse = samples.cell("candidate", "validation_loss", 0.6, 0.0001, 0.004, 4)
    cells = [worse if (c.arm, c.endpoint, c.fraction) == ("candidate", "validation_loss", 0.6) else c for c in comparison.cells]
    found = deciding(replace(comparison, cells=tuple(cells)), "validation_loss")
    assert found is not None
    assert found.fraction == 0.6
    assert found.against_margin == "spans the margin"


def test_only_judged_endpoints_have_a_margin() -> None:
    comparison = samples.comparison(pairs=4, steps=4)
    assert {one.endpoint for one in gaps(comparison) if one.margin is not None} == {"validation_loss"}
    served = replace(comparison, serve="fp8", serve_margin=0.005, primary=("training_loss",))
    assert {(one.endpoint, one.margin) for one in gaps(served) if one.margin is not None} == {("training_loss", 0.005)}


def test_intervals_are_placed_against_the_margin() -> None:
    comparison = samples.comparison(pairs=4, steps=4)
    means = {"below the margin": 0.0, "spans the margin": 0.0025, "above the margin": 0.01}
    for words, mean in means.items():
        assert gap(comparison, samples.cell("candidate", "validation_loss", None, mean, 0.0003, 4)).against_margin == words
    assert gap(comparison, samples.cell("candidate", "validation_loss", None, 0.0, 0.0003, 1)).against_margin == ""


def test_missing_arms_and_measurements_are_told() -> None:
    comparison = samples.comparison(pairs=2, steps=4)
    bare = replace(
        comparison, cells=tuple(c for c in comparison.cells if c.arm == "candidate" and c.endpoint == "training_loss")
    )
    integration = replace(samples.integration(1), logits=None, resume_mismatches=None)
    told = view.not_run(samples.report(comparisons=(bare,), integration=integration))
    assert "Phase full_scale: not run (not in this version)" in told
    assert "Branch: no run of the bad recipe, so there is no positive control." in told
    assert "Branch: no floor arm, so there is no noise band." in told
    assert "Branch: no validation loss under a BF16 forward; learned quality was not measured." in told
    assert "Integration did not measure: logits, save, load and step." in told
    assert "Check memory.peak skipped: The emulated backend says nothing about memory." in told


def test_runs_that_did_not_end_well_do_not_count_as_complete() -> None:
    comparison = samples.comparison(pairs=4, steps=40)
    cut = [
        replace(run, expected_last_step=9999) if (run.arm, run.pair) == ("candidate", 1)
        else replace(run, outcome=None) if (run.arm, run.pair) == ("candidate", 2) else run
        for run in comparison.runs
    ]  # fmt: skip
    tiles = {tile.label: tile for tile in view.tiles(samples.report(comparisons=(replace(comparison, runs=tuple(cut)),)))}
    assert tiles["Candidate runs complete"].value == "2 of 4"


def test_coverage_is_grouped_by_treatment_with_shares() -> None:
    groups = view.coverage_groups(samples.conversion())
    assert [(group.converted, group.reason, group.layers) for group in groups] == [
        (True, "delayed hybrid", 16),
        (False, "keep_bf16: lm_head", 1),
        (False, "product of activations", 1),
    ]
    assert abs(sum(group.share for group in groups) - 1) < 1e-9


def test_pairs_that_broke_off_stay_in_sight() -> None:
    comparison = replace(samples.comparison(pairs=4, steps=4), planned_pairs=5)
    found = {(one.arm, one.endpoint): one.counted for one in gaps(comparison)}
    assert found["candidate", "validation_loss"] == "4 of 5"
    assert found["sensitivity", "validation_loss"] == "2"
    tile = view.tiles(samples.report(comparisons=(comparison,)))[0]
    assert tile.detail == "[−0.017, +0.057] %, 4 of 5 pairs, margin 0.25 %"


def test_gemms_left_in_bf16_of_a_converted_layer_are_counted_as_bf16() -> None:
    """rowwise_with_gw_hp on one layer of half the FLOPs: two thirds of that half in FP8."""
    layers = (
        LayerConversion(name="a", shape=(16, 16), flops_share=0.5, gemms=("forward", "data_gradient"), reason="rowwise"),
        LayerConversion(name="b", shape=(16, 16), flops_share=0.5, reason="keep_bf16: b"),
    )
    found = coverage_groups(Conversion(requested="", effective="", layers=layers, fp8_flops_share=1 / 3))
    assert [(group.converted, group.reason, group.layers) for group in found] == [
        (True, "rowwise", 1),
        (False, "keep_bf16: b", 1),
        (False, "weight_gradient of layers in FP8", 1),
    ]
    assert [group.share for group in found] == pytest.approx([1 / 3, 0.5, 1 / 6])
