"""A live FP8 run against finished BF16 runs, as their logs stand now (PARITY.md 6): logs in, a state out; no clock, no file.

**Which gap.** The relative gap of the run's loss to the pointwise mean of the k baseline logs, on common steps; medians of
blocks of 1 % of the baseline's run. Only whole blocks count: one that still fills would be looked at more than once.

**The floor τ(t).** Under the null the run is one more BF16 run, so its gap to the mean of k has the variance σ²(1 + 1/k), σ²
that of a single run. Two sources estimate it, added up where both are there:
- k baseline logs: their deviations from their own mean, times √(1 + 1/k); k − 1 degrees of freedom. These are the
  leave-one-out gaps (B_i − mean of the others) brought to the variance that the run's gap has: theirs is σ²·k/(k − 1), too
  large by a third for k = 2. X/τ then is Student's t with k − 1 degrees of freedom, exactly.
- f floor logs: their gaps to the mean of the baselines, variance σ²(1 + 1/k) each, around zero; f degrees of freedom. They
  and the run share the baseline, so X/τ is not quite t: by simulation of normal offsets it exceeds the 97.5 % quantile at
  ν = k − 1 + f in 1.9 to 2.5 % of cases, for k from 1 to 13 and f from 0 to 30: never more often than it should.

**Which blocks bet.** Every L-th, L the decorrelation length of the floor's own block gaps (`decorrelation_length`).

**The forward penalty** p is in every loss that an FP8 run logs and is no lost quality (PARITY.md 1 and 3). With `serve` fp8
losses count as logged. With p known, bets are against m + p + t·τ. With p unknown a gap above m + t·τ may be a healthy run's
penalty (measured: 0.13 to 0.27 %, as much as the standard margin): it raises a warning, as `PENALTY_UNKNOWN` is no FAIL at
the end either. The alarm bets against m + max(1 %, 4m) + t·τ, the most that PARITY.md 5 lets a penalty excuse: beyond it even
a forward that loses four times what was ever measured would not explain the gap.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fp8migrate.errors import UsageError
from fp8migrate.evidence.alignment import align
from fp8migrate.plan.schema import Serve
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from fp8migrate.statistics import divergence as rule
from fp8migrate.statistics.monitor import ALARM, watch, watch_thresholds
from fp8migrate.statistics.robust import block_medians
from fp8migrate.statistics.spikes import EXCESS_ALPHA, excess_p_value, spike_events, spike_steps

Array = NDArray[np.float64]

# A run that counts from 0 beside a baseline that counts from 1 is told by its first points: later ones may lack or be resumed.
HEAD_POINTS = 64
# More between two bets would leave fewer than 20 of them in a run: too few to find a run that leaves in its second half.
MOST_THINNING = 5
# The first tenth, where gaps are heavier, tells nothing about how fast they are forgotten.
_SETTLED_SHARE = 0.1
# Fewer points that two logs have in common may well be the same: their first losses are.
_LEAST_POINTS_TO_EQUAL = 10
_WHOLE_SHARE = 0.9
# Even if every block is above its limit the wealth takes eight bets from 1 to 20.
_FEWEST_BETS = 8
_FINITE: tuple[Quantity, ...] = ("training_loss", "validation_loss", "grad_norm")

AlarmKind = Literal["non_finite", "diverged", "wealth"]


@dataclass(frozen=True)
class Question:
    """What the run is held to. margin, forward_penalty: relative; forward_penalty None: not known."""

    margin: float
    serve: Serve = "bf16"
    forward_penalty: float | None = None

    @property
    def penalty_unknown(self) -> bool:
        return self.serve == "bf16" and self.forward_penalty is None

    @property
    def penalty(self) -> float:
        """What the divergence rule takes off for the FP8 forward: as it is known, else nothing."""
        return (self.forward_penalty or 0.0) if self.serve == "bf16" else 0.0

    @property
    def allowance(self) -> float:
        """What stands between the margin and an alarm besides the noise."""
        return max(rule.LEAST_GAP, rule.MARGINS * self.margin) if self.penalty_unknown else self.penalty


@dataclass(frozen=True, eq=False)
class Reference:
    """The BF16 runs. baselines: at least one; floors: further repeats. grad_norm: of the first baseline that logs it."""

    quantity: Quantity
    baselines: tuple[LogSeries, ...]
    floors: tuple[LogSeries, ...]
    names: tuple[str, ...]
    grad_norm: LogSeries | None

    @property
    def all(self) -> tuple[LogSeries, ...]:
        return (*self.baselines, *self.floors)


@dataclass(frozen=True, eq=False)
class Floor:
    """level: τ(t), (blocks,), relative. known: blocks in which every BF16 run has a value. degrees: ν of τ. thinning: L."""

    level: Array
    known: NDArray[np.bool_]
    degrees: int
    thinning: int


@dataclass(frozen=True, eq=False)
class Blocks:
    """ends: last step of each block, (blocks,). complete: how many of them the run has passed.

    gaps: medians, NaN where not complete or without a value; limits: what a gap must exceed to bet on an alarm, NaN without a
    floor; wealth: after each block. wealth_as_logged: the same without any allowance for an unknown penalty. All (blocks,).
    """

    ends: Array
    complete: int
    gaps: Array
    limits: Array
    wealth: Array
    wealth_as_logged: Array

    @property
    def last(self) -> int | None:
        """The last complete block that has a value."""
        present = np.flatnonzero(np.isfinite(self.gaps))
        return int(present[-1]) if present.size else None


@dataclass(frozen=True)
class Alarm:
    """The run is worse. step: as the run logs it. value: the wealth, or the gap of the block that decided; limit: its limit."""

    kind: AlarmKind
    step: float
    what: str
    value: float = float("nan")
    limit: float = float("nan")


@dataclass(frozen=True, eq=False)
class LiveState:
    """How the run stands. Losses in `unit`.

    Steps count from 1 where any of the logs does. steps, baseline, run: where both have a value, (points,). baseline_steps,
    baseline_loss: the baseline's whole curve.
    spikes: of the run alone, of the baselines alone, and how many baselines. grad_norm: of the run and of the baseline, medians
    over the last block, None where not logged. over: why there is nothing more to wait for, "" while the run goes on.
    """

    name: str
    quantity: Quantity
    unit: str
    axis: str
    margin: float
    step: float | None
    last_step: float
    last_loss: float | None
    steps: Array
    baseline: Array
    run: Array
    baseline_steps: Array
    baseline_loss: Array
    blocks: Blocks
    floor: Floor | None
    alarm: Alarm | None
    spikes: tuple[int, int, int]
    grad_norm: tuple[float | None, float | None]
    over: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def reference(baselines: Sequence[LogRecord], floors: Sequence[LogRecord] = ()) -> Reference:
    """The runs to hold a live one against, on the loss that all of them log: training loss before validation loss.

    UsageError where they have no loss, unit or axis in common, or one is a copy of another, which would make the floor zero.
    """
    records = [*baselines, *floors]
    quantities: tuple[Quantity, ...] = ("training_loss", "validation_loss")
    quantity = next((q for q in quantities if all(q in record.series for record in records)), None)
    if quantity is None or not baselines:
        raise UsageError("the BF16 logs have no loss in common", next_step="Give logs of the same program with --baseline.")
    series = [record.series[quantity] for record in records]
    names = tuple(record.name for record in records)
    for name, one in zip(names, series, strict=True):
        _same_kind(series[0], one, name)
        if not (np.isfinite(one.values) & (one.values > 0)).any():
            raise UsageError("holds no finite loss above zero", where=name)
    _refuse_copies(series, names)
    _refuse_short(series[: len(baselines)], names)
    norms = (record.series.get("grad_norm") for record in baselines)
    count = len(baselines)
    return Reference(quantity, tuple(series[:count]), tuple(series[count:]), names, next((n for n in norms if n), None))


def _same_kind(first: LogSeries, other: LogSeries, name: str) -> None:
    if first.unit != other.unit:
        raise UsageError(f"its loss is in {other.unit}, that of the baseline in {first.unit}: never compared", where=name)
    if first.axis != other.axis:
        raise UsageError(f"counts {other.axis} where the baseline counts {first.axis}", where=name)


def _refuse_copies(series: Sequence[LogSeries], names: Sequence[str]) -> None:
    seen: dict[bytes, str] = {}
    for name, one in zip(names, series, strict=True):
        if (content := one.values.tobytes()) in seen:
            raise UsageError(f"equals {seen[content]} at every step: it tells nothing of the noise", where=name)
        seen[content] = name


def _refuse_short(series: Sequence[LogSeries], names: Sequence[str]) -> None:
    """A baseline that was cut would cut the watch."""
    longest = max(float(one.steps[-1]) for one in series)
    for name, one in zip(names, series, strict=False):
        if one.steps[-1] < _WHOLE_SHARE * longest:
            what = f"ends at {_number(float(one.steps[-1]))} where another baseline ends at {_number(longest)}"
            raise UsageError(what, where=name, next_step="Give finished runs, or this one with --floor.")


def live_state(bf16: Reference, run: LogRecord, question: Question) -> LiveState:
    """The state of a run whose log may still grow. UsageError where its loss can never be compared with the baseline's."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return _live_state(bf16, run, question)


