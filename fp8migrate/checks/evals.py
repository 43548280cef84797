"""Are the answers as good? One-sided non-inferiority on item evaluations: the macro average, and every task (PARITY.md 7).

What PARITY.md 7 leaves open is read so that doubt never acquits:

- Without BF16 replicates s_run is not known. Then no task can PASS, and neither can the macro average: averaging over tasks
  thins out what a run does to one task, not what it does to all of them alike, which is just as unknown. Both still FAIL
  where the documents alone put them below the margin.
- A task with too few documents is advisory, decided by the discordance of BF16 runs. Without those the candidate's own
  flips would have to decide, and a bad candidate flips much: then such a task still FAILs, and only its doubts are advisory.
- Convictions are corrected over all tasks and the macro average together (Holm), as PARITY.md 4 asks.
- The macro average passes only where every task that either arm names could be compared, or has no margin in points.
- Better than the margin allows worse is a mismatch, as it is for losses.
"""

from collections.abc import Mapping, Sequence

from fp8migrate.checks.schema import CheckResult, CheckStatus
from fp8migrate.checks.words import counted, some
from fp8migrate.evidence.items import ItemComparison, TaskComparison
from fp8migrate.statistics.items import Difference
from fp8migrate.statistics.noninferiority import holm

MACRO = "evals"
TASK = "eval_task"

# status, code, and how the summary begins
_Said = tuple[CheckStatus, str, str]


def judge_items(comparison: ItemComparison) -> tuple[CheckResult, ...]:
    """The macro average first, then one result a task. measured and interval are shares, 0.01 is one point, and negative
    where FP8 is worse; limit is the margin: how far below zero they may lie.
    """
    convicted = _convicted(comparison)
    tasks = [_task_result(comparison, task, convicted[task.task]) for task in comparison.tasks]
    return (_macro_result(comparison, convicted[""]), *tasks)


def _convicted(comparison: ItemComparison) -> Mapping[str, bool]:
    """Whose upper bound is below the margin, after Holm over all that can fail. The macro average has no name.

    Tasks that BF16 runs showed to be too small decide nothing: they neither count in the correction nor need it.
    """
    tested: list[tuple[str, Difference, float]] = []
    found = {"": False}
    for task in comparison.tasks:
        found[task.task] = False
        if task.difference is not None and _can_fail(task):
            tested.append((task.task, task.difference, -comparison.margin_task))
        elif task.difference is not None:
            found[task.task] = task.difference.upper < -comparison.margin_task
    if comparison.macro is not None:
        tested.append(("", comparison.macro, -comparison.margin_macro))
    rejected = holm([difference.p_below(limit) for _, difference, limit in tested])
    return found | {name: hit for (name, _, _), hit in zip(tested, rejected, strict=True)}


def _can_fail(task: TaskComparison) -> bool:
    """Unless BF16 runs showed beforehand that it has too few documents."""
    return task.gating or task.power_from != "replicates"


def _macro_result(comparison: ItemComparison, convicted: bool) -> CheckResult:
    status, code, words = _macro_verdict(comparison, convicted)
    macro = comparison.macro
    compared = comparison.compared
    if macro is None:
        return _result(MACRO, status, words, code)
    numbers = f"{_points(macro.delta)} on average over {counted(len(compared), 'task')}{_interval(macro)}"
    flips = _flips(_mean([t.flip_rate for t in compared]), _mean([t.baseline_flip_rate for t in compared]))
    weak = [task.task for task in compared if not task.paired]
    notes = [flips, f"from aggregates alone, a weaker test: {some(weak)}" if weak else "", _left_out(comparison)]
    summary = f"{words}: {'; '.join([numbers, *filter(None, notes)])}"
    return _result(MACRO, status, summary, code, macro, comparison.margin_macro, (*comparison.baseline, *comparison.candidate))


def _macro_verdict(comparison: ItemComparison, convicted: bool) -> _Said:
    """The rows of the ranked table that the average of all tasks decides, in their order."""
    tasks = comparison.tasks
    if any(task.non_finite_baseline for task in tasks):
        return "inconclusive", "BASELINE_UNHEALTHY", "not judged: BF16 scored NaN or Inf"
    if spoiled := [task.task for task in tasks if task.non_finite_candidate]:
        return "fail", "NON_FINITE", f"FP8 scored NaN or Inf in {some(spoiled)}"
    if comparison.macro is None or any(_fault(task) for task in tasks):
        return _not_compared(comparison)
    if comparison.identical:
        return _IDENTICAL
    return _bounded(comparison.macro, comparison.margin_macro, convicted, comparison.replicates)


_IDENTICAL: _Said = (
    "inconclusive",
    "FP8_NOT_ACTIVE",
    "both arms are one model: all log-likelihoods are the same to the last digit",
)


def _not_compared(comparison: ItemComparison) -> _Said:
    faults = [(task.task, fault) for task in comparison.tasks if (fault := _fault(task))]
    codes = [code for _, (code, _) in faults]
    code = "INVALID_PAIR" if "INVALID_PAIR" in codes else "TRUNCATED"
    if not faults:
        reasons = some([f"{task.task}: {task.unjudged}" for task in comparison.tasks])
        return "inconclusive", code, f"not judged: no task has a score in points ({reasons})"
    return "inconclusive", code, f"not judged: {some([f'{task}: {text}' for task, (_, text) in faults])}"


