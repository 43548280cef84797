"""Item evaluations of both arms, paired document by document (PARITY.md 7): differences, run noise, and what spoils them.

Candidate run k is paired with baseline run k, or with the first where there are fewer baselines; differences of several
candidates are averaged document by document. Every baseline beyond that is a BF16 replicate: it tells how far two runs
differ without FP8. All differences are shares (0.01 is one point), positive where the candidate is better.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np

from fp8migrate.errors import UsageError
from fp8migrate.records.items import Item, ItemRecord, TaskScores
from fp8migrate.statistics.items import (
    Difference,
    MacroDifference,
    items_needed,
    macro_difference,
    paired_difference,
    run_sd,
    unpaired_difference,
)

FaultCode = Literal["INVALID_PAIR", "TRUNCATED"]

# Beyond so many documents, log-likelihoods that are all the same to the last digit are no chance: it is one model twice.
LEAST_IDENTICAL = 200
# Settings that change scores and are not precision. Seeds act through prompts, which documents carry hashes of.
SPOILING = (
    *("model", "limit", "gen_kwargs", "chat_template_sha", "system_instruction_sha", "fewshot_as_multiturn", "max_length"),
    *("tokenizer_bos_token", "tokenizer_eos_token", "model_args.add_bos_token", "model_args.max_length"),
    *("model_args.enable_thinking", "model_args.max_gen_toks", "model_args.prefix_token_id", "model_args.max_model_len"),
)
WITHOUT_PROMPTS = ("fewshot_seed",)
# What differs between any two models, or says when and where something ran.
_EXPECTED = ("model_name", "model_args.pretrained", "model_args.model", "model_sha", "model_args.peft", "model_args.path")
_SHOWN = 3
_MOST_PAIRS = 28


@dataclass(frozen=True)
class Fault:
    """Why a task cannot be compared."""

    code: FaultCode
    text: str


@dataclass(frozen=True)
class Setting:
    """How the harness was called, where that differs. spoils: it differs in more than precision."""

    name: str
    baseline: str
    candidate: str
    spoils: bool


@dataclass(frozen=True, eq=False)
class TaskComparison:
    """One task in both arms.

    baseline, candidate: scores over the documents compared, as the metric gives them. difference: None where a fault, a NaN
    or missing numbers leave none. paired: by documents; else from aggregates alone. flip_rate: share of documents that are
    right in one arm alone, baseline_flip_rate: the same of two BF16 runs; None where unknown or not right or wrong.
    replicates: BF16 runs that differ by chance alone, the first included. non_finite_baseline, non_finite_candidate: number
    of scores that are NaN or Inf. gating: it can reach 80 % power with its documents, of which items_needed are needed at
    the discordance of `power_from`: BF16 replicates, or the arms as observed, or the scores as if documents were unrelated.
    unjudged: why its metric has no margin in points; empty where it has.
    """

    task: str
    metric: str
    baseline: float | None = None
    candidate: float | None = None
    difference: Difference | None = None
    paired: bool = False
    num_items: int | None = None
    clusters: int | None = None
    flip_rate: float | None = None
    baseline_flip_rate: float | None = None
    replicates: int = 1
    non_finite_baseline: int = 0
    non_finite_candidate: int = 0
    gating: bool = True
    items_needed: int | None = None
    power_from: Literal["replicates", "observed", "scores", ""] = ""
    faults: tuple[Fault, ...] = ()
    unjudged: str = ""


@dataclass(frozen=True, eq=False)
class ItemComparison:
    """macro: the mean over all tasks that have a difference; None where none has. identical: the arms answered every
    document with the same log-likelihoods to the last digit, and have the same scores. replicates: BF16 runs that differ by
    chance alone, the first included.
    """

    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    tasks: tuple[TaskComparison, ...]
    macro: MacroDifference | None
    margin_macro: float
    margin_task: float
    replicates: int
    identical: bool = False
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> tuple[TaskComparison, ...]:
        return tuple(task for task in self.tasks if task.difference is not None)


def compare_items(
    baseline: Sequence[ItemRecord], candidate: Sequence[ItemRecord], *, margin_macro: float = 0.01, margin_task: float = 0.02
) -> ItemComparison:
    """Pair the evaluations of both arms. UsageError where an arm has none."""
    for arm, records in (("baseline", baseline), ("candidate", candidate)):
        if not records:
            raise UsageError(f"no evaluation of the {arm}", next_step="Name its results_….json, or the folder that holds it.")
    replicates, notes = _replicates(baseline)
    settings = _settings(baseline, candidate)
    names = list(dict.fromkeys(name for record in (*baseline, *candidate) for name in record.tasks))
    tasks = tuple(_task(name, baseline, candidate, replicates, margin_task) for name in names)
    compared = [task for task in tasks if task.difference is not None]
    return ItemComparison(
        baseline=tuple(record.name for record in baseline),
        candidate=tuple(record.name for record in candidate),
        tasks=tasks,
        macro=_macro(compared, replicates) if compared else None,
        margin_macro=margin_macro,
        margin_task=margin_task,
        replicates=len(replicates),
        identical=_identical(baseline, candidate, compared),
        settings=settings,
        notes=(*notes, *_notes(baseline, candidate)),
    )


# Runs


def _replicates(baseline: Sequence[ItemRecord]) -> tuple[list[ItemRecord], list[str]]:
    """BF16 runs that chance alone tells apart. One model evaluated twice shows no run noise, however it is named."""
    found: list[ItemRecord] = []
    notes = []
    for record in baseline:
        shared = [other for other in found if record.tasks.keys() & other.tasks.keys()]
        if any(_same_model(record, other) for other in shared):
            notes.append(f"{record.name}: the same BF16 model evaluated again, which tells nothing about noise between runs")
        else:
            found.append(record)
    return found, notes


def _same_model(one: ItemRecord, other: ItemRecord) -> bool:
    """One model in one folder, or the same outcome to the last digit in all that both evaluated."""
    named = [(Path(r.source).parent, r.settings.get("model_name"), _weights(r)) for r in (one, other)]
    if named[0] == named[1] and any((named[0][1], *named[0][2])):
        return True
    tasks = one.tasks.keys() & other.tasks.keys()
    return all(_same_outcome(one.tasks[task], other.tasks[task]) for task in tasks)


def _weights(record: ItemRecord) -> tuple[str | None, ...]:
    return tuple(record.settings.get(f"model_args.{name}") for name in ("pretrained", "peft", "path", "model", "revision"))


def _same_outcome(one: TaskScores, other: TaskScores) -> bool:
    return one.score == other.score and one.items == other.items


def _settings(baseline: Sequence[ItemRecord], candidate: Sequence[ItemRecord]) -> tuple[Setting, ...]:
    """Settings known on both sides of some pair that differ there."""
    found: dict[str, Setting] = {}
    for b, c in _pairs(baseline, candidate):
        for name in sorted(b.settings.keys() & c.settings.keys() - set(_EXPECTED)):
            if b.settings[name] != c.settings[name]:
                found.setdefault(name, Setting(name, b.settings[name], c.settings[name], name in SPOILING))
    return tuple(found.values())


def _pairs(baseline: Sequence[ItemRecord], candidate: Sequence[ItemRecord]) -> list[tuple[ItemRecord, ItemRecord]]:
    """Candidate k with baseline k, or with the first."""
    return [(baseline[k] if k < len(baseline) else baseline[0], one) for k, one in enumerate(candidate)]


def _notes(baseline: Sequence[ItemRecord], candidate: Sequence[ItemRecord]) -> list[str]:
    said = [f"{record.name}: {note}" for record in (*baseline, *candidate) for note in record.notes]
    for arm, records in (("BF16", baseline), ("FP8", candidate)):
        for task in dict.fromkeys(name for record in records for name in record.tasks):
            count = sum(task in record.tasks for record in records)
            if count < len(records):
                said.append(f"{task}: in {count} of {len(records)} {arm} evaluations")
    return said


# One task


def _task(
    name: str,
    baseline: Sequence[ItemRecord],
    candidate: Sequence[ItemRecord],
    replicates: Sequence[ItemRecord],
    margin: float,
) -> TaskComparison:
    arms = [[record for record in records if name in record.tasks] for records in (baseline, candidate)]
    any_of = (*arms[0], *arms[1])[0].tasks[name]
    start = TaskComparison(name, _metric(any_of))
    if not arms[0] or not arms[1]:
        return replace(start, faults=(Fault("TRUNCATED", f"not evaluated in {'FP8' if arms[0] else 'BF16'}"),))
    pairs = _pairs(arms[0], arms[1])
    scores = [(b.tasks[name], c.tasks[name]) for b, c in pairs]
    start = replace(
        start,
        non_finite_baseline=sum(_non_finite(record.tasks[name]) for record in arms[0]),
        non_finite_candidate=sum(_non_finite(c) for _, c in scores),
        faults=tuple(dict.fromkeys(fault for b, c in pairs for fault in _faults(name, b, c))),
        unjudged=_unjudged([one for pair in scores for one in pair]),
    )
    if start.faults or start.unjudged or start.non_finite_baseline or start.non_finite_candidate:
        return start
    others = _like([record.tasks[name] for record in replicates if name in record.tasks])
    return _with_power(_difference(start, scores, others), others, margin)


def _metric(scores: TaskScores) -> str:
    return f"{scores.metric} ({scores.filter})" if scores.filter not in ("", "none") else scores.metric


def _non_finite(scores: TaskScores) -> int:
    """NaN or Inf among documents, or in the score."""
    documents = sum(not item.finite for item in (scores.items or {}).values())
    return documents or int(scores.score is not None and not isfinite(scores.score))


def _unjudged(scores: Sequence[TaskScores]) -> str:
    """A margin in points needs a metric from 0 to 1 whose better end is known."""
    if any(one.higher_is_better is None for one in scores):
        return f"whether more {scores[0].metric} is better is not known"
    values = [one.score for one in scores if one.score is not None]
    values += [item.value for one in scores for item in (one.items or {}).values()]
    if any(isfinite(value) and not 0 <= value <= 1 for value in values):
        return f"{scores[0].metric} is not a share from 0 to 1"
    return ""


def _faults(name: str, baseline: ItemRecord, candidate: ItemRecord) -> list[Fault]:
    """All that keeps two evaluations of a task from being compared."""
    b, c = baseline.tasks[name], candidate.tasks[name]
    known = [(item.prompt for item in one.items.values()) if one.items else () for one in (b, c)]
    prompts = all(any(side) for side in known)
    names = SPOILING if prompts else (*SPOILING, *WITHOUT_PROMPTS)
    settings = [(key, baseline.settings.get(key), candidate.settings.get(key)) for key in names]
    differing = [*_task_settings(b, c), *((key, x, y) for key, x, y in settings if x and y and x != y)]
    found = [Fault("INVALID_PAIR", f"{key} differs ({x} against {y})") for key, x, y in differing]
    if _same_file(baseline, candidate):
        found.append(Fault("INVALID_PAIR", "both arms are the same file"))
    return [*found, *_document_faults(b, c)]


def _same_file(one: ItemRecord, other: ItemRecord) -> bool:
    return Path(one.source).resolve() == Path(other.source).resolve()


def _task_settings(b: TaskScores, c: TaskScores) -> list[tuple[str, str, str]]:
    """Version, few-shot, metric and the task's own settings, where both sides know them and they differ."""
    fields: list[tuple[str, object, object]] = [
        ("task version", b.version or None, c.version or None),
        ("few-shot examples", b.num_fewshot, c.num_fewshot),
        ("metric", b.metric, c.metric),
        ("filter", b.filter, c.filter),
        ("higher is better", b.higher_is_better, c.higher_is_better),
    ]
    if set(b.subtasks) != set(c.subtasks):
        fields.append(("subtasks", f"{len(b.subtasks)} subtasks", f"{len(c.subtasks)} others"))
    fields += [(key, b.settings[key], c.settings[key]) for key in sorted(b.settings.keys() & c.settings.keys())]
    return [(key, str(x), str(y)) for key, x, y in fields if x is not None and y is not None and x != y]


