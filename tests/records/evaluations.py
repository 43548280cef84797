"""Evaluations written as the lm-evaluation-harness writes them, for tests."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8migrate.records.items import Item, ItemRecord, TaskScores

DATE = "2026-03-01T10-00-00.123456"
LATER = "2026-03-02T11-30-00.5"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sample(doc_id: int, values: Mapping[str, Any], *, filter_name: str = "none", **changes: Any) -> dict[str, Any]:
    """One line of a samples file."""
    row = {
        "doc_id": doc_id,
        "doc": {"question": f"question {doc_id}"},
        "target": "0",
        "arguments": {"gen_args_0": {"arg_0": f"Question: {doc_id}\nAnswer:", "arg_1": " yes"}},
        "resps": [[["-1.5", "False"]], [["-2.5", "True"]]],
        "filtered_resps": [["-1.5", "False"], ["-2.5", "True"]],
        "filter": filter_name,
        "metrics": list(values),
        "doc_hash": digest(f"document {doc_id}"),
        "prompt_hash": digest(f"prompt {doc_id}"),
        "target_hash": digest("0"),
        **values,
    }
    return {key: value for key, value in (row | changes).items() if value is not None}


def results(scores: Mapping[str, Mapping[str, Any]], num_items: int | None = None, **changes: Any) -> dict[str, Any]:
    """A results file. scores: by task, as `{"acc,none": 0.5}`."""
    found = {
        "results": {task: {"alias": task, **row} for task, row in scores.items()},
        "group_subtasks": {task: [] for task in scores},
        "configs": {
            task: {"task": task, "dataset_path": task, "output_type": "multiple_choice", "num_fewshot": 5} for task in scores
        },
        "versions": dict.fromkeys(scores, 1.0),
        "n-shot": dict.fromkeys(scores, 5),
        "higher_is_better": {task: {label.split(",")[0]: True for label in row} for task, row in scores.items()},
        "n-samples": {} if num_items is None else {t: {"original": num_items, "effective": num_items} for t in scores},
        "config": {
            "model": "hf",
            "model_args": "pretrained=/checkpoints/bf16,dtype=bfloat16",
            "batch_size": 8,
            "limit": None,
            "random_seed": 0,
            "fewshot_seed": 1234,
            "gen_kwargs": None,
        },
        "git_hash": "abc123",
        "lm_eval_version": "0.4.9",
        "model_source": "hf",
        "model_name": "/checkpoints/bf16",
        "chat_template": None,
        "chat_template_sha": None,
    }
    return found | changes


def write(
    folder: Path,
    document: Mapping[str, Any],
    samples: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    date: str = DATE,
) -> Path:
    """One run of the harness in a model's folder. Python's json writes NaN as the harness does."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"results_{date}.json"
    path.write_text(json.dumps(document, indent=2), encoding="utf-8")
    for task, rows in (samples or {}).items():
        (folder / f"samples_{task}_{date}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def answered(folder: Path, tasks: Mapping[str, Sequence[float]], *, date: str = DATE, **changes: Any) -> Path:
    """An evaluation of tasks whose documents scored these accuracies."""
    counts = {task: {"original": len(values), "effective": len(values)} for task, values in tasks.items()}
    document = results({task: {"acc,none": sum(v) / len(v), "acc_stderr,none": 0.01} for task, v in tasks.items()}, **changes)
    rows = {task: [sample(k, {"acc": value}) for k, value in enumerate(values)] for task, values in tasks.items()}
    return write(folder, document | {"n-samples": counts}, rows, date)


def record(name: str, tasks: Mapping[str, TaskScores], **settings: str) -> ItemRecord:
    """An evaluation as read, of a model in a folder of its own."""
    known = {"model": "hf", "model_name": name, "model_args.pretrained": name, "limit": "none"}
    return ItemRecord(f"evals/{name}/results_{DATE}.json", name, tasks, known | settings)


def scores(task: str, values: Sequence[float] | NDArray[np.float64], **changes: Any) -> TaskScores:
    """A task whose documents scored these values. Prompts are the same in every arm; log-likelihoods are not known."""
    x = np.asarray(values, dtype=np.float64)
    items = {f"{task} {k}": Item(float(value), None, f"prompt {k}", "", bool(np.isfinite(value))) for k, value in enumerate(x)}
    found = TaskScores(task, "acc", "none", True, float(x.mean()), None, x.size, 5, "1.0", items)
    return replace(found, **changes)
