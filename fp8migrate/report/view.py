"""What a Report says, in the words and in the order in which every format for people shows it. Nothing is judged here."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from fp8migrate.evidence.advice import Advice, RecipeForecast
from fp8migrate.evidence.items import TaskComparison
from fp8migrate.evidence.schema import Comparison
from fp8migrate.plan.audit import AuditRow
from fp8migrate.records.schema import Conversion, Environment
from fp8migrate.report.cells import Gap, deciding
from fp8migrate.report.words import (
    DESIGN_WORDS,
    ENDPOINT_MEANING,
    ENDPOINT_WORDS,
    bounds,
    duration,
    limit,
    number,
    percent,
    plural,
    share,
    signed_number,
    size,
    start,
)
from fp8migrate.verdict import PhaseReport, Report

STATE_WORDS = {
    "passed": "passed",
    "failed": "failed",
    "inconclusive": "inconclusive",
    "screened": "screened",
    "not_run": "not run",
}


@dataclass(frozen=True)
class Tile:
    """One number at the top of the page. meaning: what it is, in one line."""

    label: str
    value: str
    detail: str
    meaning: str


@dataclass(frozen=True)
class Fact:
    """A name and its value."""

    name: str
    value: str


@dataclass(frozen=True)
class Differences:
    """The audit of one comparison, what spoils a pair first."""

    unexpected: tuple[AuditRow, ...]
    unknown: tuple[AuditRow, ...]
    precision: tuple[AuditRow, ...]
    same: tuple[AuditRow, ...]
    attested: tuple[AuditRow, ...] = ()


@dataclass(frozen=True)
class CoverageGroup:
    """Layers that were treated alike. share: of the GEMM FLOPs."""

    converted: bool
    reason: str
    layers: int
    share: float


def is_emulated(report: Report) -> bool:
    """Whether any of the evidence comes from emulated FP8. Then nothing is said about speed."""
    integration = report.integration is not None and report.integration.emulated
    return integration or any(comparison.emulated for comparison in report.comparisons)


def is_of_logs(report: Report) -> bool:
    """Whether it judges finished runs of others: no phases, no plan."""
    return [phase.name for phase in report.phases] == ["compare"]


def code_of(report: Report) -> str:
    """The verdict's code, where it says more than the verdict's name."""
    return "" if report.verdict.code == report.verdict.name else report.verdict.code


def titled(report: Report) -> tuple[tuple[str, Comparison], ...]:
    """Each comparison with a title of its own: its design; with its recipe where designs repeat; numbered where both do."""
    designs = Counter(comparison.design for comparison in report.comparisons)
    seen: Counter[str] = Counter()
    found = []
    for comparison in report.comparisons:
        title = DESIGN_WORDS.get(comparison.design, comparison.design)
        if designs[comparison.design] > 1 and comparison.recipe:
            title += f", {comparison.recipe}"
        seen[title] += 1
        found.append((title if seen[title] == 1 else f"{title} ({seen[title]})", comparison))
    return tuple(found)


def comparison_facts(comparison: Comparison) -> str:
    """One line under a comparison's title."""
    if comparison.groups:
        return _group_facts(comparison)
    parts = [part for part in (comparison.model, comparison.recipe) if part]
    parts.append(
        f"{plural(comparison.planned_pairs, 'pair')} planned" + (" at each start" if len(comparison.fractions) > 1 else "")
    )
    if comparison.tokens:
        parts.append(f"{number(comparison.tokens)} tokens a run")
    parts.append(f"margin {limit(comparison.margin)}")
    if comparison.serve == "fp8":
        parts.append(f"to be served in FP8, margin of that {limit(comparison.serve_margin)}")
    if comparison.emulated:
        parts.append("FP8 emulated")
    if comparison.data_passes > 1:
        parts.append(f"training text seen up to {number(comparison.data_passes, 3)} times")
    return " · ".join(parts)


