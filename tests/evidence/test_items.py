"""Evaluations of both arms paired by document: what is compared, what is not and why, run noise, and power beforehand."""

from collections.abc import Mapping
from dataclasses import replace
from math import nan, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fp8migrate.errors import UsageError
from fp8migrate.evidence.items import ItemComparison, TaskComparison, compare_items
from fp8migrate.records.items import Item, ItemRecord
from fp8migrate.statistics.items import PairedDifference
from tests.records.evaluations import record, scores

Array = NDArray[np.float64]


def answers(right: int, wrong: int = 0) -> Array:
    return np.array([1.0] * right + [0.0] * wrong)


def flipped(values: Array, to_wrong: int, to_right: int) -> Array:
    """The same answers with the first `to_wrong` right ones wrong, and the first `to_right` wrong ones right."""
    changed = values.copy()
    changed[np.flatnonzero(values == 1)[:to_wrong]] = 0.0
    changed[np.flatnonzero(values == 0)[:to_right]] = 1.0
    return changed


BASE = answers(600, 400)


def arm(
    name: str, values: Array = BASE, task: str = "arc", settings: Mapping[str, str] | None = None, **changes: Any
) -> ItemRecord:
    return record(name, {task: scores(task, values, **changes)}, **(settings or {}))


def only(comparison: ItemComparison) -> TaskComparison:
    (task,) = comparison.tasks
    return task


def faults(baseline: ItemRecord, candidate: ItemRecord) -> list[tuple[str, str]]:
    return [(fault.code, fault.text) for fault in only(compare_items([baseline], [candidate])).faults]


def test_documents_are_paired_by_their_key_and_not_by_their_place() -> None:
    candidate = arm("fp8", flipped(BASE, 60, 40))
    items = candidate.tasks["arc"].items
    assert items is not None
    shuffled = replace(candidate.tasks["arc"], items=dict(reversed(items.items())))
    task = only(compare_items([arm("bf16")], [replace(candidate, tasks={"arc": shuffled})]))
    assert isinstance(task.difference, PairedDifference)
    assert (task.difference.worse, task.difference.better, task.num_items) == (60, 40, 1000)
    assert task.difference.delta == pytest.approx(-0.02)
    assert (task.baseline, task.candidate, task.flip_rate) == (pytest.approx(0.6), pytest.approx(0.58), pytest.approx(0.1))
    assert (task.difference.run_sd, task.baseline_flip_rate, task.replicates) == (None, None, 1)


def test_replicates_tell_the_noise_between_runs() -> None:
    # Scores 0.6, 0.61 and 0.596: s_run by hand; BF16 flips 30/1000, 24/1000 and 30 + 24 less twice the common 10/1000.
    second, third = flipped(BASE, 10, 20), flipped(BASE, 14, 10)
    found = compare_items([arm("a"), arm("b", second), arm("c", third)], [arm("fp8", flipped(BASE, 30, 30))])
    task = only(found)
    assert task.difference is not None
    assert task.difference.run_sd == pytest.approx(np.std([0.6, 0.61, 0.596], ddof=1))
    assert (found.replicates, task.replicates) == (3, 3)
    expected = np.mean([(second != BASE).mean(), (third != BASE).mean(), (second != third).mean()])
    assert task.baseline_flip_rate == pytest.approx(expected)
    assert task.flip_rate == pytest.approx(0.06)
    assert found.macro is not None
    assert found.macro.run_sd == pytest.approx(task.difference.run_sd)


def test_one_model_evaluated_twice_is_no_replicate() -> None:
    same_answers = compare_items([arm("a"), arm("b")], [arm("fp8", flipped(BASE, 3, 3))])
    assert same_answers.replicates == 1
    assert "evaluated again" in same_answers.notes[0]
    again = replace(arm("a", flipped(BASE, 1, 0)), source="evals/a/results_2026-04-01T00-00-00.json")
    assert compare_items([arm("a"), again], [arm("fp8")]).replicates == 1
    elsewhere = replace(again, source="evals/another/results.json")
    assert compare_items([arm("a"), elsewhere], [arm("fp8")]).replicates == 2


def test_several_candidates_are_paired_in_order_and_averaged() -> None:
    second = flipped(BASE, 10, 30)
    baseline = [arm("a"), arm("b", second)]
    candidate = [arm("c", flipped(BASE, 60, 0)), arm("d", flipped(second, 0, 20))]
    task = only(compare_items(baseline, candidate))
    assert task.difference is not None
    # −0.06 and +0.02
    assert task.difference.delta == pytest.approx(-0.02)
    assert task.flip_rate == pytest.approx((0.06 + 0.02) / 2)