def _live_state(bf16: Reference, run: LogRecord, question: Question) -> LiveState:
    nothing = replace(bf16.baselines[0], steps=np.empty(0), values=np.empty(0), digits=None)
    loss = run.series.get(bf16.quantity, nothing)
    _same_kind(bf16.baselines[0], loss, run.name)
    (loss, *others), shifted = _one_base([loss, *bf16.all])
    baselines, floors = others[: len(bf16.baselines)], others[len(bf16.baselines) :]
    whole = align(baselines, bf16.names[: len(baselines)])
    if not whole.steps.size:
        raise UsageError("the baseline logs share none of their steps", next_step="Give logs of the same interval.")
    grid = _grid(whole.steps, [loss, *others])
    floor = _floor(grid, baselines, floors, loss)
    steps, rows, notes = _beside(loss, baselines)
    mean = rows[:-1].mean(axis=0)
    gap = _relative(rows[-1], mean)
    reached = float(loss.steps[-1]) if loss.steps.size else None
    blocks = _blocks(grid, _on_grid(grid, steps, gap), reached, floor, question)
    spikes = _spikes(rows)
    return LiveState(
        name=run.name,
        quantity=bf16.quantity,
        unit=loss.unit,
        axis=loss.axis,
        margin=question.margin,
        step=reached,
        last_step=run.expected_last_step or float(whole.steps[-1]),
        last_loss=float(loss.values[-1]) if loss.steps.size else None,
        steps=steps,
        baseline=mean,
        run=rows[-1],
        baseline_steps=whole.steps,
        baseline_loss=whole.values.mean(axis=0),
        blocks=blocks,
        floor=floor,
        alarm=_first([_non_finite(run), _diverged(grid, blocks, floor, gap, question), _out_of_wealth(blocks)]),
        spikes=spikes,
        grad_norm=_grad_norms(run, bf16, blocks),
        over=_over(run, loss, float(whole.steps[-1])),
        warnings=(*_judgement_warnings(loss, blocks, spikes, question), *_log_warnings(run, loss, rows, grid, question)),
        notes=(*_said_once(floor, question, shifted), *run.notes, *notes),
    )


