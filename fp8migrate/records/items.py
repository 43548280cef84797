"""Item evaluations as EleutherAI's lm-evaluation-harness writes them: scores a task, and answers a document.

A run of the harness (0.4 and newer) leaves `<output>/<model>/results_<date>.json` with `results`, `versions`, `n-shot`,
`configs`, `n-samples`, `higher_is_better` and `group_subtasks`, and with `--log_samples` one `samples_<task>_<date>.jsonl` a
task beside it: a line for each document and filter. 0.4.0 wrote `results.json` and `<model>_<task>.jsonl`, which holds one
JSON list; older versions wrote `results` and `versions` alone. Python's json writes NaN as it is, which orjson refuses.
"""

import glob
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import orjson

from fp8migrate.errors import UsageError
from fp8migrate.records.find import MAX_FILES
from fp8migrate.records.readers.document import any_json

MAX_RESULTS_BYTES = 1 << 26
MAX_LIST_BYTES = 1 << 27
# One document's prompt for every answer, few-shot examples included: megabytes where contexts are long.
MAX_LINE_BYTES = 1 << 25
MAX_ITEMS = 2_000_000
MAX_NAME = 120
_HEAD_BYTES = 1 << 12
_AGAIN = "Was it cut while it was written? Evaluate again."
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
_GZIP = b"\x1f\x8b"

# The metric that a task is judged by is fixed before anybody looks at a number: the first of these that it reports, else the
# first in the file. acc_norm (by length) comes before acc: where the harness reports both, published tables use it
# (ARC, HellaSwag, PIQA, OpenBookQA). Of several filters, `none`, else the first in the file, as the task declares them.
PREFERRED_METRICS = ("acc_norm", "acc", "exact_match", "prompt_level_strict_acc", "pass@1", "pass_at_1", "em", "f1")
# Metrics of which the mean over documents may differ from the score by rounding alone.
_ROUNDING = 1e-4
# Fields of a document that hold the passage which several questions share.
_PASSAGES = ("passage", "paragraph", "article", "context", "story")
_LIKELIHOODS = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
_TASK_SETTINGS = ("dataset_path", "dataset_name", "test_split", "fewshot_split", "generation_kwargs", "repeats", "output_type")
_RUN_SETTINGS = (
    *("model_name", "model_source", "chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn", "max_length"),
    *("tokenizer_bos_token", "tokenizer_eos_token", "lm_eval_version", "transformers_version", "git_hash"),
)
_NOT_SETTINGS = ("batch_sizes", "bootstrap_iters", "use_cache")