def _document_faults(b: TaskScores, c: TaskScores) -> list[Fault]:
    found = [
        Fault("TRUNCATED", f"{arm}: {len(one.items)} of {one.num_items} documents are among the samples")
        for arm, one in (("BF16", b), ("FP8", c))
        if one.items is not None and one.num_items is not None and len(one.items) != one.num_items
    ]
    if b.items is None or c.items is None:
        counts = (b.num_items, c.num_items)
        if None not in counts and counts[0] != counts[1]:
            found.append(Fault("TRUNCATED", f"BF16 scored {counts[0]} documents, FP8 {counts[1]}"))
        return found
    only_b, only_c = [key for key in b.items if key not in c.items], [key for key in c.items if key not in b.items]
    if only_b and only_c:
        found.append(Fault("INVALID_PAIR", f"other documents: {len(only_b)} only in BF16, {len(only_c)} only in FP8"))
    elif only_b or only_c:
        where, names = ("FP8", only_b) if only_b else ("BF16", only_c)
        found.append(Fault("TRUNCATED", f"{len(names)} documents missing in {where}: {_named(names)}"))
    shared = [(one, c.items[key]) for key, one in b.items.items() if key in c.items]
    if other := sum(bool(x.prompt and y.prompt and x.prompt != y.prompt) for x, y in shared):
        found.append(Fault("INVALID_PAIR", f"{other} of {len(shared)} documents have other prompts or targets"))
    return found