@dataclass(frozen=True, eq=False)
class _Grid:
    """The baseline's steps, of which each block takes as many. count: blocks; ends: the last step of each.

    points: how many values a whole run would have beside the baseline, at the widest interval of the logs.
    """

    steps: Array
    count: int
    points: int

    @property
    def ends(self) -> Array:
        edges = np.linspace(0, self.steps.size, self.count + 1).round().astype(int)
        return np.asarray(self.steps[edges[1:] - 1], dtype=np.float64)


def _grid(steps: Array, series: Sequence[LogSeries]) -> _Grid:
    """Blocks of 1 % of the baseline's run, and of its quarters below 500 steps; fewer where a block would hold no point."""
    coarse = max(one.interval or 0.0 for one in series) or 1.0
    length = float(steps[-1] - steps[0])
    points = int(length / coarse) + 1
    counted = int(length) + 1 if series[0].axis == "steps" else points
    return _Grid(steps, max(1, min(rule.num_blocks(counted), points, steps.size)), points)


def _on_grid(grid: _Grid, steps: Array, gap: Array) -> Array:
    """A gap at some steps as a gap at all steps of the grid, NaN where there is none."""
    full = np.full(grid.steps.size, np.nan)
    inside = (steps >= grid.steps[0]) & (steps <= grid.steps[-1])
    full[np.searchsorted(grid.steps, steps[inside])] = gap[inside]
    return full


def _relative(values: Array, baseline: Array) -> Array:
    """(values − baseline)/baseline; NaN where the baseline is no loss above zero."""
    return np.asarray(np.where(baseline > 0, values / baseline - 1, np.nan), dtype=np.float64)