_RESULTS = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*\{\s*"results"\s*:\s*\{')
_OBJECT = re.compile(
    rb'\A(?:\xef\xbb\xbf)?\s*\{\s*"(?:chat_template|config|configs|date|eot_token_id|git_hash|group_subtasks|groups)"'
)
_SAMPLES = re.compile(rb'\A(?:\xef\xbb\xbf)?\s*(?:\[\s*)?\{\s*"doc_id"\s*:\s*\d')
_DATED = re.compile(r"(.*?)_?(\d{4}-\d{2}-\d{2}T\d{2}[-:]\d{2}[-:]\d{2}(?:\.\d{1,9})?)\Z", re.DOTALL)

Json = Mapping[str, Any]
Kind = Literal["results", "samples", ""]


class Item(NamedTuple):
    """What a model scored on one document.

    value: as the metric gives it. cluster: digest of the passage that it shares with others, None where none is known.
    prompt: hashes of prompt and target, empty where not logged. answers: digest of the log-likelihoods of all choices,
    empty where the task has none. finite: neither value nor log-likelihoods are NaN.
    """

    value: float
    cluster: str | None = None
    prompt: str = ""
    answers: str = ""
    finite: bool = True


@dataclass(frozen=True, eq=False)
class TaskScores:
    """One task, or a group of tasks that are scored alike and that the harness averages, as MMLU, with all its documents.

    score, stderr: as reported; None where missing. num_items: documents scored, as reported. items: by document (hash of the
    document, else its number), None where only aggregates exist. settings: of the task. subtasks: of a group.
    """

    task: str
    metric: str
    filter: str
    higher_is_better: bool | None
    score: float | None
    stderr: float | None
    num_items: int | None
    num_fewshot: int | None
    version: str
    items: Mapping[str, Item] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    subtasks: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ItemRecord:
    """One model's evaluation. source: its results file as the user named it; settings: flattened text, long values cut."""

    source: str
    name: str
    tasks: Mapping[str, TaskScores]
    settings: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoundItems:
    """files: resolved paths of all that was taken, which other readers leave alone."""

    records: tuple[ItemRecord, ...] = ()
    files: frozenset[Path] = frozenset()


def find_items(names: Sequence[str]) -> FoundItems:
    """The evaluations among files, folders and patterns, in the order named; what is no evaluation is not taken.

    UsageError where an evaluation is torn, too large, or samples lie there without their results file.
    """
    kinds = {path: kind for path in _candidates(names) if (kind := _kind(path))}
    results = [path for path, kind in kinds.items() if kind == "results"]
    named = [path for path, kind in kinds.items() if kind == "samples"]
    beside: dict[Path, dict[Path, Path]] = {}
    for path in named:
        beside.setdefault(path.parent.resolve(), {})[path.resolve()] = path
    known = {path.resolve() for path in kinds}
    for folder in {path.parent.resolve(): path.parent for path in results}.values():
        # A results file that is named by itself brings its samples along.
        more = {path.resolve(): path for path in _siblings(folder, known)}
        beside.setdefault(folder.resolve(), {}).update(more)
    taken: set[Path] = set()
    read = []
    for path in results:
        one = _read(path, list(beside.get(path.parent.resolve(), {}).values()))
        if one is not None:
            read.append(one)
            taken |= {file.resolve() for file in (path, *one.samples)}
    left = [path for path in named if path.resolve() not in taken]
    return FoundItems(tuple(_with_left(_runs(read), left)), frozenset(taken | {path.resolve() for path in left}))


def _candidates(names: Sequence[str]) -> list[Path]:
    """Files that could be evaluations, each once. Names that stand for nothing are left to who reads logs."""
    found: dict[Path, Path] = {}
    for name in names:
        for path in _named(name):
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _named(name: str) -> Iterator[Path]:
    if "\0" in name:
        return
    try:
        there = Path(name).exists()
    except OSError:
        # A name longer than any file's.
        return
    for path in [Path(name)] if there else [Path(one) for one in sorted(glob.glob(name, recursive=True))]:
        if path.is_dir():
            yield from _of_folder(path)
        elif path.is_file():
            yield path


def _of_folder(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    if len(files) > MAX_FILES:
        raise UsageError(f"holds more than {MAX_FILES} files", where=str(folder), next_step="Name the files themselves.")
    return [path for path in files if path.name.lower().endswith(_SUFFIXES)]


def _siblings(folder: Path, known: Collection[Path]) -> list[Path]:
    """Samples of a folder that are not known yet."""
    files = [path for path in sorted(folder.glob("*.json*")) if path.is_file() and not path.is_symlink()]
    fresh = [path for path in files if path.name.lower().endswith(_SUFFIXES) and path.resolve() not in known]
    return [path for path in fresh if _kind(path) == "samples"]


def _kind(path: Path) -> Kind:
    """What a file is, by its first bytes."""
    try:
        with _opened(path) as stream:
            head = stream.read(_HEAD_BYTES)
    except UsageError:
        return ""
    if _SAMPLES.match(head):
        return "samples"
    return "results" if _RESULTS.match(head) or _OBJECT.match(head) else ""


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, or what a compressed one holds. UsageError where it cannot be read, also while it is."""
    try:
        with path.open("rb") as stream:
            compressed = stream.read(len(_GZIP)) == _GZIP
            stream.seek(0)
            yield cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if compressed else stream
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"cannot be read: {error}", where=str(path), next_step="Is the file whole?") from error


def _document(path: Path, most: int) -> Any:
    with _opened(path) as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise UsageError(f"is larger than {most >> 20} MiB", where=str(path), next_step="Name the files to compare themselves.")
    return any_json(content.removeprefix(b"\xef\xbb\xbf"), str(path), _AGAIN)


# One results file


@dataclass(frozen=True, eq=False)
class _Read:
    """One results file as read. samples: the files that belong to it."""

    path: Path
    stem: str
    date: str
    record: ItemRecord
    samples: tuple[Path, ...]


def _read(path: Path, samples: Sequence[Path]) -> _Read | None:
    """None where a file that looks like results is of another tool."""
    document = _results(path)
    if document is None:
        return None
    stem, date = _name_and_date(path)
    notes: list[str] = []
    named = _metrics(document["results"])
    if not named:
        raise UsageError("is an evaluation without a score", where=str(path), next_step="Evaluate at least one task.")
    files = _files_of(list(named), samples, date)
    scores = {}
    for task, metrics in named.items():
        one = _scores(document, task, metrics)
        scores[task] = _with_items(one, files[task], notes) if task in files else one
    settings = _settings(document)
    name = _clean(settings.get("model_name") or settings.get("model_args.pretrained") or path.parent.name or stem)
    tasks = {_clean(unit.task): unit for unit in _units(document, scores)}
    return _Read(path, stem, date, ItemRecord(str(path), name, tasks, settings, tuple(notes)), tuple(files.values()))


def _results(path: Path) -> Json | None:
    with _opened(path) as stream:
        surely = _RESULTS.match(stream.read(_HEAD_BYTES)) is not None
    try:
        document = _document(path, MAX_RESULTS_BYTES)
    except UsageError:
        if surely:
            raise
        return None
    if not isinstance(document, dict) or not isinstance(results := document.get("results"), dict):
        return None
    known = any(key in document for key in ("versions", "configs", "n-shot"))
    return document if known and all(isinstance(row, dict) for row in results.values()) else None


def _name_and_date(path: Path) -> tuple[str, str]:
    """`samples_arc_2024-…` → what comes before the date, and the date; a file without one has an empty date."""
    name = path.name.lower().removesuffix(".gz")
    stem = path.name[: len(name)].rsplit(".", 1)[0]
    match = _DATED.match(stem)
    return (match[1], match[2]) if match else (stem, "")


def _files_of(tasks: Sequence[str], samples: Sequence[Path], date: str) -> dict[str, Path]:
    """The samples file of each task, of those beside a results file. Names are compared, never used as paths."""
    longest_first = sorted(tasks, key=len, reverse=True)
    found: dict[str, Path] = {}
    for path in samples:
        stem, its_date = _name_and_date(path)
        if its_date != date:
            continue
        for task in longest_first:
            spelled = {task, re.sub(r"\W", "_", task)}
            if any(stem in (one, f"samples_{one}") or (not date and stem.endswith(f"_{one}")) for one in spelled):
                found.setdefault(task, path)
                break
    return found


def _metrics(results: Json) -> dict[str, dict[tuple[str, str], float]]:
    """By task the numbers reported, as (metric, filter) → value, without their errors. Rows without a number are headings."""
    found = {}
    for task, row in results.items():
        numbers = {key: value for key, value in _row(row) if not key[0].endswith("_stderr")}
        if numbers:
            found[task] = numbers
    return found


def _row(row: Json) -> Iterator[tuple[tuple[str, str], float]]:
    for label, value in row.items():
        metric, _, name = label.partition(",")
        if metric.strip() and metric not in ("alias", "name", "sample_len", "sample_count"):
            number = _number(value)
            if number is not None:
                yield (metric, name), number


def _number(value: object) -> float | None:
    """A JSON number, also where it was written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > 40:
        return None
    try:
        return float(value)
    except OverflowError:
        return float("inf")
    except ValueError:
        return None


def _primary(numbers: Mapping[tuple[str, str], float]) -> tuple[str, str]:
    """The metric and filter that a task is judged by: see PREFERRED_METRICS."""
    metrics = list(dict.fromkeys(metric for metric, _ in numbers))
    metric = next((one for one in PREFERRED_METRICS if one in metrics), metrics[0])
    filters = [name for one, name in numbers if one == metric]
    return metric, "none" if "none" in filters else filters[0]


def _scores(document: Json, task: str, numbers: Mapping[tuple[str, str], float]) -> TaskScores:
    metric, name = _primary(numbers)
    errors = dict(_row(document["results"][task]))
    config = _mapping(_mapping(document, "configs"), task)
    counts = _mapping(_mapping(document, "n-samples"), task)
    shots = _mapping(document, "n-shot").get(task, config.get("num_fewshot"))
    stderr = errors.get((f"{metric}_stderr", name))
    settings = {key: _text(config[key]) for key in _TASK_SETTINGS if config.get(key) is not None}
    return TaskScores(
        task=task,
        metric=metric,
        filter=name,
        higher_is_better=_direction(document, task, metric, config),
        score=numbers[metric, name],
        stderr=stderr if stderr is not None and isfinite(stderr) and stderr >= 0 else None,
        num_items=_count(counts.get("effective", document["results"][task].get("sample_len"))),
        num_fewshot=_count(shots),
        version=_text(_mapping(document, "versions").get(task, "")),
        settings=settings,
    )


def _direction(document: Json, task: str, metric: str, config: Json) -> bool | None:
    said = _mapping(_mapping(document, "higher_is_better"), task).get(metric)
    listed = config.get("metric_list")
    for entry in listed if said is None and isinstance(listed, list) else ():
        if isinstance(entry, dict) and entry.get("metric") == metric:
            said = entry.get("higher_is_better")
    if isinstance(said, bool):
        return said
    return True if metric in PREFERRED_METRICS else None


def _mapping(document: Json, key: str) -> Json:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


# Groups


def _units(document: Json, scores: Mapping[str, TaskScores]) -> list[TaskScores]:
    """Tasks, and groups in place of their tasks where the harness averages them and all are scored alike.

    So MMLU is one task of a macro average, with all its documents, and not fifty-seven.
    """
    children = {
        group: [one for one in names if isinstance(one, str)]
        for group, names in _mapping(document, "group_subtasks").items()
        if isinstance(names, list) and names
    }
    within = {child for names in children.values() for child in names}
    roots = [name for name in (*children, *scores) if name not in within]
    units: dict[str, TaskScores] = {}
    seen: set[str] = set()
    # Groups that hold each other have no root; whatever they hide is told as it stands.
    waiting = [*dict.fromkeys(roots), *(name for name in scores if name not in children)]
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        leaves = _leaves(name, children) if name in children else []
        if leaves and name in scores and (pooled := _pooled(scores[name], [scores.get(leaf) for leaf in leaves])):
            units[name] = pooled
            seen |= {*leaves, *_descendants(name, children)}
        elif any(one in scores for one in leaves):
            waiting = [*children[name], *waiting]
        elif name in scores:
            units[name] = scores[name]
    return list(units.values())


def _descendants(group: str, children: Mapping[str, Sequence[str]]) -> list[str]:
    found: dict[str, None] = {}
    waiting = [*children[group]]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = None
            waiting += children.get(name, ())
    return list(found)


def _leaves(group: str, children: Mapping[str, Sequence[str]]) -> list[str]:
    return sorted(name for name in _descendants(group, children) if name not in children)


def _pooled(group: TaskScores, leaves: Sequence[TaskScores | None]) -> TaskScores | None:
    """A group with the documents of its tasks; None where they are not all there or not scored alike."""
    tasks = [leaf for leaf in leaves if leaf is not None]
    alike = {(leaf.metric, leaf.filter, leaf.higher_is_better) for leaf in tasks}
    if len(tasks) < len(leaves) or len(alike) != 1 or next(iter(alike))[:2] != (group.metric, group.filter):
        return None
    counts = [leaf.num_items for leaf in tasks]
    shots = {leaf.num_fewshot for leaf in tasks}
    # As a whole from documents, or as a whole from aggregates: where some tasks lack theirs, their number shows it.
    items: dict[str, Item] | None = None
    if any(leaf.items is not None for leaf in tasks):
        items = {f"{_clean(leaf.task)}: {key}": item for leaf in tasks for key, item in (leaf.items or {}).items()}
    return replace(
        group,
        higher_is_better=tasks[0].higher_is_better,
        num_items=None if None in counts else sum(count for count in counts if count is not None),
        num_fewshot=shots.pop() if len(shots) == 1 else None,
        version=", ".join([group.version, *sorted({leaf.version for leaf in tasks})]),
        items=items,
        settings=_shared([leaf.settings for leaf in tasks]),
        subtasks=tuple(_clean(leaf.task) for leaf in tasks),
    )


def _shared(settings: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Settings that all tasks have alike; of the others, all their values."""
    keys = sorted({key for one in settings for key in one} - {"dataset_name"})
    return {key: _cut(", ".join(sorted({one.get(key, "") for one in settings}))) for key in keys}


# Samples


def _with_items(scores: TaskScores, path: Path, notes: list[str]) -> TaskScores:
    """Scores with their documents, where these are what the score is the mean of."""
    items, why = _items(path, scores)
    name = _clean(scores.task)
    if items is None:
        notes.append(f"{name}: judged by its aggregate, {why}")
        return scores
    whole = scores.num_items is None or len(items) == scores.num_items
    finite = [item.value for item in items.values() if isfinite(item.value)]
    if whole and scores.score is not None and isfinite(scores.score) and len(finite) == len(items):
        mean = sum(finite) / len(finite)
        if abs(mean - scores.score) > _ROUNDING * max(1.0, abs(mean)):
            notes.append(f"{name}: judged by its aggregate, which is not the mean over documents")
            return scores
    return replace(scores, items=items, num_items=scores.num_items if scores.num_items is not None else len(items))


def _items(path: Path, scores: TaskScores) -> tuple[dict[str, Item] | None, str]:
    """Documents of one samples file, under the filter that is judged; or None, and why."""
    likelihoods = scores.settings.get("output_type") in _LIKELIHOODS
    rows: list[tuple[int, str, Item]] = []
    seen: set[object] = set()
    for number, sample in _samples(path):
        if (said := sample.get("filter")) is not None and scores.filter and said != scores.filter:
            continue
        doc_id = sample.get("doc_id")
        if not isinstance(doc_id, int) or isinstance(doc_id, bool):
            raise UsageError(f"line {number} has no doc_id", where=str(path), next_step="Evaluate again with --log_samples.")
        if doc_id in seen:
            return None, "for some documents have several answers and do not say of which filter"
        seen.add(doc_id)
        if scores.metric not in sample:
            continue
        value = _value(sample[scores.metric])
        if value is None:
            return None, f"for {_clean(scores.metric)} is no number a document"
        key = _hash(sample, "doc_hash")
        rows.append((doc_id, key or f"document {doc_id}", _item(value, sample, likelihoods)))
    if not rows:
        return None, f"for its samples do not hold {_clean(scores.metric)}"
    return _keyed(rows), ""


def _keyed(rows: list[tuple[int, str, Item]]) -> dict[str, Item]:
    """By document; documents that a dataset holds several times are numbered in its order."""
    found: dict[str, Item] = {}
    times: dict[str, int] = {}
    for _, key, item in sorted(rows, key=lambda row: row[0]):
        times[key] = times.get(key, 0) + 1
        found[key if times[key] == 1 else f"{key} ({times[key]})"] = item
    return found


def _samples(path: Path) -> Iterator[tuple[int, Json]]:
    """The objects of a samples file with their number: one a line, or one list (0.4.0). UsageError as soon as one is torn."""
    with _opened(path) as stream:
        listed = stream.read(_HEAD_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
    rows: Iterable[tuple[int, Any]]
    if listed:
        document = _document(path, MAX_LIST_BYTES)
        rows = enumerate(document if isinstance(document, list) else [document], 1)
    else:
        rows = _lines(path)
    for number, row in rows:
        if not isinstance(row, dict):
            raise UsageError(f"line {number} is no JSON object", where=str(path), next_step="Evaluate again.")
        if number > MAX_ITEMS:
            raise UsageError(f"holds more than {MAX_ITEMS} documents", where=str(path), next_step="Evaluate with --limit.")
        yield number, row


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    with _opened(path) as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                what = f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB"
                raise UsageError(what, where=str(path), next_step="Is it a samples file? Evaluate again.")
            if line.strip():
                yield number, any_json(line.removeprefix(b"\xef\xbb\xbf"), f"{path}:{number}", _AGAIN)


def _value(value: object) -> float | None:
    """What a document scored: a number, right or wrong; None for a list (what corpus metrics keep) and for other text."""
    if isinstance(value, bool) or value in ("True", "False"):
        return float(value in (True, "True"))
    return _number(value)


def _item(value: float, sample: Json, likelihoods: bool) -> Item:
    answers = _answers(sample) if likelihoods else b""
    prompt = f"{_hash(sample, 'prompt_hash')} {_hash(sample, 'target_hash')}".strip()
    # orjson writes a NaN as null; the harness writes log-likelihoods as text.
    spoiled = b"nan" in answers or b"null" in answers
    return Item(value, _cluster(sample), prompt, _digest(answers) if answers else "", isfinite(value) and not spoiled)


def _answers(sample: Json) -> bytes:
    found = sample.get("filtered_resps", sample.get("resps"))
    try:
        return orjson.dumps(found).lower() if found else b""
    except TypeError:
        # Numbers beyond 64 bits, or half a character: nothing that a log-likelihood is.
        return b""


def _cluster(sample: Json) -> str | None:
    document = sample.get("doc")
    if not isinstance(document, dict):
        return None
    passages = (document.get(name) for name in _PASSAGES)
    shared = next((one for one in passages if isinstance(one, str) and one.strip()), None)
    return None if shared is None else _digest(shared.encode("utf-8", "backslashreplace"))


def _hash(sample: Json, key: str) -> str:
    found = sample.get(key)
    return _clean(found) if isinstance(found, str) else ""


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


# Settings and names


def _settings(document: Json) -> dict[str, str]:
    """How the harness was called and with what, as text."""
    found: dict[str, str] = {}
    for key, value in _mapping(document, "config").items():
        if key in _NOT_SETTINGS:
            continue
        if key == "model_args":
            found |= {f"model_args.{name}": _text(one) for name, one in _arguments(value).items()}
        else:
            found[_clean(key)] = _text(value)
    found |= {key: _text(document[key]) for key in _RUN_SETTINGS if key in document}
    template = document.get("chat_template")
    if "chat_template_sha" not in found and isinstance(template, str):
        found["chat_template_sha"] = _digest(template.encode("utf-8", "backslashreplace"))
    return found


def _arguments(value: object) -> dict[str, object]:
    """`pretrained=a,dtype=bfloat16`, or the mapping of newer versions."""
    if isinstance(value, dict):
        return {_clean(str(key)): one for key, one in value.items()}
    parts = value.split(",") if isinstance(value, str) else []
    return {_clean(name.strip()): one for name, sign, one in (part.partition("=") for part in parts) if sign}


def _text(value: object) -> str:
    """Any value in short: null is `none`."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return _cut(value)
    try:
        return _cut(json.dumps(value, sort_keys=True)) if isinstance(value, dict | list) else _cut(str(value))
    except (RecursionError, ValueError):
        return "nested too deeply"


def _cut(text: str) -> str:
    """Long text by its head and a digest, so that it still differs where the rest does."""
    if len(text) > MAX_NAME:
        digest = hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=4).hexdigest()
        text = f"{text[: MAX_NAME - 10]}…{digest}"
    return text if text.isprintable() else ascii(text)[1:-1]


_clean = _cut


# Runs


def _runs(read: Sequence[_Read]) -> list[ItemRecord]:
    """Results files put together to runs.

    A later file of the same model in the same folder, called with the same settings, belongs to the run before it where it
    holds other tasks; where it holds a task again it is another run. Files that were called otherwise are runs of their own.
    """
    runs: list[tuple[tuple[object, ...], list[_Read]]] = []
    for one in sorted(read, key=lambda each: each.date):
        key = (one.path.parent.resolve(), one.stem, tuple(sorted(one.record.settings.items())))
        held = [files for other, files in runs if other == key and _disjoint(one, files)]
        if held:
            held[0].append(one)
        else:
            runs.append((key, [one]))
    order = {id(one): place for place, one in enumerate(read)}
    runs.sort(key=lambda run: min(order[id(one)] for one in run[1]))
    names = [files[0].record.name for _, files in runs]
    folders = [(key[0], files[0].record.name) for key, files in runs]
    return [
        _run(files, names.count(name) > 1, folders.count(folder))
        for (_, files), name, folder in zip(runs, names, folders, strict=True)
    ]


def _disjoint(one: _Read, files: Collection[_Read]) -> bool:
    return not any(one.record.tasks.keys() & other.record.tasks.keys() for other in files)


def _run(files: Sequence[_Read], ambiguous: bool, in_folder: int) -> ItemRecord:
    first = files[0].record
    notes = [note for one in files for note in one.record.notes]
    if len(files) > 1:
        notes.append(f"put together from {len(files)} results files of the same model and settings that hold different tasks")
    if in_folder > 1:
        notes.append(
            f"one of {in_folder} evaluations of this model in its folder: each that holds a task again is a run of its own"
        )
    tasks = {name: scores for one in files for name, scores in one.record.tasks.items()}
    name = f"{first.name} ({files[0].date or files[0].path.name})" if ambiguous else first.name
    return replace(first, name=name, tasks=tasks, notes=tuple(notes))


def _with_left(records: Sequence[ItemRecord], left: Sequence[Path]) -> Iterator[ItemRecord]:
    """Samples that no results file claims are said where others of their folder are; alone they are of no use."""
    homes = {Path(record.source).parent.resolve() for record in records}
    for path in left:
        if path.parent.resolve() not in homes:
            next_step = "Name the folder that holds its results_….json too."
            raise UsageError("holds samples of an evaluation without its results", where=str(path), next_step=next_step)
    for record in records:
        here = [path.name for path in left if path.parent.resolve() == Path(record.source).parent.resolve()]
        note = f"samples of no results file beside them left out: {_cut(', '.join(here))}"
        yield replace(record, notes=(*record.notes, note)) if here else record
