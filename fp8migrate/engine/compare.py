"""Finished runs, from what a policy names to a judged comparison: find, read, compare, judge. Nothing is written."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from fp8migrate.checks import judge_comparison, judge_evaluations
from fp8migrate.checks.schema import CheckResult
from fp8migrate.checks.words import some
from fp8migrate.errors import UsageError
from fp8migrate.evidence.groups import compare_logs
from fp8migrate.evidence.items import ItemComparison, compare_items
from fp8migrate.evidence.logged_settings import audit_logs
from fp8migrate.evidence.schema import Comparison
from fp8migrate.log_verdict import apply_tiers
from fp8migrate.plan.policy import EvalsMetric, Logs, Policy
from fp8migrate.records.configuration import Configuration, configuration_beside
from fp8migrate.records.find import Found, find_sources, split_runs
from fp8migrate.records.items import FoundItems, ItemRecord, find_items
from fp8migrate.records.logs import LogRecord
from fp8migrate.records.readers import read_log
from fp8migrate.records.readers.base import Options
from fp8migrate.records.source import Source
from fp8migrate.records.stored_baseline import load, store

# Below this a process of its own takes longer than the log.
LARGE = 8 << 20


@dataclass(frozen=True, eq=False)
class Judged:
    """What finished runs show. notes: what of the folders was not read, for people."""

    comparisons: tuple[Comparison, ...]
    results: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()
    items: ItemComparison | None = None


@dataclass(frozen=True, eq=False)
class Side:
    """One side as read. items: its item evaluations. files: the configuration files that its runs have; passed_over: files in
    no known format.
    """

    records: tuple[LogRecord, ...] = ()
    items: tuple[ItemRecord, ...] = ()
    files: frozenset[Path] = frozenset()
    passed_over: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def judge(policy: Policy, *, folder: Path | None = None) -> Judged:
    """Read and judge what the policy names. folder: what its paths are relative to.

    UsageError where something named cannot be read or holds no loss.
    """
    reader = _Reader(policy, folder)
    reader.read_ahead([policy.baseline, policy.candidate, *([policy.floor] if policy.floor else [])])
    baseline, candidate = (reader.side(side) for side in (policy.baseline, policy.candidate))
    floor = reader.side(policy.floor) if policy.floor else Side()
    baseline, candidate = _own_configurations(baseline, candidate)
    # Absurd losses overflow on their way; what is not finite then is told by the checks, not by warnings of numpy.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        comparisons, results = _judge_runs(policy, baseline, candidate, floor)
    items = _compare_evaluations(policy, baseline, candidate, floor)
    if items is not None:
        results += judge_evaluations(items, alone=not comparisons)
    passed = [name for side in (baseline, candidate, floor) for name in side.passed_over]
    problems = [problem for side in (baseline, candidate) for problem in side.problems]
    notes = [f"passed over, in no format that is known: {name}" for name in dict.fromkeys(passed)]
    return Judged(comparisons, apply_tiers(results, policy), (*notes, *problems), items)


def _judge_runs(
    policy: Policy, baseline: Side, candidate: Side, floor: Side
) -> tuple[tuple[Comparison, ...], tuple[CheckResult, ...]]:
    """The runs of both sides; nothing where the sides hold item evaluations alone and the policy judges no loss."""
    losses = policy.metrics.validation_loss or policy.metrics.training_loss
    if not baseline.records and not candidate.records and baseline.items and candidate.items and not losses:
        return (), ()
    for side, what in ((baseline, "baseline"), (candidate, "candidate")):
        if not side.records:
            raise UsageError(f"no training log of the {what}", next_step="Name its logs, or check the pattern of --runs.")
    if policy.baseline.bundle:
        refuse_foreign(policy.baseline.bundle, baseline.records, candidate.records)
    comparison = compare_logs(policy, baseline.records, candidate.records, floor.records)
    return (comparison,), judge_comparison(comparison)


def _compare_evaluations(policy: Policy, baseline: Side, candidate: Side, floor: Side) -> ItemComparison | None:
    """Item evaluations of both sides; those of the floor are further BF16 replicates. UsageError where one side has none."""
    metric = policy.metrics.evals
    if not (baseline.items or candidate.items) and metric is None:
        return None
    margins = metric or EvalsMetric()
    return compare_items(
        (*baseline.items, *floor.items), candidate.items, margin_macro=margins.margin, margin_task=margins.task_margin
    )


# What a setting is about, for a stored baseline that is not the candidate's: versions first, then data, else configuration.
_ABOUT = (
    (
        "versions",
        re.compile(r"version|(^|[._])(torch|cuda|cudnn|nccl|driver|transformer_engine|torchao|python|container|image)", re.I),
    ),
    ("data", re.compile(r"data|tokeni[sz]er|vocab|merge_file|corpus|seq_?(uence_?)?len", re.I)),
)


def refuse_foreign(bundle: str, baseline: Sequence[LogRecord], candidate: Sequence[LogRecord]) -> None:
    """A stored baseline of other versions, data or configuration is none for this candidate. UsageError names what changed."""
    found: dict[str, list[str]] = {}
    for row in audit_logs(baseline, candidate, same_data=False, attest={}):
        if row.status == "different" and not row.expected:
            about = next((name for name, pattern in _ABOUT if pattern.search(row.setting)), "configuration")
            found.setdefault(about, []).append(f"{row.setting} ({row.baseline} → {row.candidate})")
    if found:
        what = "; ".join(f"{about}: {some(changes)}" for about, changes in sorted(found.items()))
        next_step = "Store a baseline of the same versions, data and configuration."
        raise UsageError(f"is a baseline of other runs than these: {what}", where=bundle, next_step=next_step)


class _Reader:
    """Reads sides, each log once: both arms may well stand in one file."""

    def __init__(self, policy: Policy, folder: Path | None) -> None:
        self._policy, self._folder = policy, folder
        self._options = Options(policy.format, dict(policy.columns))
        self._read: dict[str, tuple[LogRecord, ...]] = {}
        self._found: dict[str, tuple[Found, tuple[ItemRecord, ...]]] = {}

    def side(self, logs: Logs) -> Side:
        if logs.bundle:
            return Side(load(Path(_within(logs.bundle, self._folder))))
        return _read_side(logs, self)

    def find(self, name: str) -> tuple[Found, tuple[ItemRecord, ...]]:
        """Logs and item evaluations, told by their content. Each name is looked up once: standard input is read only once."""
        if name not in self._found:
            place = _within(name, self._folder)
            items = find_items([place]) if name != "-" else FoundItems((), frozenset())
            logs = find_sources([place], format_name=self._policy.format, taken=items.files)
            self._found[name] = (logs, items.records)
        return self._found[name]

    def read_ahead(self, sides: Sequence[Logs]) -> None:
        """Read large logs side by side, each in a process of its own: nearly all of the time goes into reading."""
        names = [split_runs(name, logs.runs)[0] for logs in sides for name in logs.logs]
        sources = {source.name: source for name in dict.fromkeys(names) for source in self.find(name)[0].sources}
        large = [source for source in sources.values() if source.size >= LARGE]
        workers = min(len(large), os.cpu_count() or 1)
        if workers < 2:
            return
        with ProcessPoolExecutor(workers, mp_context=get_context("fork" if sys.platform == "linux" else "spawn")) as pool:
            reading = pool.map(read_log, large, [self._options] * len(large))
            _load_for_the_report()
            for source, records in zip(large, reading, strict=True):
                self._read[source.name] = records

    def records(self, source: Source) -> tuple[LogRecord, ...]:
        if source.name not in self._read:
            self._read[source.name] = read_log(source, self._options)
        return self._read[source.name]


def _load_for_the_report() -> None:
    """What the report draws with takes half a second to import: time that others spend reading."""
    for name in ("matplotlib.figure", "matplotlib.backends.backend_svg", "jinja2", "fp8migrate.report"):
        import_module(name)


def _read_side(logs: Logs, reader: _Reader) -> Side:
    records: list[LogRecord] = []
    passed_over: list[str] = []
    beside: list[Configuration] = []
    items: list[ItemRecord] = []
    for name in logs.logs:
        path, pattern = split_runs(name, logs.runs)
        found, evaluations = reader.find(path)
        items += evaluations
        if evaluations and not found.sources:
            continue
        passed_over += found.passed_over
        taken = [(source, record) for source in found.sources for record in reader.records(source)]
        chosen = [(source, record) for source, record in taken if _wanted(record, pattern, logs.skip_runs)]
        if not chosen:
            raise _no_run(name, pattern, logs.skip_runs, [record.name for _, record in taken])
        for source, record in chosen:
            configuration = configuration_beside(source.path) if source.path else Configuration({})
            beside.append(configuration)
            records.append(_with_configuration(record, configuration))
    files = frozenset(file for one in beside for file in one.files)
    used = {Path(name).name for name in passed_over} & {file.name for file in files}
    left = tuple(name for name in passed_over if Path(name).name not in used)
    return Side(
        tuple(records), tuple(items), files, left, tuple(dict.fromkeys(problem for one in beside for problem in one.problems))
    )


def _within(name: str, folder: Path | None) -> str:
    return name if folder is None or name == "-" or Path(name).is_absolute() else str(folder / name)


def _wanted(record: LogRecord, pattern: str, skip: str) -> bool:
    return (not pattern or fnmatchcase(record.name, pattern)) and not (skip and fnmatchcase(record.name, skip))


def _no_run(name: str, pattern: str, skip: str, there: Sequence[str]) -> UsageError:
    shown = ", ".join(there[:8]) + (f" and {len(there) - 8} more" if len(there) > 8 else "")
    asked = f"{pattern!r}" + (f" without {skip!r}" if skip else "") if pattern or skip else "any"
    return UsageError(f"holds no run named {asked}", where=name, next_step=f"It has: {shown}.")


def _with_configuration(record: LogRecord, found: Configuration) -> LogRecord:
    """What lies beside a log says more than the log's own settings, and stands before them."""
    if not found.settings:
        return record
    files = tuple(str(path) for path in found.files)
    return replace(record, settings={**record.settings, **found.settings}, settings_from=(*record.settings_from, *files))


