"""Verdicts on item evaluations: margins, replicates, power, NaN, one model twice; and how often chance passes or fails."""

from collections.abc import Mapping
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fp8migrate.checks.evals import judge_items
from fp8migrate.checks.schema import CheckResult
from fp8migrate.evidence.items import compare_items
from fp8migrate.records.items import Item, ItemRecord, find_items
from tests.records.evaluations import answered, record, scores

Array = NDArray[np.float64]

BASE = np.array([1.0] * 3000 + [0.0] * 2000)


def flipped(values: Array, to_wrong: int, to_right: int) -> Array:
    changed = values.copy()
    changed[np.flatnonzero(values == 1)[:to_wrong]] = 0.0
    changed[np.flatnonzero(values == 0)[:to_right]] = 1.0
    return changed


def arm(name: str, values: Array = BASE, task: str = "arc", **changes: Any) -> ItemRecord:
    return record(name, {task: scores(task, values, **changes)})


# Two BF16 runs that differ in 2 % of the documents and by 0.04 points on average.
BF16 = (arm("a"), arm("b", flipped(BASE, 51, 49)))


def judged(*candidate: ItemRecord, baseline: tuple[ItemRecord, ...] = BF16) -> tuple[CheckResult, ...]:
    return judge_items(compare_items(baseline, candidate))


def codes(results: tuple[CheckResult, ...]) -> list[tuple[str, str, str]]:
    return [(result.check, result.status, result.code) for result in results]


def test_as_good_with_numbers_and_flips_beside_bf16() -> None:
    macro, task = judged(arm("fp8", flipped(BASE, 52, 50)))
    assert (macro.check, macro.status, macro.code) == ("evals", "pass", "")
    assert (task.check, task.status, task.code, task.advisory) == ("eval_task", "pass", "", False)
    assert macro.measured == pytest.approx(-0.0004)
    assert (macro.limit, task.limit, macro.unit, macro.design, macro.metric) == (0.01, 0.02, "points", "groups", "evals")
    assert macro.interval is not None
    assert macro.interval[0] < -0.0004 < macro.interval[1]
    assert task.summary.startswith("arc: as good within 2 points: acc −0.04 points (−0.")
    assert task.summary.endswith("on 5,000 documents; flips 2 %, between BF16 runs 2 %")
    assert macro.summary.startswith("as good within 1 point: −0.04 points on average over 1 task")
    assert task.evidence == ("arc",)
    assert macro.evidence == ("a", "b", "fp8")


def test_far_worse_fails_with_and_without_replicates() -> None:
    for baseline in (BF16, BF16[:1]):
        found = judged(arm("fp8", flipped(BASE, 250, 50)), baseline=baseline)
        assert codes(found) == [("evals", "fail", "GAP"), ("eval_task", "fail", "GAP")]
        assert not found[1].advisory
    assert found[1].summary.startswith("arc: worse by more than 2 points")
    assert "between BF16 runs unknown" in found[1].summary


def test_without_replicates_nothing_passes() -> None:
    found = judged(arm("fp8", flipped(BASE, 52, 50)), baseline=BF16[:1])
    assert codes(found) == [("evals", "inconclusive", "NO_REPLICATES"), ("eval_task", "inconclusive", "NO_REPLICATES")]


def test_a_replicate_that_is_the_same_model_is_none() -> None:
    again = replace(BF16[0], source="evals/again/results.json", name="again")
    found = judged(arm("fp8", flipped(BASE, 52, 50)), baseline=(BF16[0], again))
    assert [result.code for result in found] == ["NO_REPLICATES"] * 2


def test_too_noisy_to_tell() -> None:
    found = judged(arm("fp8", flipped(BASE, 130, 80)))
    assert codes(found) == [("evals", "inconclusive", "UNDERPOWERED"), ("eval_task", "pass", "REAL_BUT_ACCEPTABLE")]
    noisy = (BF16[0], arm("b", flipped(BASE, 300, 0)))
    assert [r.code for r in judged(arm("fp8", flipped(BASE, 52, 50)), baseline=noisy)] == ["UNDERPOWERED"] * 2


def test_better_than_can_be_true() -> None:
    found = judged(arm("fp8", flipped(BASE, 0, 250)))
    assert codes(found) == [("evals", "inconclusive", "SUSPECT_MISMATCH"), ("eval_task", "inconclusive", "SUSPECT_MISMATCH")]


SMALL = np.array([1.0] * 60 + [0.0] * 40)


def test_a_task_with_too_few_documents_is_advisory_beforehand() -> None:
    replicate = arm("b", flipped(SMALL, 5, 5))
    for to_wrong in (5, 40):
        _, task = judged(arm("fp8", flipped(SMALL, to_wrong, 5)), baseline=(arm("a", SMALL), replicate))
        assert task.advisory
        assert "advisory: 1,546 documents needed for 80 % power, as much as BF16 runs differ" in task.summary
    assert (task.status, task.code) == ("fail", "GAP")