def _group_facts(comparison: Comparison) -> str:
    groups = comparison.groups
    assert groups
    how = {
        "pairs": "paired: the same batches, by the noise of their losses",
        "shared": "one data order for all, by the noise of their losses",
        "unpaired": "data orders of their own",
        "unknown": "data order not known",
    }[groups.pairing]
    parts = [f"{groups.sizes[0]} baseline and {plural(groups.sizes[1], 'candidate run')}", how, comparison.model]
    parts.append(f"margin {limit(comparison.margin_of(comparison.primary[0]))}")
    if comparison.serve == "fp8":
        parts.append("to be served in FP8: losses count as logged")
    return " · ".join([*parts, *groups.notes[:3]])


def main_comparison(report: Report) -> Comparison | None:
    """The comparison that says most: the last one that can pass, else the last screen."""
    judged = [comparison for comparison in report.comparisons if comparison.design != "long_screen"]
    ranked = [comparison for comparison in judged if comparison.design != "screen"] or judged
    return ranked[-1] if ranked else None


def tiles(report: Report) -> tuple[Tile, ...]:
    comparison = main_comparison(report)
    if comparison is not None and comparison.groups:
        return (*_group_tiles(comparison), *_worth_tile(report))
    found = [_quality_tile(comparison), _penalty_tile(report, comparison), _coverage_tile(report), _pairs_tile(comparison)]
    return tuple(tile for tile in found if tile is not None)


def _group_tiles(comparison: Comparison) -> tuple[Tile, ...]:
    """The losses that are judged, then what the logs hold of speed and memory."""
    found = []
    for endpoint in comparison.primary:
        if (gap := deciding(comparison, endpoint)) is not None:
            meaning = f"Candidate against baseline: {ENDPOINT_MEANING[endpoint]}."
            found.append(Tile(ENDPOINT_WORDS[endpoint], percent(gap.mean), _with_bounds(gap, comparison), meaning))
    assert comparison.groups
    titles = {"speed": "Speed", "memory": "Peak memory", "grad_norm": "Gradient norm"}
    for one in comparison.groups.efficiency:
        low, high = one.bounds.lower, one.bounds.upper
        known = np.isfinite(low) and np.isfinite(high)
        detail = f"{number(low, 3)} to {number(high, 3)}, " if known else ""
        detail += f"{len(one.baseline)} v {len(one.candidate)} runs"
        meaning = f"The candidate's over BF16's; {one.excluded}."
        found.append(Tile(titles[one.metric], f"{number(one.bounds.mean, 3)} ×", detail, meaning))
    return tuple(found)


def _worth_tile(report: Report) -> tuple[Tile, ...]:
    """Whether the move pays, where the logs hold a speed."""
    found = next((result for result in report.results if result.check == "worth_it" and result.interval), None)
    if found is None or found.interval is None:
        return ()
    value = {"WORTH_IT": "yes", "NOT_WORTH_IT": "no"}.get(found.code, "not known")
    low, high = (number(bound, 3) for bound in found.interval)
    detail = f"{low} to {high} × at equal quality, asked {number(found.limit or 0.0, 3)}"
    return (Tile("Worth it", value, detail, "Speed-up after the BF16 training that makes up for the gap."),)


def _with_bounds(gap: Gap, comparison: Comparison) -> str:
    where = f", {start(gap.fraction, comparison.design)}" if len(comparison.fractions) > 1 else ""
    margin = f", margin {limit(gap.margin)}" if gap.margin is not None else ""
    interval = f"{bounds(gap.lower, gap.upper)}, " if gap.lower is not None else ""
    pairs = f"{gap.counted} pair" if gap.counted == "1" else f"{gap.counted} pairs"
    if gap.sizes is not None:
        pairs = f"{gap.counted} runs"
    return f"{interval}{pairs}{where}{margin}"


def _quality_tile(comparison: Comparison | None) -> Tile | None:
    gap = deciding(comparison, "validation_loss") if comparison else None
    if gap is None or comparison is None:
        return None
    meaning = "Learned quality: held-out loss, both arms under a BF16 forward."
    return Tile("Learned quality", percent(gap.mean), _with_bounds(gap, comparison), meaning)