def _own_configurations(baseline: Side, candidate: Side) -> tuple[Side, Side]:
    """A configuration file that would serve both sides says nothing on how they differ: neither has it."""
    shared = {str(path) for path in baseline.files & candidate.files}
    if not shared:
        return baseline, candidate
    return _without(baseline, shared), _without(candidate, shared)


def _without(side: Side, shared: set[str]) -> Side:
    return replace(side, records=tuple(_strip(record, shared) for record in side.records))


def _strip(record: LogRecord, shared: set[str]) -> LogRecord:
    if not shared.intersection(record.settings_from):
        return record
    return replace(record, settings={}, settings_from=())


def refuse_to_store(path: Path) -> None:
    """UsageError where a baseline cannot be stored at this place."""
    if path.exists():
        raise UsageError("exists already", where=str(path), next_step="Remove it, or name another file.")
    if not path.resolve().parent.is_dir():
        raise UsageError("lies in no folder that exists", where=str(path), next_step="Make the folder first.")


def store_baseline(policy: Policy, path: Path, *, version: str, created: str) -> None:
    """Keep the baseline's runs, as they are read now, in one sealed file."""
    store(_Reader(policy, None).side(policy.baseline).records, path, version=version, created=created)


def policy_text(policy: Policy) -> str:
    """The policy as YAML, to be stored, and to be judged again with `gate`."""
    import yaml

    content: Mapping[str, object] = policy.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
