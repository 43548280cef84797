"""Item evaluations of the lm-evaluation-harness: what is read of them, what belongs together, and files that are broken."""

import gzip
import json
import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8migrate.errors import UsageError
from fp8migrate.records.items import Item, ItemRecord, find_items
from tests.records.evaluations import DATE, LATER, answered, digest, results, sample, write

REAL = Path(__file__).parent / "lm_eval_0_4_13"


def one(path: Path) -> ItemRecord:
    (record,) = find_items([str(path)]).records
    return record


def items_of(record: ItemRecord, task: str) -> dict[str, Item]:
    items = record.tasks[task].items
    assert items is not None
    return dict(items)


def test_scores_documents_and_settings_of_a_run(tmp_path: Path) -> None:
    path = answered(tmp_path / "bf16", {"arc_easy": [1.0, 0.0, 1.0, 1.0], "piqa": [1.0, 0.0]})
    found = find_items([str(tmp_path)])
    (record,) = found.records
    assert (record.source, record.name) == (str(path), "/checkpoints/bf16")
    arc = record.tasks["arc_easy"]
    assert (arc.metric, arc.filter, arc.higher_is_better, arc.score, arc.stderr) == ("acc", "none", True, 0.75, 0.01)
    assert (arc.num_items, arc.num_fewshot, arc.version) == (4, 5, "1.0")
    items = items_of(record, "arc_easy")
    assert [item.value for item in items.values()] == [1.0, 0.0, 1.0, 1.0]
    assert list(items) == [digest(f"document {k}") for k in range(4)]
    assert record.settings["model_args.dtype"] == "bfloat16"
    assert (record.settings["limit"], record.settings["batch_size"], record.settings["fewshot_seed"]) == ("none", "8", "1234")
    assert record.notes == ()
    assert found.files == {file.resolve() for file in (tmp_path / "bf16").iterdir()}


def test_what_the_harness_itself_wrote() -> None:
    """A run of lm_eval 0.4.13 on its dummy model: a group of two tasks, and one task with two filters."""
    found = find_items([str(REAL)])
    (record,) = found.records
    assert len(found.files) == 4
    assert record.notes == ()
    toy, generated = record.tasks["toy"], record.tasks["toy_gen"]
    assert (toy.metric, toy.score, toy.num_items, toy.subtasks) == ("acc_norm", 0.5, 6, ("toy_one", "toy_two"))
    assert [item.value for item in items_of(record, "toy").values()] == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert len({item.cluster for item in items_of(record, "toy").values()}) == 2
    assert all(item.answers and item.finite for item in items_of(record, "toy").values())
    assert (generated.metric, generated.filter, generated.num_items) == ("exact_match", "strict-match", 3)
    assert (record.settings["model"], record.settings["lm_eval_version"]) == ("dummy", "0.4.13")


def test_a_results_file_named_by_itself_brings_its_samples(tmp_path: Path) -> None:
    path = answered(tmp_path, {"piqa": [1.0, 0.0]})
    found = find_items([str(path)])
    assert len(items_of(found.records[0], "piqa")) == 2
    assert len(found.files) == 2


@pytest.mark.parametrize("name", ["{}", "{}/*/*.json", "{}/**/results_*"])
def test_folders_and_patterns(tmp_path: Path, name: str) -> None:
    answered(tmp_path / "a", {"piqa": [1.0]})
    answered(tmp_path / "b", {"piqa": [0.0]})
    assert [record.tasks["piqa"].score for record in find_items([name.format(tmp_path)]).records] == [1.0, 0.0]


def test_what_is_named_twice_is_there_once(tmp_path: Path) -> None:
    path = answered(tmp_path, {"piqa": [1.0]})
    assert len(find_items([str(path), str(tmp_path), f"{tmp_path}/*.json*"]).records) == 1