def _penalty_tile(report: Report, comparison: Comparison | None) -> Tile | None:
    meaning = "What the same weights lose when the forward pass runs in FP8; it is not lost quality."
    gap = deciding(comparison, "forward_penalty") if comparison else None
    if gap is not None and comparison is not None:
        return Tile("FP8 forward penalty", percent(gap.mean), _with_bounds(gap, comparison), meaning)
    logits = report.integration.logits if report.integration else None
    if logits is None:
        return None
    return Tile("FP8 forward penalty", percent(logits.penalty), f"one checkpoint, {number(logits.tokens)} tokens", meaning)


def _coverage_tile(report: Report) -> Tile | None:
    found = conversions(report)
    if not found:
        return None
    conversion = found[-1][1]
    converted = sum(layer.converted for layer in conversion.layers)
    detail = f"{converted} of {plural(len(conversion.layers), 'GEMM site')}"
    return Tile("GEMM FLOPs in FP8", share(conversion.fp8_flops_share), detail, "Forward and both backward GEMMs of the model.")


def _pairs_tile(comparison: Comparison | None) -> Tile | None:
    if comparison is None:
        return None
    done = sum(
        run.arm == "candidate"
        and run.outcome is not None
        and run.outcome.status == "completed"
        and run.outcome.last_step >= run.expected_last_step
        for run in comparison.runs
    )
    planned = comparison.planned_pairs * max(1, len(comparison.fractions))
    detail = f"{DESIGN_WORDS.get(comparison.design, comparison.design).lower()}, {plural(len(comparison.fractions), 'start')}"
    return Tile("Candidate runs complete", f"{done} of {planned}", detail, "A pair of runs, never a step, is one observation.")


def conversions(report: Report) -> tuple[tuple[str, Conversion], ...]:
    """Every distinct conversion, by where it was seen."""
    found: list[tuple[str, Conversion]] = []
    if report.integration is not None and report.integration.conversion is not None:
        found.append(("Integration", report.integration.conversion))
    found += [(title, c.conversion) for title, c in titled(report) if c.conversion is not None]
    distinct: list[tuple[str, Conversion]] = []
    for title, conversion in found:
        if all(conversion.layers != other.layers for _, other in distinct):
            distinct.append((title, conversion))
    return tuple(distinct)


def coverage_groups(conversion: Conversion) -> tuple[CoverageGroup, ...]:
    """Layers by treatment and reason: converted first, then by share."""
    found: dict[tuple[bool, str], list[float]] = {}
    for layer in conversion.layers:
        found.setdefault((layer.converted, layer.reason), []).append(
            layer.low_precision_share if layer.converted else layer.flops_share
        )
        if layer.kept_gemms:
            key = (False, f"{', '.join(layer.kept_gemms)} of layers in FP8")
            found.setdefault(key, []).append(layer.flops_share - layer.low_precision_share)
    groups = [CoverageGroup(converted, reason, len(parts), sum(parts)) for (converted, reason), parts in found.items()]
    return tuple(sorted(groups, key=lambda group: (not group.converted, -group.share, group.reason)))


def differences(comparison: Comparison) -> Differences:
    rows = comparison.audit
    return Differences(
        unexpected=tuple(row for row in rows if row.status == "different" and not row.expected),
        unknown=tuple(row for row in rows if row.status == "unknown"),
        precision=tuple(row for row in rows if row.status == "different" and row.expected),
        same=tuple(row for row in rows if row.status == "same"),
        attested=tuple(row for row in rows if row.status == "attested"),
    )


@dataclass(frozen=True)
class ItemRow:
    """One task of the item evaluations, in words."""

    task: str
    metric: str
    baseline: str
    candidate: str
    difference: str
    interval: str
    documents: str
    flips: str
    baseline_flips: str
    note: str


def item_rows(report: Report) -> tuple[ItemRow, ...]:
    """Every task of both arms; what kept one from being compared stands as its note."""
    return () if report.items is None else tuple(_item_row(task) for task in report.items.tasks)