def _one_base(series: Sequence[LogSeries]) -> tuple[list[LogSeries], bool]:
    """Logs that count from 0 beside logs that count from 1, shifted by one; by their first points, for a live run is short."""
    early = [any(_one_before(one, other) for other in series) for one in series]
    found = [replace(one, steps=one.steps + 1) if before else one for one, before in zip(series, early, strict=True)]
    return found, any(early)


def _one_before(one: LogSeries, other: LogSeries) -> bool:
    count = min(HEAD_POINTS, one.steps.size, other.steps.size)
    return count > 1 and one.steps[0] == 0 and bool(np.array_equal(one.steps[:count] + 1, other.steps[:count]))


def _beside(loss: LogSeries, baselines: Sequence[LogSeries]) -> tuple[Array, Array, tuple[str, ...]]:
    """Common steps, (points,), and the values there, (baselines + 1, points), the run last.

    Baselines are cut to where the run is: that a live run is shorter is no fault, and what it has not reached is not left out.
    """
    nothing = np.empty(0), np.empty((len(baselines) + 1, 0)), ()
    if not loss.steps.size:
        return nothing
    start, stop = float(loss.steps[0]) - (loss.interval or 1.0), float(loss.steps[-1])
    cut = []
    for one in baselines:
        inside = (one.steps > start) & (one.steps <= stop)
        cut.append(replace(one, steps=one.steps[inside], values=one.values[inside]))
    if not all(one.steps.size for one in cut):
        return nothing
    found = align([*cut, loss], [*(f"baseline {n + 1}" for n in range(len(cut))), "the run"])
    return (found.steps, found.values, found.notes) if found.steps.size else nothing


def _floor(grid: _Grid, baselines: Sequence[LogSeries], floors: Sequence[LogSeries], loss: LogSeries) -> Floor | None:
    """τ(t) as the module says; None without any BF16 repeat."""
    k, f = len(baselines), len(floors)
    gaps: list[tuple[Array, Array]] = []
    if k > 1:
        whole = align(baselines, [""] * k)
        mean = whole.values.mean(axis=0)
        gaps += [(whole.steps, _relative(row, mean) * np.sqrt(1 + 1 / k)) for row in whole.values]
    for one in floors:
        steps, rows, _ = _beside(one, baselines)
        gaps.append((steps, _relative(rows[-1], rows[:-1].mean(axis=0))))
    if not gaps:
        return None
    logged = _as_the_run_logs(grid.steps, loss)
    blocks = np.array([block_medians(np.where(logged, _on_grid(grid, *gap), np.nan), grid.count) for gap in gaps])
    degrees = k - 1 + f
    # The deviations of k runs from their mean add up to k − 1 times their variance.
    level = rule.floor_level(blocks) * np.sqrt(len(gaps) / degrees)
    return Floor(level, np.isfinite(blocks).all(axis=0), degrees, decorrelation_length(blocks))


def _as_the_run_logs(steps: Array, loss: LogSeries) -> NDArray[np.bool_]:
    """Which steps a run that logs single values at a wider interval will have: its blocks are as noisy as so few points."""
    every = loss.interval
    if loss.averaging or not every or steps.size < 2 or every <= float(np.median(np.diff(steps))):
        return np.ones(steps.size, dtype=np.bool_)
    away = (steps - loss.steps[0] + every / 2) % every - every / 2
    kept: NDArray[np.bool_] = np.abs(away) < 1e-6 * every
    return kept if kept.any() else np.ones(steps.size, dtype=np.bool_)


def decorrelation_length(rows: Array) -> int:
    """Blocks after which the floor's gaps have forgotten themselves, from 1 to 5. rows: block gaps, (runs, blocks).

    By the variogram γ(h) = ½·mean (g(t + h) − g(t))², which the persistent offset of a pair leaves alone: it never
    decorrelates and is what t·τ(t) stands for. The length is the first h at which γ(h) reaches 1 − 1/e of its level at a tenth
    of the run: of gaps that forget exponentially, their e-folding length; 1 of independent blocks. The first tenth is left out.
    """
    settled = rows[:, round(_SETTLED_SHARE * rows.shape[1]) :]
    tenth = max(2, round(_SETTLED_SHARE * rows.shape[1]))
    if settled.shape[1] <= tenth + 2:
        return 1
    level = float(np.mean([_variogram(settled, h) for h in range(max(1, tenth - 2), min(tenth + 3, settled.shape[1]))]))
    if not level > 0:  # no difference at all, or too few values
        return 1
    lengths = range(1, MOST_THINNING)
    return next((h for h in lengths if _variogram(settled, h) >= (1 - np.exp(-1)) * level), MOST_THINNING)