def _named(keys: Sequence[str]) -> str:
    shown = ", ".join(key if len(key) <= 40 else f"{key[:39]}…" for key in keys[:_SHOWN])
    return f"{shown} and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else shown


def _like(runs: Sequence[TaskScores]) -> list[TaskScores]:
    """Of BF16 runs, those that are comparable with the first."""
    return [one for one in runs if one is runs[0] or not (_task_settings(runs[0], one) or _document_faults(runs[0], one))]


def _difference(
    start: TaskComparison, scores: Sequence[tuple[TaskScores, TaskScores]], replicates: Sequence[TaskScores]
) -> TaskComparison:
    sd = run_sd([value for one in replicates if (value := _mean(one)) is not None])
    documents = [(b.items, c.items) for b, c in scores if b.items is not None and c.items is not None]
    if len(documents) == len(scores) and documents[0][0]:
        return _paired(start, documents, scores[0][0].higher_is_better is True, sd, replicates)
    b = [one.score for one, _ in scores if one.score is not None]
    c = [one.score for _, one in scores if one.score is not None]
    if len(b) < len(scores) or len(c) < len(scores):
        return start
    counts = [one.num_items for pair in scores for one in pair if one.num_items]
    errors = [one.stderr for pair in scores for one in pair if one.stderr is not None]
    means = float(np.mean(b)), float(np.mean(c))
    sign = scores[0][0].higher_is_better is True
    # The widest error and the fewest documents of any run stand for all: several runs share their documents.
    found = unpaired_difference(
        *(means if sign else (1 - means[0], 1 - means[1])),
        errors=(max(errors), max(errors)) if len(errors) == 2 * len(scores) else None,
        n=(min(counts), min(counts)) if len(counts) == 2 * len(scores) else None,
        run_sd=sd,
        run_freedom=_freedom(len(replicates)),
    )
    number = min(counts) if counts else None
    return replace(start, baseline=means[0], candidate=means[1], difference=found, num_items=number, replicates=len(replicates))