def _item_row(task: TaskComparison) -> ItemRow:
    found = task.difference
    interval = "—"
    if found is not None:
        lower, upper = found.bounds()
        interval = f"[{signed_number(100 * lower)}, {signed_number(100 * upper)}]"
    notes = [fault.text for fault in task.faults] + ([task.unjudged] if task.unjudged else [])
    if found is not None and not task.paired:
        notes.append("from aggregates alone: a weaker test")
    if found is not None and not task.gating:
        notes.append("too few documents to decide")
    return ItemRow(
        task=task.task,
        metric=task.metric,
        baseline=_score(task.baseline),
        candidate=_score(task.candidate),
        difference="—" if found is None else signed_number(100 * found.delta),
        interval=interval,
        documents="—" if task.num_items is None else number(task.num_items),
        flips=share(task.flip_rate),
        baseline_flips=share(task.baseline_flip_rate),
        note="; ".join(notes),
    )


def _score(value: float | None) -> str:
    return "—" if value is None else number(value)


def not_run(report: Report) -> tuple[str, ...]:
    """What this report has no evidence for, and why where that is known."""
    if is_of_logs(report):
        skipped = [result for result in report.results if result.status == "skipped"]
        return tuple(f"Check {result.check} skipped: {result.summary}" for result in skipped)
    lines = [f"Phase {phase.name}: not run{_because(phase.note)}" for phase in report.phases if phase.state == "not_run"]
    if report.baseline is None:
        lines.append("No BF16 baseline was measured.")
    if report.integration is None:
        lines.append("No check of the integration: no FP8 inference, gradients or resume were compared.")
    else:
        lines += _integration_gaps(report)
    if not report.comparisons:
        lines.append("No paired runs were compared: no loss curves and no parity.")
    for title, comparison in titled(report):
        lines += _comparison_gaps(title, comparison)
    skipped = [result for result in report.results if result.status == "skipped"]
    lines += [f"Check {result.check} skipped: {result.summary}" for result in skipped]
    return tuple(lines)


def _because(note: str) -> str:
    return f" ({note})" if note else ""


def _integration_gaps(report: Report) -> list[str]:
    assert report.integration
    measured = {
        "logits": report.integration.logits,
        "outputs per layer": report.integration.outputs or None,
        "layers by themselves": report.integration.layers or None,
        "gradients per parameter": report.integration.gradients or None,
        "save, load and step": report.integration.resume_mismatches,
        "microbatch accumulation": report.integration.accumulation_error,
    }
    missing = [name for name, value in measured.items() if value is None]
    return [f"Integration did not measure: {', '.join(missing)}."] if missing else []


def _comparison_gaps(title: str, comparison: Comparison) -> list[str]:
    arms = {cell.arm for cell in comparison.cells if cell.deltas}
    lines = []
    if comparison.design == "long_screen":
        arms |= {"sensitivity", "floor"}  # they stand in the screen whose pairs it repeats
    if "sensitivity" not in arms:
        lines.append(f"{title}: no run of the bad recipe, so there is no positive control.")
    if "floor" not in arms:
        lines.append(f"{title}: no floor arm, so there is no noise band.")
    if not any(cell.endpoint == "validation_loss" and cell.deltas for cell in comparison.cells):
        lines.append(f"{title}: no validation loss under a BF16 forward; learned quality was not measured.")
    return lines


def phase_detail(phase: PhaseReport) -> str:
    counts = [
        f"{count} {word}"
        for word in ("pass", "fail", "inconclusive", "skipped")
        if (count := sum(result.status == word for result in phase.results))
    ]
    took = [duration(phase.wall_seconds)] if phase.wall_seconds else []
    return " · ".join(([f"checks: {', '.join(counts)}"] if counts else []) + took)