def _variogram(rows: Array, lag: int) -> float:
    steps = (rows[:, lag:] - rows[:, :-lag]) ** 2
    found = np.isfinite(steps)
    return float(0.5 * steps[found].mean()) if found.any() else float("nan")


def _blocks(grid: _Grid, gap: Array, reached: float | None, floor: Floor | None, question: Question) -> Blocks:
    complete = 0 if reached is None else int(np.searchsorted(grid.ends, reached, side="right"))
    whole = np.arange(grid.count) < complete
    gaps = np.where(whole, block_medians(gap, grid.count), np.nan)
    if floor is None:
        nothing = np.full(grid.count, np.nan)
        return Blocks(grid.ends, complete, gaps, nothing, np.ones(grid.count), np.ones(grid.count))
    base = watch_thresholds(question.margin, floor.level, floor.degrees)
    bets = floor.known & (np.arange(grid.count) % floor.thinning == floor.thinning - 1)
    betted = np.where(bets, gaps, np.nan)
    limits = base + question.allowance
    wealth, as_logged = (watch(betted, limit).wealth for limit in (limits, base))
    return Blocks(grid.ends, complete, gaps, np.where(floor.known, limits, np.nan), wealth, as_logged)


def _first(alarms: Sequence[Alarm | None]) -> Alarm | None:
    """The one that would have been raised first; of several at one step, the first of the list."""
    raised = [alarm for alarm in alarms if alarm is not None]
    return min(raised, key=lambda alarm: alarm.step) if raised else None


def _non_finite(run: LogRecord) -> Alarm | None:
    found = []
    for quantity in _FINITE:
        if (series := run.series.get(quantity)) is not None:
            at = np.flatnonzero(~np.isfinite(series.values))[:1]
            found += [(float(series.steps[i]), quantity.replace("_", " "), float(series.values[i])) for i in at]
    if not found:
        return None
    step, what, value = min(found)
    return Alarm("non_finite", step, f"{what} is {'NaN' if np.isnan(value) else 'infinite'}", value)


def _diverged(grid: _Grid, blocks: Blocks, floor: Floor | None, gap: Array, question: Question) -> Alarm | None:
    """The block rule of PARITY.md 5. gap: at the common steps so far, (points,).

    Blocks to come count as not above: that the last three are above and not falling decides at the end of a run, and asked
    after every block it would be a rule of three blocks in place of five. The noise between the gap's own neighbouring steps
    (data that is not shared) counts like the floor where it is the larger.
    """
    to_come = np.full(max(0, grid.points - gap.size), np.nan)
    noise = rule.block_noise(np.concatenate([gap, to_come]), rule.num_blocks(gap.size + to_come.size))
    level = np.where(floor.known, floor.level, 0.0) if floor else np.zeros(grid.count)
    limits = rule.threshold(question.margin, np.maximum(level, noise), floor.degrees if floor else 0, question.penalty)
    gaps = np.where(np.arange(grid.count) < blocks.complete, blocks.gaps, 0.0)
    found = rule.divergence(gaps, limits)
    if found is None:
        return None
    at = round(found.share * grid.count) - 1
    return Alarm("diverged", float(blocks.ends[at]), "the run left its baseline", found.gap, found.threshold)


def _out_of_wealth(blocks: Blocks) -> Alarm | None:
    reached = np.flatnonzero(blocks.wealth >= ALARM)
    if not reached.size:
        return None
    at = int(reached[0])
    return Alarm("wealth", float(blocks.ends[at]), "block after block above its limit", float(blocks.wealth[at]), ALARM)


def _spikes(rows: Array) -> tuple[int, int, int]:
    """Spikes that only the run has, those that a baseline has and the run has not, and the number of baselines."""
    *of_baselines, of_run = (spike_steps(row) for row in rows)
    anywhere = np.concatenate(of_baselines)
    own = sum(not np.isin(event, anywhere).any() for event in spike_events(of_run))
    theirs = sum(not np.isin(event, of_run).any() for steps in of_baselines for event in spike_events(steps))
    return own, theirs, len(of_baselines)


def _grad_norms(run: LogRecord, bf16: Reference, blocks: Blocks) -> tuple[float | None, float | None]:
    """Medians over the last complete block, or up to its first one's end."""
    at = max(0, blocks.complete - 1)
    start, stop = (float(blocks.ends[at - 1]) if at else -np.inf), float(blocks.ends[at])
    return _median(run.series.get("grad_norm"), start, stop), _median(bf16.grad_norm, start, stop)