def test_fewer_baselines_than_candidates_use_the_first() -> None:
    task = only(compare_items([arm("a")], [arm("c", flipped(BASE, 60, 0)), arm("d", flipped(BASE, 0, 20))]))
    assert task.difference is not None
    assert task.difference.delta == pytest.approx(-0.02)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "2.0"}, "task version differs (1.0 against 2.0)"),
        ({"num_fewshot": 0}, "few-shot examples differs (5 against 0)"),
        ({"metric": "acc_norm"}, "metric differs (acc against acc_norm)"),
        ({"filter": "strict-match"}, "filter differs (none against strict-match)"),
        ({"settings": {"dataset_path": "other"}}, "dataset_path differs (data against other)"),
        ({"subtasks": ("x",)}, "subtasks differs (0 subtasks against 1 others)"),
    ],
)
def test_what_differs_beyond_precision_is_named(changes: dict[str, Any], said: str) -> None:
    own = {"settings": {"dataset_path": "data"}}
    baseline = record("bf16", {"arc": scores("arc", BASE, **own)})
    candidate = record("fp8", {"arc": scores("arc", BASE, **(own | changes))})
    assert faults(baseline, candidate) == [("INVALID_PAIR", said)]


@pytest.mark.parametrize("name", ["limit", "gen_kwargs", "chat_template_sha", "model", "model_args.max_length"])
def test_calling_the_harness_otherwise_spoils_a_pair(name: str) -> None:
    found = faults(arm("bf16", settings={name: "x"}), arm("fp8", settings={name: "y"}))
    assert found == [("INVALID_PAIR", f"{name} differs (x against y)")]


def test_what_does_not_change_scores_is_only_said() -> None:
    found = compare_items(
        [arm("bf16", settings={"batch_size": "8"})], [arm("fp8", settings={"batch_size": "16", "device": "x"})]
    )
    assert [(s.name, s.baseline, s.candidate, s.spoils) for s in found.settings] == [("batch_size", "8", "16", False)]
    assert only(found).faults == ()


def test_other_prompts_are_seen_document_by_document() -> None:
    items = dict(scores("arc", BASE).items or {})
    items["arc 7"] = items["arc 7"]._replace(prompt="another")
    found = faults(arm("bf16"), arm("fp8", items=items))
    assert found == [("INVALID_PAIR", "1 of 1000 documents have other prompts or targets")]


def test_seeds_of_examples_matter_where_prompts_are_not_known() -> None:
    seeds = {"fewshot_seed": "1"}, {"fewshot_seed": "2"}
    assert faults(arm("bf16", settings=seeds[0]), arm("fp8", settings=seeds[1])) == []
    bare = {"items": None}
    found = faults(arm("bf16", settings=seeds[0], **bare), arm("fp8", settings=seeds[1], **bare))
    assert found == [("INVALID_PAIR", "fewshot_seed differs (1 against 2)")]


def test_missing_documents_are_named() -> None:
    items = dict(scores("arc", BASE).items or {})
    fewer = {key: item for key, item in items.items() if key not in ("arc 3", "arc 5")}
    assert faults(arm("bf16"), arm("fp8", items=fewer, num_items=998)) == [
        ("TRUNCATED", "2 documents missing in FP8: arc 3, arc 5")
    ]
    assert faults(arm("bf16"), arm("fp8", items=fewer)) == [
        ("TRUNCATED", "FP8: 998 of 1000 documents are among the samples"),
        ("TRUNCATED", "2 documents missing in FP8: arc 3, arc 5"),
    ]
    others = {f"x {key}": item for key, item in items.items()}
    assert faults(arm("bf16"), arm("fp8", items=others)) == [
        ("INVALID_PAIR", "other documents: 1000 only in BF16, 1000 only in FP8")
    ]


@pytest.mark.parametrize(("b", "c", "where"), [("arc", "piqa", "FP8"), ("piqa", "arc", "BF16")])
def test_a_task_of_one_arm_is_named(b: str, c: str, where: str) -> None:
    found = compare_items([arm("bf16", task=b)], [arm("fp8", task=c)])
    assert {task.task: task.faults[0].text for task in found.tasks}["arc"] == f"not evaluated in {where}"
    assert found.macro is None


def test_the_same_file_on_both_sides_is_no_pair() -> None:
    assert faults(arm("a"), arm("a")) == [("INVALID_PAIR", "both arms are the same file")]


def test_aggregates_alone_are_compared_as_such() -> None:
    bare = {"items": None}
    task = only(compare_items([arm("bf16", **bare)], [arm("fp8", answers(580, 420), **bare)]))
    assert (task.paired, task.num_items) == (False, 1000)
    assert task.difference is not None
    assert task.difference.delta == pytest.approx(-0.02)
    one_sided = only(compare_items([arm("bf16")], [arm("fp8", answers(580, 420), **bare)]))
    assert (one_sided.paired, one_sided.faults) == (False, ())
    counts = faults(arm("bf16", **bare), arm("fp8", answers(58, 42), **bare))
    assert counts == [("TRUNCATED", "BF16 scored 1000 documents, FP8 100")]
    unknown = only(compare_items([arm("bf16", **bare, num_items=None)], [arm("fp8", **bare, num_items=None)]))
    assert unknown.difference is None