def test_without_replicates_its_own_flips_do_not_excuse_a_bad_candidate() -> None:
    _, task = judged(arm("fp8", flipped(SMALL, 40, 5)), baseline=(arm("a", SMALL),))
    assert (task.status, task.code, task.advisory) == ("fail", "GAP", False)
    _, task = judged(arm("fp8", flipped(SMALL, 5, 5)), baseline=(arm("a", SMALL),))
    assert (task.status, task.code, task.advisory) == ("inconclusive", "UNDERPOWERED", True)


def test_few_differing_documents_are_no_certainty() -> None:
    """Fifty documents, none differs: the exact bound is 5.8 points away."""
    few, other = np.array([1.0] * 50), np.array([0.0] + [1.0] * 49)
    _, task = judged(arm("fp8", few), baseline=(arm("a", few), arm("b", other)))
    assert task.status == "inconclusive"
    assert task.interval is not None
    assert task.interval[0] < -0.058


def test_convictions_are_corrected_over_all_tasks() -> None:
    """One task of forty just below its margin is what chance makes of tasks that lie at it."""
    names = [f"task{k}" for k in range(40)]
    tasks = [{name: scores(name, values) for name in names} for values in (BASE, flipped(BASE, 51, 49))]
    baseline = tuple(record(name, each) for name, each in zip("ab", tasks, strict=True))
    # Δ = −135/5000, two standard errors below the margin.
    worse = {"task0": scores("task0", flipped(BASE, 210, 75))}
    alone = judged(record("fp8", worse), baseline=tuple(record(one.name, {"task0": one.tasks["task0"]}) for one in baseline))
    assert alone[1].code == "GAP"
    others = {name: scores(name, flipped(BASE, 52, 50)) for name in names}
    task0 = judged(record("fp8", others | worse), baseline=baseline)[1]
    assert (task0.evidence, task0.status, task0.code) == (("task0",), "inconclusive", "UNDERPOWERED")
    assert "Holm" in task0.summary


def test_nan_in_either_arm() -> None:
    spoiled = BASE.copy()
    spoiled[0] = nan
    assert codes(judged(arm("fp8", spoiled))) == [("evals", "fail", "NON_FINITE"), ("eval_task", "fail", "NON_FINITE")]
    found = judged(arm("fp8"), baseline=(arm("a", spoiled), BF16[1]))
    assert [result.code for result in found] == ["BASELINE_UNHEALTHY"] * 2
    assert all(result.status == "inconclusive" for result in found)


def test_nan_in_a_small_task_is_no_matter_of_power() -> None:
    spoiled = SMALL.copy()
    spoiled[0] = nan
    _, task = judged(arm("fp8", spoiled), baseline=(arm("a", SMALL), arm("b", flipped(SMALL, 5, 5))))
    assert (task.code, task.advisory) == ("NON_FINITE", False)


def test_what_cannot_be_compared_keeps_the_average_from_passing() -> None:
    both = {"arc": scores("arc", BASE), "piqa": scores("piqa", BASE)}
    baseline = (record("a", both), arm("b", flipped(BASE, 51, 49)))
    found = judged(arm("fp8", flipped(BASE, 52, 50)), baseline=baseline)
    assert codes(found) == [
        ("evals", "inconclusive", "TRUNCATED"),
        ("eval_task", "pass", ""),
        ("eval_task", "inconclusive", "TRUNCATED"),
    ]
    assert found[2].summary == "piqa: not judged: not evaluated in FP8"
    other = record("fp8", {"arc": scores("arc", BASE), "piqa": scores("piqa", BASE, version="2.0")})
    found = judged(other, baseline=baseline)
    assert (found[0].code, found[2].code) == ("INVALID_PAIR", "INVALID_PAIR")
    assert "task version differs (1.0 against 2.0)" in found[0].summary


def test_a_metric_without_points_is_left_out_and_said() -> None:
    perplexity: Mapping[str, Any] = {"metric": "word_perplexity", "score": 12.5, "items": None}
    tasks = [
        {"arc": scores("arc", values), "wiki": scores("wiki", BASE, **perplexity)} for values in (BASE, flipped(BASE, 51, 49))
    ]
    candidate = {"arc": scores("arc", flipped(BASE, 52, 50)), "wiki": scores("wiki", BASE, **perplexity)}
    found = judged(record("fp8", candidate), baseline=(record("a", tasks[0]), record("b", tasks[1])))
    assert codes(found) == [("evals", "pass", ""), ("eval_task", "pass", ""), ("eval_task", "skipped", "")]
    assert "left out, not in points: wiki" in found[0].summary
    alone = judged(arm("fp8", task="wiki", **perplexity), baseline=(arm("a", task="wiki", **perplexity),))
    assert codes(alone)[0] == ("evals", "inconclusive", "TRUNCATED")