def _fault(task: TaskComparison) -> tuple[str, str] | None:
    """The code and the words of what keeps a task from being compared; None where it was, or has no margin in points."""
    if task.faults:
        first = next((fault for fault in task.faults if fault.code == "INVALID_PAIR"), task.faults[0])
        return first.code, some(list(dict.fromkeys(fault.text for fault in task.faults if fault.code == first.code)))
    if task.unjudged or task.difference is not None:
        return None
    return "TRUNCATED", "neither documents nor the number of them nor a standard error is known"


def _task_result(comparison: ItemComparison, task: TaskComparison, convicted: bool) -> CheckResult:
    status, code, words = _task_verdict(comparison, task, convicted)
    summary = f"{task.task}: {words}"
    # A NaN is no matter of power.
    decides = task.gating or (status == "fail" and (code == "NON_FINITE" or _can_fail(task)))
    advisory = status == "skipped" or not decides
    if task.difference is None:
        return _result(TASK, status, summary, code, advisory=advisory)
    summary = f"{summary}: {'; '.join([_task_numbers(task), *_task_notes(task)])}"
    return _result(TASK, status, summary, code, task.difference, comparison.margin_task, (task.task,), advisory=advisory)


def _task_verdict(comparison: ItemComparison, task: TaskComparison, convicted: bool) -> _Said:
    if task.non_finite_baseline:
        return "inconclusive", "BASELINE_UNHEALTHY", f"not judged: {counted(task.non_finite_baseline, 'BF16 score')} NaN or Inf"
    if task.non_finite_candidate:
        return "fail", "NON_FINITE", f"{counted(task.non_finite_candidate, 'FP8 score')} NaN or Inf"
    if (fault := _fault(task)) is not None:
        return "inconclusive", fault[0], f"not judged: {fault[1]}"
    if task.difference is None:
        return "skipped", "", f"not judged: {task.unjudged}, so a margin in points says nothing"
    if comparison.identical:
        return _IDENTICAL
    return _bounded(task.difference, comparison.margin_task, convicted, task.replicates)


def _bounded(found: Difference, margin: float, convicted: bool, replicates: int) -> _Said:
    """What the bounds alone decide. Without run noise they are too narrow: then they acquit nobody."""
    lower, upper = found.bounds()
    most = _limit(margin)
    if convicted:
        return "fail", "GAP", f"worse by more than {most}"
    if lower <= -margin:
        if upper < -margin:
            said = f"worse by more than {most} by itself, not after Holm's correction over all tasks"
            return "inconclusive", "UNDERPOWERED", said
        return "inconclusive", "UNDERPOWERED", f"cannot tell within {most}"
    if found.run_sd is None or replicates < 2:
        return (
            "inconclusive",
            "NO_REPLICATES",
            f"within {most} on these documents, but how far two BF16 runs differ is not known",
        )
    if lower > margin:
        return "inconclusive", "SUSPECT_MISMATCH", f"better by more than {most}, which is better than can be true"
    if upper < 0:
        return "pass", "REAL_BUT_ACCEPTABLE", f"worse, by less than {most}"
    return "pass", "", f"as good within {most}"


def _task_numbers(task: TaskComparison) -> str:
    assert task.difference is not None
    many = f" on {task.num_items:,} documents" if task.num_items else ""
    passages = f" in {task.clusters:,} passages" if task.clusters else ""
    return f"{task.metric} {_points(task.difference.delta)}{_interval(task.difference)}{many}{passages}"


def _task_notes(task: TaskComparison) -> list[str]:
    notes = [_flips(task.flip_rate, task.baseline_flip_rate)] if task.paired else ["from aggregates alone, a weaker test"]
    if not task.gating and task.items_needed is not None:
        sources = {"replicates": "BF16 runs differ", "observed": "these runs differ", "scores": "these scores may differ"}
        notes.append(f"advisory: {task.items_needed:,} documents needed for 80 % power, as much as {sources[task.power_from]}")
    return [note for note in notes if note]


def _flips(rate: float | None, baseline: float | None) -> str:
    if rate is None:
        return ""
    beside = f"between BF16 runs {100 * baseline:.2g} %" if baseline is not None else "between BF16 runs unknown"
    return f"flips {100 * rate:.2g} %, {beside}"


def _mean(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known and len(known) == len(rates) else None


def _left_out(comparison: ItemComparison) -> str:
    left = [task.task for task in comparison.tasks if task.unjudged]
    return f"left out, not in points: {some(left)}" if left else ""


def _points(value: float) -> str:
    """0.0123 → `+1.23 points`."""
    return f"{100 * value:+.2f} points".replace("-", "−")


def _interval(found: Difference) -> str:
    lower, upper = found.bounds()
    return f" ({100 * lower:+.2f} to {100 * upper:+.2f})".replace("-", "−")


def _limit(margin: float) -> str:
    points = f"{100 * margin:.4g}"
    return f"{points} point" if points == "1" else f"{points} points"


def _result(
    check: str,
    status: CheckStatus,
    summary: str,
    code: str,
    found: Difference | None = None,
    margin: float | None = None,
    evidence: tuple[str, ...] = (),
    *,
    advisory: bool = False,
) -> CheckResult:
    return CheckResult(
        check=check,
        status=status,
        summary=summary,
        code=code,
        measured=None if found is None else found.delta,
        limit=margin,
        unit="points",
        interval=None if found is None else found.bounds(),
        evidence=evidence,
        advisory=advisory,
        design="groups",
        metric="evals",
    )