def _mean(scores: TaskScores) -> float | None:
    """A run's score on its documents, as its documents have it where they are known."""
    if scores.items:
        return float(np.mean([item.value for item in scores.items.values()]))
    return scores.score if scores.score is not None and isfinite(scores.score) else None


def _paired(
    start: TaskComparison,
    documents: Sequence[tuple[Mapping[str, Item], Mapping[str, Item]]],
    higher: bool,
    sd: float | None,
    replicates: Sequence[TaskScores],
) -> TaskComparison:
    """Faults are ruled out, so all runs have the same documents: those of the first."""
    first = documents[0][0]
    keys = [key for key in first if all(key in b and key in c for b, c in documents)]
    b = np.array([[one[key].value for key in keys] for one, _ in documents])
    c = np.array([[one[key].value for key in keys] for _, one in documents])
    means = b.mean(axis=0), c.mean(axis=0)
    clusters = None
    if any(first[key].cluster for key in keys):
        clusters = [first[key].cluster or key for key in keys]
    x, y = means if higher else (1 - means[0], 1 - means[1])
    found = paired_difference(x, y, clusters=clusters, run_sd=sd, run_freedom=_freedom(len(replicates)))
    return replace(
        start,
        baseline=float(means[0].mean()),
        candidate=float(means[1].mean()),
        difference=found,
        paired=True,
        num_items=len(keys),
        clusters=found.clusters,
        flip_rate=_flips(b, c),
        baseline_flip_rate=_replicate_rate(replicates, keys, flips=True),
        replicates=len(replicates),
    )