def baseline_facts(report: Report) -> tuple[Fact, ...]:
    """The baseline in numbers. Speed stays out where the candidate is emulated: there is nothing to set it against."""
    found = report.baseline
    if found is None:
        return ()
    facts = [
        Fact("Validation loss at the start", _nats(found.initial_validation_loss)),
        Fact("Validation loss at the end", _nats(found.final_validation_loss)),
        Fact("Loss of a uniform guess", _nats(found.uniform_loss)),
        Fact("Spikes", number(found.spikes)),
        Fact("Training text seen", f"{number(found.data_passes, 3)} ×"),
    ]
    facts += [Fact(f"Tokens to a loss of {number(loss)}", number(tokens)) for loss, tokens in found.tokens_to_loss]
    if len(found.floor) > 1:
        values = np.array([delta.value for delta in found.floor if delta.baseline])
        facts.append(Fact("Floor (BF16 + 1 ulp), SD over pairs", f"{percent(_sd(values), signed=False)}, {values.size} pairs"))
    if found.tokens_per_second is not None and not is_emulated(report):
        facts.append(Fact("Tokens per second", number(round(found.tokens_per_second))))
    if found.peak_memory_bytes is not None:
        facts.append(Fact("Peak memory", size(found.peak_memory_bytes)))
    facts += [Fact(name.replace("_", " "), number(value)) for name, value in sorted(found.extra.items())]
    return tuple(facts)


def _sd(values: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> float:
    return float(np.std(values, ddof=1)) if values.size > 1 else float("nan")


def _nats(loss: float | None) -> str:
    return "—" if loss is None else f"{number(loss, 5)} nats"


@dataclass(frozen=True)
class AdvisedRecipe:
    """A recipe in the advisor's table: a short name, what is to be said of it, its numbers."""

    name: str
    tags: tuple[str, ...]
    it: RecipeForecast


def advised_recipes(advice: Advice) -> tuple[AdvisedRecipe, ...]:
    """Named by kind; with every setting where a kind stands there twice."""
    kinds = Counter(one.kind for one in advice.recipes)
    found = []
    for one in advice.recipes:
        tags = {"try first": one.recipe == advice.first, "the plan's candidate": one.candidate}
        tags["needs Blackwell"] = one.needs_blackwell
        name = one.kind if kinds[one.kind] == 1 else one.recipe
        found.append(AdvisedRecipe(name, tuple(tag for tag, holds in tags.items() if holds), one))
    return tuple(found)


def integration_facts(report: Report) -> tuple[Fact, ...]:
    found = report.integration
    if found is None:
        return ()
    facts = []
    if found.logits is not None:
        logits = found.logits
        facts += [
            Fact("Loss, BF16 forward → FP8 forward", f"{number(logits.loss_bf16, 5)} → {number(logits.loss_fp8, 5)} nats"),
            Fact("FP8 forward penalty", percent(logits.penalty)),
            Fact("KL divergence of the next token", f"{number(logits.kl_nats, 3)} nats"),
            Fact("Same most likely token", share(logits.top1_agreement)),
        ]
    if found.resume_mismatches is not None:
        count = len(found.resume_mismatches)
        facts.append(Fact("Save, load, step", f"{plural(count, 'tensor')} differ" if count else "equal to the last bit"))
    if found.accumulation_error is not None:
        beside = "" if found.accumulation_error_bf16 is None else f" (BF16: {number(found.accumulation_error_bf16, 3)})"
        facts.append(Fact("N microbatches against one, gradient error", number(found.accumulation_error, 3) + beside))
    return tuple(facts)


def environment_of(report: Report) -> Environment | None:
    if report.environment is not None:
        return report.environment
    return next((c.environment for c in report.comparisons if c.environment is not None), None)


def environment_facts(report: Report) -> tuple[Fact, ...]:
    environment = environment_of(report)
    if environment is None:
        return ()
    facts = []
    for name, value in environment.model_dump().items():
        if value is None or name == "variables":
            continue
        facts.append(Fact(name.replace("_", " "), number(value) if isinstance(value, int) else str(value)))
    facts += [Fact(name, value) for name, value in sorted(environment.variables.items())]
    return tuple(facts)