def _median(series: LogSeries | None, start: float, stop: float) -> float | None:
    if series is None:
        return None
    inside = series.values[(series.steps > start) & (series.steps <= stop) & np.isfinite(series.values)]
    return float(np.median(inside)) if inside.size else None


def _over(run: LogRecord, loss: LogSeries, baseline_end: float) -> str:
    """Whether the run has come to the end that its own log names; without one, to where the baseline ends."""
    if not loss.steps.size:
        return ""
    if run.expected_last_step is None:
        return "the baseline ends here, and the log names no end of its own" if loss.steps[-1] >= baseline_end else ""
    logged = run.series[loss.name].steps
    # A log that counts from 0 ends one step before the number of steps; one that logs now and then, before its end.
    most = (loss.interval or 1.0) + (1.0 if logged[0] == 0 else 0.0)
    return "the run is at its end" if run.expected_last_step - float(logged[-1]) < most else ""


def _said_once(floor: Floor | None, question: Question, shifted: bool) -> list[str]:
    """What holds for the whole watch."""
    found = []
    if floor is None:
        found.append(
            "no BF16 repeats (--floor, or several --baseline), so the noise is not known and no bets are placed: "
            "watched for NaN, divergence and spikes only"
        )
    elif floor.degrees < 3:
        found.append(f"the noise is known from too few runs to see small gaps ({floor.degrees} degrees of freedom): give more")
    if floor is not None and (bets := floor.known.size // floor.thinning) < _FEWEST_BETS:
        found.append(f"{bets} bets over the whole run are too few for an alarm by them (blocks of 1 % need 500 steps)")
    if floor is not None and not floor.known.all():
        found.append(f"BF16 repeats cover {int(floor.known.sum())} of {floor.known.size} blocks: no bets on the others")
    if floor is not None and question.penalty_unknown:
        found.append(
            f"the loss is judged as logged, FP8 forward penalty and all: with the penalty unknown an alarm takes "
            f"{100 * question.allowance:g} % more than the margin (--forward-penalty)"
        )
    if question.serve == "fp8" and question.forward_penalty is not None:
        found.append("served in FP8 the forward penalty counts as lost quality: --forward-penalty is not used")
    if shifted:
        found.append("one log counts from 0 where another counts from 1: shifted by one")
    return found


def _judgement_warnings(loss: LogSeries, blocks: Blocks, spikes: tuple[int, int, int], question: Question) -> list[str]:
    """What looks bad and is no alarm."""
    found = []
    crossed = np.flatnonzero(blocks.wealth_as_logged >= ALARM)
    if question.penalty_unknown and crossed.size:
        where = f"{loss.axis.removesuffix('s')} {_number(blocks.ends[crossed[0]])}"
        found.append(
            f"at {where} the loss as logged is above the margin, by more than the noise: lost quality, or the FP8 forward "
            "penalty alone? Evaluate one checkpoint under both forwards and give --forward-penalty"
        )
    own, theirs, count = spikes
    if own and excess_p_value(own, theirs, 1 / (1 + count)) < EXCESS_ALPHA:
        found.append(f"more spikes than chance gives: {own} in the run alone, {theirs} in {count} of BF16")
    return found


def _log_warnings(run: LogRecord, loss: LogSeries, rows: Array, grid: _Grid, question: Question) -> list[str]:
    """What is odd about the log itself."""
    found = []
    if run.failure:
        found.append(f"the log says that the run failed: {run.failure}")
    if run.crash:
        found.append(f"the log ends with an error: {run.crash}")
    if loss.digits is not None and 10.0 ** (1 - loss.digits) > question.margin:
        found.append(f"losses are logged with {loss.digits} digits: too few for a margin of {100 * question.margin:g} %")
    if rows.shape[1] >= _LEAST_POINTS_TO_EQUAL and any(np.array_equal(row, rows[-1]) for row in rows[:-1]):
        found.append("the run equals a baseline at every step: is it the FP8 run?")
    if loss.steps.size and loss.steps[-1] > grid.steps[-1] + (loss.interval or 1.0):
        found.append(f"the baseline ends at {_number(grid.steps[-1])}: beyond it the run is watched for NaN and Inf only")
    return found


def _number(step: float) -> str:
    return f"{step:,.0f}" if float(step).is_integer() else f"{step:g}"