def test_other_files_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    (tmp_path / "other.json").write_text('{"results": {"speed": {"tokens": 5}}, "config": {}}')
    (tmp_path / "config.json").write_text('{"config": {"a": 1}}')
    (tmp_path / "list.json").write_text('{"results": [1, 2]}')
    (tmp_path / "nul.json").write_bytes(b"\0" * 100_000)
    (tmp_path / "empty.json").write_bytes(b"")
    names = [str(tmp_path), str(tmp_path / "absent"), "-", "no*thing", "nul\0byte", "x" * 5000]
    assert find_items(names) == find_items([])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    assert find_items([str(tmp_path), str(tmp_path / "pipe.json")]).records == ()


def test_a_folder_of_ten_thousand_logs(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"log{number}.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
    answered(tmp_path / "evals", {"piqa": [1.0]})
    assert len(find_items([str(tmp_path)]).files) == 2


@pytest.mark.parametrize(
    ("row", "metric", "name"),
    [
        ({"acc,none": 0.5, "acc_norm,none": 0.6}, "acc_norm", "none"),
        ({"acc_stderr,none": 0.1, "acc,none": 0.5}, "acc", "none"),
        ({"exact_match,strict-match": 0.4, "exact_match,flexible-extract": 0.5}, "exact_match", "strict-match"),
        ({"acc,remove_whitespace": 0.4, "acc,none": 0.5}, "acc", "none"),
        ({"word_perplexity,none": 12.5, "bits_per_byte,none": 0.7}, "word_perplexity", "none"),
        ({"acc": 0.5, "acc_stderr": 0.1}, "acc", ""),
    ],
)
def test_the_metric_is_chosen_by_a_rule(tmp_path: Path, row: dict[str, float], metric: str, name: str) -> None:
    task = one(write(tmp_path, results({"task": row}))).tasks["task"]
    assert (task.metric, task.filter, task.score) == (metric, name, row[f"{metric},{name}".rstrip(",")])
    assert task.items is None


def test_several_filters_for_each_document(tmp_path: Path) -> None:
    names = ("strict-match", "flexible-extract")
    rows = [sample(k, {"exact_match": float(f == names[0] and k == 0)}, filter_name=f) for f in names for k in range(3)]
    document = results({"gsm8k": {f"exact_match,{names[0]}": 1 / 3, f"exact_match,{names[1]}": 0.0}}, 3)
    values = [item.value for item in items_of(one(write(tmp_path, document, {"gsm8k": rows})), "gsm8k").values()]
    assert values == [1.0, 0.0, 0.0]


def test_without_named_filters_several_answers_are_not_told_apart(tmp_path: Path) -> None:
    rows = [sample(k, {"exact_match": 0.0}, filter=None) for k in (0, 1, 0, 1)]
    record = one(write(tmp_path, results({"gsm8k": {"exact_match,strict-match": 0.0}}, 2), {"gsm8k": rows}))
    assert record.tasks["gsm8k"].items is None
    assert "several answers" in record.notes[0]


def test_documents_without_hashes_go_by_their_number_and_repeated_ones_are_told_apart(tmp_path: Path) -> None:
    rows = [sample(k, {"acc": 1.0}, doc_hash=None) for k in (1, 0)]
    assert list(items_of(one(write(tmp_path / "a", results({"t": {"acc,none": 1.0}}, 2), {"t": rows})), "t")) == [
        "document 0",
        "document 1",
    ]
    rows = [sample(k, {"acc": float(k)}, doc_hash="same") for k in (1, 0)]
    items = items_of(one(write(tmp_path / "b", results({"t": {"acc,none": 0.5}}, 2), {"t": rows})), "t")
    assert {key: item.value for key, item in items.items()} == {"same": 0.0, "same (2)": 1.0}


def test_items_of_one_passage_are_known_to_be(tmp_path: Path) -> None:
    rows = [sample(k, {"acc": 1.0}, doc={"article": f"passage {k // 2}", "question": str(k)}) for k in range(4)]
    found = list(items_of(one(write(tmp_path, results({"race": {"acc,none": 1.0}}, 4), {"race": rows})), "race").values())
    assert found[0].cluster == found[1].cluster != found[2].cluster == found[3].cluster
    assert found[0].cluster is not None


def test_a_group_that_the_harness_averages_is_one_task(tmp_path: Path) -> None:
    document = results({name: {"acc,none": 0.5} for name in ("mmlu", "mmlu_stem", "mmlu_a", "mmlu_b", "piqa")})
    document["group_subtasks"] = {"mmlu": ["mmlu_stem", "mmlu_b"], "mmlu_stem": ["mmlu_a"], "piqa": []}
    document["n-samples"] = {name: {"original": 2, "effective": 2} for name in ("mmlu_a", "mmlu_b", "piqa")}
    rows = {name: [sample(k, {"acc": float(k)}) for k in range(2)] for name in ("mmlu_a", "mmlu_b", "piqa")}
    record = one(write(tmp_path, document, rows))
    assert set(record.tasks) == {"mmlu", "piqa"}
    mmlu = record.tasks["mmlu"]
    assert (mmlu.subtasks, mmlu.num_items, mmlu.version) == (("mmlu_a", "mmlu_b"), 4, "1.0, 1.0")
    assert next(iter(items_of(record, "mmlu"))) == f"mmlu_a: {digest('document 0')}"


def test_a_group_of_tasks_that_are_scored_otherwise_is_its_tasks(tmp_path: Path) -> None:
    document = results({"all": {"acc,none": 0.5}, "piqa": {"acc,none": 0.5}, "arc": {"acc_norm,none": 0.5}})
    document["group_subtasks"] = {"all": ["piqa", "arc"]}
    assert set(one(write(tmp_path, document)).tasks) == {"piqa", "arc"}


def test_groups_that_hold_each_other_end(tmp_path: Path) -> None:
    document = results({"a": {"acc,none": 0.5}, "b": {"acc,none": 0.5}, "piqa": {"acc,none": 0.5}})
    document["group_subtasks"] = {"a": ["b", 5, None], "b": ["a"], "c": "piqa"}
    assert "piqa" in one(write(tmp_path, document)).tasks


def test_a_group_without_its_tasks_stands_for_itself(tmp_path: Path) -> None:
    document = results({"mmlu": {"acc,none": 0.5}})
    document["group_subtasks"] = {"mmlu": ["mmlu_a", "mmlu_b"]}
    assert set(one(write(tmp_path, document)).tasks) == {"mmlu"}


def test_evaluated_again_is_another_run_and_other_tasks_are_the_same_run(tmp_path: Path) -> None:
    answered(tmp_path, {"piqa": [1.0, 0.0]})
    answered(tmp_path, {"arc": [1.0, 1.0]}, date="2026-03-01T12-00-00.5")
    answered(tmp_path, {"piqa": [0.0, 0.0]}, date=LATER)
    first, second = find_items([str(tmp_path)]).records
    assert (set(first.tasks), set(second.tasks)) == ({"piqa", "arc"}, {"piqa"})
    assert (first.tasks["piqa"].score, second.tasks["piqa"].score) == (0.5, 0.0)
    assert first.name != second.name
    assert any("put together from 2 results files" in note for note in first.notes)
    assert any("2 evaluations of this model" in note for note in second.notes)
    assert len(items_of(second, "piqa")) == 2


def test_files_called_with_other_settings_are_not_put_together(tmp_path: Path) -> None:
    answered(tmp_path, {"piqa": [1.0]})
    answered(tmp_path, {"arc": [1.0]}, date=LATER, model_name="other")
    assert [set(record.tasks) for record in find_items([str(tmp_path)]).records] == [{"piqa"}, {"arc"}]


def test_names_of_0_4_0_and_compressed_files(tmp_path: Path) -> None:
    document = results({"arc": {"acc,none": 0.5}, "x_arc": {"acc,none": 1.0}}, 2)
    (tmp_path / "results.json.gz").write_bytes(gzip.compress(json.dumps(document).encode()))
    rows = {"arc": [0.0, 1.0], "x_arc": [1.0, 1.0]}
    for task, values in rows.items():
        listed = [sample(k, {"acc": value}, filter=None, doc_hash=None) for k, value in enumerate(values)]
        (tmp_path / f"pretrained__gpt2_{task}.jsonl").write_text(json.dumps(listed, indent=2))
    record = one(tmp_path)
    assert [item.value for item in items_of(record, "arc").values()] == [0.0, 1.0]
    assert [item.value for item in items_of(record, "x_arc").values()] == [1.0, 1.0]


def test_the_oldest_single_file(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text('{"results": {"piqa": {"acc": 0.5, "acc_stderr": 0.1}}, "versions": {"piqa": 0}}')
    task = one(tmp_path).tasks["piqa"]
    assert (task.score, task.stderr, task.version, task.num_items, task.num_fewshot) == (0.5, 0.1, "0", None, None)


def test_what_is_no_mean_over_documents_has_no_items(tmp_path: Path) -> None:
    rows = [sample(k, {"f1": 0.5, "mcc": [0, 1]}) for k in range(3)]
    corpus = one(write(tmp_path / "a", results({"t": {"f1,none": 0.9}}, 3), {"t": rows}))
    listed = one(write(tmp_path / "b", results({"t": {"mcc,none": 0.9}}, 3), {"t": rows}))
    absent = one(write(tmp_path / "c", results({"t": {"acc,none": 0.9}}, 3), {"t": rows}))
    for record, why in ((corpus, "not the mean"), (listed, "no number a document"), (absent, "do not hold acc")):
        assert record.tasks["t"].items is None
        assert why in record.notes[0]


def test_missing_documents_show_in_their_number(tmp_path: Path) -> None:
    record = one(write(tmp_path, results({"t": {"acc,none": 0.9}}, 30), {"t": [sample(0, {"acc": 1.0})]}))
    assert (record.tasks["t"].num_items, len(items_of(record, "t"))) == (30, 1)


def test_nan_is_kept_as_a_score_and_seen_in_log_likelihoods(tmp_path: Path) -> None:
    rows = [
        sample(0, {"acc": math.nan}),
        sample(1, {"acc": 0.0}, filtered_resps=[["nan", "False"], ["nan", "False"]]),
        sample(2, {"acc": 0.0}, filtered_resps=[[math.nan, False]]),
        sample(3, {"acc": "True"}),
    ]
    record = one(write(tmp_path, results({"t": {"acc,none": math.nan}}, 4), {"t": rows}))
    score = record.tasks["t"].score
    assert score is not None
    assert math.isnan(score)
    assert [item.finite for item in items_of(record, "t").values()] == [False, False, False, True]


def test_an_answer_that_says_nan_is_no_nan(tmp_path: Path) -> None:
    document = results({"t": {"exact_match,none": 0.0}}, 1)
    document["configs"]["t"]["output_type"] = "generate_until"
    record = one(write(tmp_path, document, {"t": [sample(0, {"exact_match": 0.0}, filtered_resps=["nan"])]}))
    assert items_of(record, "t")[digest("document 0")] == Item(0.0, None, f"{digest('prompt 0')} {digest('0')}")


BOMB = "[" * 200_000


@pytest.mark.parametrize(
    "text",
    [
        '{"results": {"piqa": {"acc,none": 0.5',
        '{"results": {"piqa": {"acc,none": 0.5}}, "versions": ' + BOMB,
        '{"results": {"piqa": {"acc,none": ' + "9" * 5000 + "}}}",
        '{"results": {}, "versions": {}}',
        '{"results": {"piqa": {"alias": "piqa", "acc,none": "N/A"}}, "versions": {}}',
        '{"results": {"piqa": "\0"}}',
    ],
)
def test_broken_results_are_said(tmp_path: Path, text: str) -> None:
    (tmp_path / f"results_{DATE}.json").write_text(text)
    with pytest.raises(UsageError) as caught:
        find_items([str(tmp_path)])
    assert "results_" in str(caught.value)
    assert caught.value.next_step


@pytest.mark.parametrize(
    "line",
    [
        '{"doc_id": 1, "acc": 1.0',
        '{"doc_id": 1, "acc": ' + BOMB,
        "\0\0\0\0",
        "5",
        '{"acc": 1.0}',
        '{"doc_id": "one", "acc": 1.0}',
        '{"doc_id": true, "acc": 1.0}',
    ],
)
def test_torn_samples_are_said_with_their_line(tmp_path: Path, line: str) -> None:
    answered(tmp_path, {"piqa": [1.0]})
    with (tmp_path / f"samples_piqa_{DATE}.jsonl").open("a") as file:
        file.write(line)
    with pytest.raises(UsageError, match=r"(?s)(:2|line 2).*Evaluate again"):
        find_items([str(tmp_path)])


def test_an_endless_line_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp8migrate.records.items.MAX_LINE_BYTES", 10_000)
    answered(tmp_path, {"piqa": [1.0]})
    with gzip.open(tmp_path / f"samples_piqa_{DATE}.jsonl", "wb") as file:
        file.write(b'{"doc_id": 0, "doc": "' + b"x" * 1_000_000)
    with pytest.raises(UsageError, match="line 1 is longer"):
        find_items([str(tmp_path)])


def test_too_large_and_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(tmp_path, {"piqa": [1.0, 1.0, 0.0]})
    monkeypatch.setattr("fp8migrate.records.items.MAX_ITEMS", 2)
    with pytest.raises(UsageError, match="more than 2 documents"):
        find_items([str(tmp_path)])
    monkeypatch.setattr("fp8migrate.records.items.MAX_RESULTS_BYTES", 100)
    with pytest.raises(UsageError, match="larger than"):
        find_items([str(tmp_path)])
    monkeypatch.setattr("fp8migrate.records.items.MAX_FILES", 1)
    with pytest.raises(UsageError, match="more than 1 files"):
        find_items([str(tmp_path)])


def test_a_torn_compressed_file_is_said(tmp_path: Path) -> None:
    document = json.dumps(results({"piqa": {f"acc,{k}": 0.5 for k in range(5000)}})).encode()
    (tmp_path / "results.json").write_bytes(gzip.compress(document)[:-2000])
    with pytest.raises(UsageError, match="cannot be read"):
        find_items([str(tmp_path)])


def test_samples_alone_are_of_no_use(tmp_path: Path) -> None:
    answered(tmp_path, {"piqa": [1.0]}).unlink()
    with pytest.raises(UsageError, match="without its results"):
        find_items([str(tmp_path)])


def test_samples_of_another_date_are_left_out_and_said(tmp_path: Path) -> None:
    answered(tmp_path, {"piqa": [1.0]})
    (tmp_path / f"samples_piqa_{DATE}.jsonl").rename(tmp_path / f"samples_piqa_{LATER}.jsonl")
    found = find_items([str(tmp_path)])
    assert found.records[0].tasks["piqa"].items is None
    assert "of no results file" in found.records[0].notes[0]
    assert len(found.files) == 2


def test_hostile_names_are_text_and_never_paths(tmp_path: Path) -> None:
    names = ["../../etc/passwd", "<script>alert(1)</script>", "a\x1b[31m\0b", "\ud800", "x" * 100_000]
    document = results({name: {"acc,none": 0.5} for name in names}, model_name="<b>\x1b[2J</b>")
    (tmp_path / f"results_{DATE}.json").write_text(json.dumps(document))
    record = one(tmp_path)
    assert len(record.tasks) == 5
    assert all(name.isprintable() and len(name) < 200 for name in [*record.tasks, record.name])
    assert find_items([str(tmp_path)]).files == {(tmp_path / f"results_{DATE}.json").resolve()}


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FIELDS = ("results", "configs", "versions", "n-shot", "n-samples", "higher_is_better", "group_subtasks", "config", "model_name")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(FIELDS), within=st.sampled_from(["", "piqa"]), value=json_values, number=json_values)
def test_any_field_may_hold_anything(tmp_path: Path, field: str, within: str, value: object, number: object) -> None:
    document = results({"piqa": {"acc,none": number}}, 1)
    document[field] = {within: value} if within else value
    row = sample(0, {"acc": number}) | {"doc": value, "filter": value, "doc_hash": value, "filtered_resps": value}
    write(tmp_path, document, {"piqa": [row]})
    with suppress(UsageError):
        assert all(record.tasks for record in find_items([str(tmp_path)]).records)