def test_aggregates_alone_say_that_they_are_weaker() -> None:
    bare = {"items": None}
    baseline = (arm("a", **bare), arm("b", flipped(BASE, 51, 49), **bare))
    macro, task = judged(arm("fp8", flipped(BASE, 52, 50), **bare), baseline=baseline)
    assert (macro.code, task.advisory) == ("UNDERPOWERED", True)
    assert "from aggregates alone, a weaker test" in task.summary
    assert "from aggregates alone, a weaker test: arc" in macro.summary
    _, nothing = judged(arm("fp8", num_items=None, **bare), baseline=(arm("a", num_items=None, **bare),))
    assert (nothing.code, nothing.advisory) == ("TRUNCATED", False)


def test_one_model_in_both_arms() -> None:
    items = {f"arc {k}": Item(float(value), None, "", f"answer {k}") for k, value in enumerate(BASE)}
    found = judged(arm("fp8", items=items), baseline=(arm("a", items=items), BF16[1]))
    assert codes(found) == [("evals", "inconclusive", "FP8_NOT_ACTIVE"), ("eval_task", "inconclusive", "FP8_NOT_ACTIVE")]
    assert codes(judged(arm("fp8")))[1] == ("eval_task", "pass", "")


def trial(rng: np.random.Generator, gap: float, sd: float, runs: int) -> tuple[CheckResult, ...]:
    """Tasks of 4,000 documents whose runs scatter by `sd` of their own; the candidate is worse by `gap` in truth."""

    def run(name: str, shift: float) -> ItemRecord:
        tasks = {}
        for task, level in (("x", 0.5), ("y", 0.7)):
            share = np.clip(level + shift + rng.normal(0, sd), 0, 1)
            # Most documents are easy or hard for every run; the rest is a coin.
            sure = rng_of[task] < 0.9
            values = np.where(sure, rng_of[task] < 0.9 * share, rng.random(4000) < share)
            tasks[task] = scores(task, values.astype(float))
        return record(name, tasks)

    rng_of = {task: rng.random(4000) for task in ("x", "y")}
    return judge_items(compare_items([run(f"b{k}", 0.0) for k in range(runs)], [run("fp8", -gap)]))


@pytest.mark.slow
@pytest.mark.parametrize("sd", [0.0, 0.003])
def test_how_often_chance_passes_a_task_at_its_margin(sd: float) -> None:
    rng = np.random.default_rng(7)
    results = [task for _ in range(100) for task in trial(rng, 0.02, sd, 4)[1:]]
    assert np.mean([task.status == "pass" for task in results]) <= 0.08


@pytest.mark.slow
def test_how_often_chance_fails_or_passes_equal_models() -> None:
    rng = np.random.default_rng(8)
    results = [result for _ in range(60) for result in trial(rng, 0.0, 0.002, 4)]
    assert np.mean([result.status == "fail" for result in results]) <= 0.01
    assert np.mean([result.status == "pass" for result in results if result.check == "eval_task"]) >= 0.8


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.tuples(*[st.floats(-1, 2) | st.sampled_from([0.0, 1.0, nan])] * 3), min_size=1, max_size=40),
    bare=st.booleans(),
    number=st.none() | st.integers(0, 50),
    stderr=st.none() | st.floats(0, 1),
)
def test_any_scores_give_results_and_bounds_that_a_pass_stands_on(
    values: list[tuple[float, ...]], bare: bool, number: int | None, stderr: float | None
) -> None:
    changes: dict[str, Any] = {"stderr": stderr} | ({"items": None, "num_items": number} if bare else {})
    arms = [arm(name, np.array(column), **changes) for name, column in zip("abc", zip(*values, strict=True), strict=True)]
    for result in judge_items(compare_items(arms[:2], arms[2:])):
        assert result.summary
        if result.status == "pass":
            assert result.interval is not None
            assert result.limit is not None
            assert result.interval[0] > -result.limit


def test_from_files_to_a_verdict(tmp_path: Path) -> None:
    values = {"a": BASE, "b": flipped(BASE, 51, 49), "fp8": flipped(BASE, 52, 50)}
    for name, answers in values.items():
        answered(tmp_path / name, {"arc_easy": answers.tolist()}, model_name=name)
    baseline = find_items([str(tmp_path / "a"), str(tmp_path / "b")]).records
    found = judge_items(compare_items(baseline, find_items([str(tmp_path / "fp8")]).records))
    # All log-likelihoods of these files are the same, yet not all answers are.
    assert codes(found) == [("evals", "pass", ""), ("eval_task", "pass", "")]
    same = judge_items(compare_items(baseline[:1], baseline[:1]))
    assert [result.code for result in same] == ["INVALID_PAIR"] * 2


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    name = "<script>../../x\x1b[31m</script>"
    for folder in ("a", "fp8"):
        answered(tmp_path / folder, {"arc": [1.0, 0.0]}, model_name=name, results={name: {"acc,none": 0.5}})
    records = [find_items([str(tmp_path / folder)]).records for folder in ("a", "fp8")]
    found = judge_items(compare_items(*records))
    assert all(result.status != "pass" and result.summary.isprintable() for result in found)