def test_less_is_better_turns_the_sign() -> None:
    less = {"metric": "error", "higher_is_better": False}
    task = only(compare_items([arm("bf16", **less)], [arm("fp8", answers(580, 420), **less)]))
    assert task.difference is not None
    assert task.difference.delta == pytest.approx(0.02)
    assert (task.baseline, task.candidate) == (0.6, 0.58)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "word_perplexity", "score": 12.5, "items": None}, "word_perplexity is not a share from 0 to 1"),
        ({"metric": "odd", "higher_is_better": None}, "whether more odd is better is not known"),
    ],
)
def test_metrics_without_points_are_left_out(changes: dict[str, Any], said: str) -> None:
    task = only(compare_items([arm("bf16", **changes)], [arm("fp8", **changes)]))
    assert (task.unjudged, task.difference) == (said, None)


def test_nan_is_counted_for_its_arm() -> None:
    spoiled = BASE.copy()
    spoiled[:3] = nan
    task = only(compare_items([arm("bf16")], [arm("fp8", spoiled)]))
    assert (task.non_finite_baseline, task.non_finite_candidate, task.difference) == (0, 3, None)
    task = only(compare_items([arm("a"), arm("b", spoiled)], [arm("fp8")]))
    assert (task.non_finite_baseline, task.non_finite_candidate) == (3, 0)
    task = only(compare_items([arm("bf16", items=None)], [arm("fp8", items=None, score=nan)]))
    assert task.non_finite_candidate == 1


def test_power_is_decided_by_bf16_runs() -> None:
    # BF16 runs differ in 10 % of the documents: 6.18 · 0.1/0.02² = 1546 are needed; 1000 there are.
    noisy = compare_items([arm("a"), arm("b", flipped(BASE, 50, 50))], [arm("fp8", flipped(BASE, 1, 1))])
    assert (only(noisy).gating, only(noisy).items_needed, only(noisy).power_from) == (False, 1546, "replicates")
    quiet = compare_items([arm("a"), arm("b", flipped(BASE, 10, 10))], [arm("fp8", flipped(BASE, 50, 50))])
    assert (only(quiet).gating, only(quiet).items_needed) == (True, 310)
    alone = compare_items([arm("a")], [arm("fp8", flipped(BASE, 50, 50))])
    assert (only(alone).gating, only(alone).power_from) == (False, "observed")


def test_the_macro_average_counts_every_task_alike() -> None:
    small = answers(60, 40)
    tasks = {"big": scores("big", BASE), "small": scores("small", small)}
    worse = {"big": scores("big", flipped(BASE, 10, 0)), "small": scores("small", flipped(small, 3, 0))}
    replicate = {"big": scores("big", flipped(BASE, 0, 10)), "small": scores("small", flipped(small, 1, 0))}
    found = compare_items([record("a", tasks), record("b", replicate)], [record("fp8", worse)])
    assert found.macro is not None
    assert found.macro.delta == pytest.approx((-0.01 - 0.03) / 2)
    # Macro averages of the BF16 runs: 0.6 and (0.61 + 0.59)/2: their tasks' noise cancels.
    assert found.macro.run_sd == pytest.approx(0.0, abs=1e-12)
    assert [t.difference.run_sd for t in found.tasks if t.difference] == pytest.approx([0.01 / sqrt(2)] * 2)


def test_tasks_of_separate_files_have_a_cautious_macro_noise() -> None:
    baseline = [arm("a"), arm("b", flipped(BASE, 0, 10)), arm("c", task="piqa"), arm("d", flipped(BASE, 30, 0), task="piqa")]
    candidate = [record("fp8", {"arc": scores("arc", BASE), "piqa": scores("piqa", BASE)})]
    found = compare_items(baseline, candidate)
    assert found.macro is not None
    assert found.macro.run_sd == pytest.approx((0.01 + 0.03) / 2 / sqrt(2))
    assert "arc: in 2 of 4 BF16 evaluations" in found.notes


def with_answers(values: Array, tag: str) -> dict[str, Item]:
    return {f"arc {k}": Item(float(v), None, f"prompt {k}", f"{tag} {k}") for k, v in enumerate(values)}


def test_identical_log_likelihoods_are_one_model_but_equal_accuracies_are_not() -> None:
    same = compare_items([arm("a", items=with_answers(BASE, "x"))], [arm("b", items=with_answers(BASE, "x"))])
    assert same.identical
    other = compare_items([arm("a", items=with_answers(BASE, "x"))], [arm("b", items=with_answers(BASE, "y"))])
    assert not other.identical
    assert not compare_items([arm("a")], [arm("b")]).identical
    few = answers(200)
    assert not compare_items(
        [arm("a", few, items=with_answers(few, "x"))], [arm("b", few, items=with_answers(few, "x"))]
    ).identical


def test_an_arm_without_evaluations_is_said() -> None:
    with pytest.raises(UsageError, match="no evaluation of the candidate"):
        compare_items([arm("a")], [])