def _flips(b: np.ndarray, c: np.ndarray) -> float | None:
    """Share of documents right in one arm alone, over all pairs (runs, documents); None where some are partly right."""
    right_or_wrong = np.isin(b, (0.0, 1.0)).all() and np.isin(c, (0.0, 1.0)).all()
    return float((b != c).mean()) if right_or_wrong else None


def _replicate_rate(replicates: Sequence[TaskScores], keys: Sequence[str], *, flips: bool) -> float | None:
    """Flip rate, or discordance, between BF16 runs, over all pairs of them."""
    rows = [[one.items[key].value for key in keys] for one in replicates if one.items and all(key in one.items for key in keys)]
    values = np.array(rows)
    pairs = list(combinations(range(len(rows)), 2))[:_MOST_PAIRS]
    if not pairs or not np.isfinite(values).all():
        return None
    left, right = values[[one for one, _ in pairs]], values[[other for _, other in pairs]]
    return _flips(left, right) if flips else float(((left - right) ** 2).mean())


def _with_power(task: TaskComparison, replicates: Sequence[TaskScores], margin: float) -> TaskComparison:
    """Whether the task can reach the power, at the discordance of BF16 runs where known: decided without the candidate."""
    if task.difference is None:
        return task
    discordance, source = _discordance(task, replicates)
    needed = items_needed(discordance, margin)
    # Without a number of documents nothing excuses the task.
    return replace(task, items_needed=needed, power_from=source, gating=task.num_items is None or task.num_items >= needed)


def _discordance(
    task: TaskComparison, replicates: Sequence[TaskScores]
) -> tuple[float, Literal["replicates", "observed", "scores"]]:
    keys = list(replicates[0].items or {}) if replicates else []
    if task.paired and keys and (known := _replicate_rate(replicates, keys, flips=False)) is not None:
        return known, "replicates"
    if (observed := getattr(task.difference, "discordance", None)) is not None:
        return float(observed), "observed"
    b, c = task.baseline or 0.0, task.candidate or 0.0
    return b * (1 - c) + c * (1 - b), "scores"


# All tasks


def _freedom(replicates: int) -> float:
    """Degrees of freedom of s_run; with a single run there is none, and s_run is not known."""
    return max(1, replicates - 1)


def _macro(compared: Sequence[TaskComparison], replicates: Sequence[ItemRecord]) -> MacroDifference:
    differences = [task.difference for task in compared if task.difference is not None]
    fewest = min(task.replicates for task in compared)
    return macro_difference(differences, _macro_sd(compared, replicates), _freedom(fewest))


def _macro_sd(compared: Sequence[TaskComparison], replicates: Sequence[ItemRecord]) -> float | None:
    """s_run of the macro average: of BF16 runs that hold all tasks, else as if the tasks' noise always added up."""
    names = [task.task for task in compared]
    if not names or any(task.difference is None or task.difference.run_sd is None for task in compared):
        return None
    whole = [[_mean(record.tasks[name]) for name in names] for record in replicates if all(n in record.tasks for n in names)]
    sums = [float(np.mean([value for value in row if value is not None])) for row in whole if None not in row]
    if (known := run_sd(sums)) is not None and all(task.replicates == len(sums) for task in compared):
        return known
    return float(
        np.mean([task.difference.run_sd for task in compared if task.difference and task.difference.run_sd is not None])
    )


def _identical(baseline: Sequence[ItemRecord], candidate: Sequence[ItemRecord], compared: Sequence[TaskComparison]) -> bool:
    """Some candidate has the log-likelihoods, values and scores of its baseline, all of them, to the last digit.

    Right and wrong alone prove little: two good models agree on most documents, and on easy ones on all.
    """
    names = [task.task for task in compared]
    for b, c in _pairs(baseline, candidate):
        shared = [(b.tasks[name], c.tasks[name]) for name in names if name in b.tasks and name in c.tasks]
        answered = sum(bool(item.answers) for one, _ in shared for item in (one.items or {}).values())
        if answered > LEAST_IDENTICAL and all(_same_outcome(one, other) for one, other in shared):
            return True
    return False
