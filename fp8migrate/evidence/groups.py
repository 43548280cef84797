"""Finished runs of others → a Comparison: aligned, paired where their noise shows pairs, with what logs cannot prove."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp8migrate.evidence.alignment import Aligned, align
from fp8migrate.evidence.efficiency import efficiency
from fp8migrate.evidence.learning import flat, gross_jumps, not_learned
from fp8migrate.evidence.logged_runs import log_fact, reading_notes, schedule_obstacle, unique_names
from fp8migrate.evidence.logged_settings import audit_logs, precision_obstacles, says_no_fp8, schedule_row
from fp8migrate.evidence.schema import Cell, Comparison, Delta, Endpoint, Groups, Obstacle, PairCurves
from fp8migrate.jobs import Arm
from fp8migrate.plan.policy import LossMetric, Policy, margin_fraction
from fp8migrate.records.logs import LogRecord, LogSeries, Quantity
from fp8migrate.records.schema import Series
from fp8migrate.statistics.divergence import GROSS_END, LEAST_GAP, MARGINS
from fp8migrate.statistics.pairing import PAIRED_ABOVE, Pairing, noise_correlation, pair_up
from fp8migrate.statistics.robust import final_window, robust_mean
from fp8migrate.statistics.spikes import spike_events, spike_steps

Array = NDArray[np.float64]

QUANTITIES: dict[Endpoint, Quantity] = {"logged_validation_loss": "validation_loss", "training_loss": "training_loss"}

# Two runs on one batch from the same random weights have the same first loss but for rounding and the FP8 forward, which an
# untrained model hardly feels: two public runs of another seed or setting differ by 0.1 %, equal ones by less than 0.01 %.
SAME_START = 5e-4
# Fewer, and a tenth of the run is too few points for a median.
LEAST_POINTS_FOR_GROWTH = 100
# Logged rates are rounded; a schedule that is off by a step differs by less than this at nearly all steps.
SAME_RATE, SHARE_OF_RATES = 0.02, 0.1
# The end of a log: 1 % of its points, and so many at least.
LEAST_END_POINTS = 3
# No FP8 run stays this near its BF16 baseline at every step: the floor of one ulp alone is wider (PARITY.md 1).
NEARER_THAN_FP8 = 1e-5
# Above this many nats a model has learned nothing yet: the first loss shows initial weights, not a trained checkpoint.
UNTRAINED_NATS = 8.0


@dataclass(frozen=True, eq=False)
class Sides:
    """The runs of a comparison, each side in the order it was given, with names for people."""

    baseline: tuple[LogRecord, ...]
    candidate: tuple[LogRecord, ...]
    floor: tuple[LogRecord, ...]
    names: tuple[str, ...]

    @property
    def all(self) -> tuple[LogRecord, ...]:
        return (*self.baseline, *self.candidate, *self.floor)

    @property
    def judged(self) -> tuple[LogRecord, ...]:
        return (*self.baseline, *self.candidate)

    @property
    def arms(self) -> tuple[Arm, ...]:
        sides: tuple[tuple[Arm, tuple[LogRecord, ...]], ...] = (
            ("baseline", self.baseline),
            ("candidate", self.candidate),
            ("floor", self.floor),
        )
        return tuple(arm for arm, records in sides for _ in records)

    @property
    def candidates(self) -> slice:
        return slice(len(self.baseline), len(self.judged))


def compare_logs(
    policy: Policy, baseline: Sequence[LogRecord], candidate: Sequence[LogRecord], floor: Sequence[LogRecord] = ()
) -> Comparison:
    """Judge-ready evidence of two groups of finished runs. Each side has at least one run.

    Nothing is dropped: a run that lacks what the others have stands in `runs` with its fault, and what keeps the logs from
    being comparable stands in `groups.obstacles`.
    """
    sides = Sides(tuple(baseline), tuple(candidate), tuple(floor), unique_names([*baseline, *candidate, *floor]))
    primary = choose_endpoints(policy, sides.judged)
    shown: tuple[Endpoint, ...] = tuple(e for e in QUANTITIES if e in primary or _all_have(sides.judged, e))
    aligned = {endpoint: _aligned(sides, endpoint) for endpoint in shown}
    curve_endpoint: Endpoint = "training_loss" if "training_loss" in shown else primary[0]
    curves = aligned[curve_endpoint]
    pairing = _pairing(curves, sides) if curve_endpoint == "training_loss" else Pairing("unknown")
    same_data = pairing.kind in ("pairs", "shared")
    cells = [_cell(aligned[endpoint], endpoint, pairing, sides) for endpoint in shown]
    cells += [_floor_cell(aligned[endpoint], endpoint, sides) for endpoint in shown]
    drawn = _pair_curves(curves, pairing, sides, curve_endpoint)
    obstacles = _obstacles(policy, sides, aligned, primary, pairing)
    extent = _extent(sides, curves, curve_endpoint)
    finals = [_final(curves, row, curve_endpoint) for row in range(len(sides.all))]
    facts = tuple(
        log_fact(record, arm, place, name, QUANTITIES[curve_endpoint], primary_quantities(primary), extent, shift, final)
        for record, arm, place, name, shift, final in zip(
            sides.all, sides.arms, _places(sides), sides.names, curves.shifts, finals, strict=True
        )
    )
    return Comparison(
        design="groups",
        margin=policy.margin_fraction,
        serve=policy.serve,
        serve_margin=policy.serve_margin_fraction,
        require_fp8=True,
        planned_pairs=min(len(sides.baseline), len(sides.candidate)),
        planned_sensitivity=False,
        fractions=(None,),
        cells=tuple(cell for cell in cells if cell and cell.deltas),
        curves=drawn,
        runs=facts,
        audit=(
            *audit_logs(sides.baseline, sides.candidate, same_data=same_data, attest=policy.attest.said),
            *schedule_row(policy.attest.schedule, decayed=_decayed(sides), required="schedule" in policy.require),
        ),
        conversion=None,
        environment=None,
        emulated=False,
        identical_pairs=_identical(curves, sides),
        data_passes=1.0,
        step_digits=_digits(sides.judged, shown),
        model=", ".join(dict.fromkeys(record.format for record in sides.judged)),
        primary=primary,
        last_step=round(extent[1]),
        groups=_groups(policy, sides, pairing, curves, aligned, obstacles, primary),
    )


def primary_quantities(primary: Sequence[Endpoint]) -> tuple[Quantity, ...]:
    return tuple(QUANTITIES[endpoint] for endpoint in primary)


def choose_endpoints(policy: Policy, records: Sequence[LogRecord]) -> tuple[Endpoint, ...]:
    """The losses that the policy names; else the validation loss where every run that has a loss has it, else training."""
    metrics = policy.metrics
    named: list[Endpoint] = []
    if metrics.validation_loss:
        named.append("logged_validation_loss")
    if metrics.training_loss:
        named.append("training_loss")
    if named:
        return tuple(named)
    with_loss = [record for record in records if record.losses]
    return ("logged_validation_loss",) if _all_have(with_loss, "logged_validation_loss") else ("training_loss",)


def _all_have(records: Sequence[LogRecord], endpoint: Endpoint) -> bool:
    return bool(records) and all(QUANTITIES[endpoint] in record.series for record in records)


def _series_of(record: LogRecord, endpoint: Endpoint) -> LogSeries | None:
    return record.series.get(QUANTITIES[endpoint])


@dataclass(frozen=True, eq=False)
class Lines:
    """One loss of all runs on common steps. values: (runs, points), NaN all along for a run that does not log it."""

    aligned: Aligned
    values: Array
    has: NDArray[np.bool_]
    shifts: tuple[float, ...]

    @property
    def steps(self) -> Array:
        return self.aligned.steps


def _aligned(sides: Sides, endpoint: Endpoint) -> Lines:
    series = [_series_of(record, endpoint) for record in sides.all]
    has = np.array([one is not None and one.steps.size > 0 for one in series], dtype=np.bool_)
    present = [one for one in series if one is not None and one.steps.size > 0]
    names = [name for name, there in zip(sides.names, has.tolist(), strict=True) if there]
    found = align(present, names) if present else Aligned(np.empty(0), np.empty((0, 0)))
    values = np.full((len(series), found.steps.size), np.nan)
    values[has] = found.values
    shifts = np.zeros(len(series))
    shifts[has] = found.shifts or 0.0
    return Lines(found, values, has, tuple(shifts.tolist()))


def _final(lines: Lines, row: int, endpoint: Endpoint) -> float | None:
    """The endpoint of one run: the last validation, or the robust mean of the final window; None without a finite one."""
    values = lines.values[row]
    if values.size == 0 or not lines.has[row]:
        return None
    value = float(values[-1]) if endpoint == "logged_validation_loss" else robust_mean(values[final_window(values.size)])
    return value if isfinite(value) else None


def _pairing(lines: Lines, sides: Sides) -> Pairing:
    count = len(sides.baseline)
    rows = lines.values
    found = np.full((count, len(sides.candidate)), np.nan)
    for left in range(count):
        for right in range(len(sides.candidate)):
            correlation = noise_correlation(rows[left], rows[count + right]) if lines.steps.size else None
            found[left, right] = np.nan if correlation is None else correlation
    return pair_up(found)


def _cell(lines: Lines, endpoint: Endpoint, pairing: Pairing, sides: Sides) -> Cell | None:
    """The candidate against the baseline: by pairs where the noise shows them, else as two groups.

    One run that lacks the endpoint takes the whole cell away: what is left would be a chosen part.
    """
    count = len(sides.baseline)
    finals = [_final(lines, row, endpoint) for row in range(len(sides.judged))]
    known = [value for value in finals if value is not None]
    if len(known) < len(finals) or any(value <= 0 for value in known[:count]):
        return None
    left, right = known[:count], known[count:]
    if pairing.kind == "pairs":
        deltas = tuple(Delta(place + 1, left[b], right[c]) for place, (b, c) in enumerate(pairing.pairs))
        return Cell("candidate", endpoint, None, deltas, None)
    mean = float(np.mean(left))
    deltas = tuple(Delta(place + 1, mean, value) for place, value in enumerate(right))
    return Cell("candidate", endpoint, None, deltas, None, groups=(tuple(left), tuple(right)))


def _floor_cell(lines: Lines, endpoint: Endpoint, sides: Sides) -> Cell | None:
    """BF16 among itself: each baseline run against the mean of the others, and the floor's runs against the baselines'."""
    finals = [_final(lines, row, endpoint) for row in range(len(sides.all))]
    left = [value for value in finals[: len(sides.baseline)] if value is not None]
    deltas = []
    if len(left) > 1:
        deltas = [(float(np.mean(left[:i] + left[i + 1 :])), value) for i, value in enumerate(left)]
    if left:
        deltas += [(float(np.mean(left)), value) for value in finals[len(sides.judged) :] if value is not None]
    shown = tuple(Delta(place + 1, *both) for place, both in enumerate(deltas) if both[0] > 0)
    return Cell("floor", endpoint, None, shown, None)


def _pair_curves(lines: Lines, pairing: Pairing, sides: Sides, endpoint: Endpoint) -> tuple[PairCurves, ...]:
    """Curves for divergence and drawing. Unpaired: each candidate against the mean of the baselines.

    The floor: each baseline against the mean of the others, and the floor's runs against the mean of all.
    """
    if not lines.steps.size:
        return ()
    count, rows = len(sides.baseline), lines.values
    unit = next((one.unit for record in sides.all if (one := _series_of(record, endpoint))), "")
    expected = round(_extent(sides, lines, endpoint)[1])
    first = int(max(0.0, lines.steps[0] - (lines.steps[1] - lines.steps[0]))) if lines.steps.size > 1 else 0

    def curves(arm: Arm, number: int, left: Array, right: Array) -> PairCurves:
        # Steps of a log need not be whole: epochs.
        steps: NDArray[Any] = lines.steps
        series = [Series("loss", unit, steps, values, expected) for values in (left, right)]
        return PairCurves(arm, number, None, series[0], series[1], first_step=first)

    mean = rows[:count].mean(axis=0)
    if pairing.kind == "pairs":
        found = [curves("candidate", place + 1, rows[b], rows[count + c]) for place, (b, c) in enumerate(pairing.pairs)]
    else:
        found = [curves("candidate", place + 1, mean, row) for place, row in enumerate(rows[sides.candidates])]
    floors = [(np.delete(rows[:count], i, axis=0).mean(axis=0), rows[i]) for i in range(count)] if count > 1 else []
    floors += [(mean, row) for row in rows[len(sides.judged) :]]
    return (*found, *(curves("floor", place + 1, *both) for place, both in enumerate(floors)))


def _places(sides: Sides) -> list[int]:
    """Numbers of the runs within their arm, from 1."""
    return [place + 1 for side in (sides.baseline, sides.candidate, sides.floor) for place in range(len(side))]


def _extent(sides: Sides, lines: Lines, endpoint: Endpoint) -> tuple[float, float]:
    """The first and the last step that any run logged, all counting alike."""
    found = [
        (float(one.steps[0]) + shift, float(one.steps[-1]) + shift)
        for record, shift in zip(sides.all, lines.shifts, strict=True)
        if (one := _series_of(record, endpoint)) and one.steps.size
    ]
    return min((start for start, _ in found), default=0.0), max((end for _, end in found), default=0.0)


def _identical(lines: Lines, sides: Sides) -> int:
    """Candidate runs whose losses equal those of some baseline run at every common step."""
    rows, count = lines.values, len(sides.baseline)
    if not lines.steps.size:
        return 0
    return sum(any(_same_run(row, other) for other in rows[:count]) for row in rows[sides.candidates])


def _same_run(left: Array, right: Array) -> bool:
    """Losses that are equal, or nearer at every step than FP8 and BF16 ever are."""
    if np.array_equal(left, right):
        return True
    if left.size < LEAST_POINTS_FOR_GROWTH or not (np.isfinite(left).all() and np.isfinite(right).all()):
        return False
    return bool((np.abs(left - right) < NEARER_THAN_FP8 * np.abs(right)).all())


def _repeated(lines: Lines, sides: Sides) -> list[Obstacle]:
    """Runs of one arm that are the same run: a copy, or one file under two names. It would count as two."""
    found = []
    arms = ((0, len(sides.baseline)), (len(sides.baseline), len(sides.judged)))
    for first, last in arms if lines.steps.size else ():
        for row in range(first, last):
            twin = next((other for other in range(first, row) if np.array_equal(lines.values[row], lines.values[other])), None)
            if twin is not None and np.isfinite(lines.values[row]).all():
                what = f"{sides.names[row]} is {sides.names[twin]}: the same losses at every step, one run that stands for two"
                found.append(Obstacle("REPEATED_RUN", what))
    return found


def _data_within(lines: Lines, sides: Sides, pairing: Pairing) -> list[Obstacle]:
    """Arms whose runs share data orders among themselves and not with the other arm: their offset is the order's, and runs
    on one order are no repetitions of each other.
    """
    if pairing.kind != "unpaired":
        return []
    arms = (("baseline", 0, len(sides.baseline)), ("candidate", len(sides.baseline), len(sides.judged)))
    found = []
    for arm, first, last in arms:
        orders: list[int] = []
        for row in range(first, last):
            alike = (noise_correlation(lines.values[row], lines.values[other]) for other in orders)
            if not any(one is not None and one > PAIRED_ABOVE for one in alike):
                orders.append(row)
        if len(orders) < last - first:
            what = (
                f"{last - first} runs of the {arm} saw {len(orders)} data orders that the other arm did not: runs on one order "
                "are no repetitions of each other"
            )
            found.append(Obstacle("INVALID_PAIR", what))
    return found


def _other_rates(sides: Sides) -> list[Obstacle]:
    """Learning rates that the logs themselves show to differ between two runs."""
    series = [record.series.get("learning_rate") for record in sides.judged]
    known = [one for one in series if one is not None and one.steps.size]
    if len(known) < len(series):
        return []
    left = known[0]
    for one, name in zip(known[1:], sides.names[1:], strict=False):
        if one.axis != left.axis:
            continue
        steps, a, b = np.intersect1d(left.steps, one.steps, return_indices=True)
        low = max(float(np.abs(left.values[a]).max()), 1e-30) if a.size else 1.0
        apart = np.abs(left.values[a] - one.values[b]) > SAME_RATE * np.maximum(np.abs(left.values[a]), 0.01 * low)
        if steps.size and apart.mean() > SHARE_OF_RATES:
            at = int(np.flatnonzero(apart)[0])
            rates = f"{left.values[a][at]:.4g} against {one.values[b][at]:.4g} at {steps[at]:g}"
            return [Obstacle("INVALID_PAIR", f"the learning rates differ: {rates} ({sides.names[0]}, {name})")]
    return []


def _decayed(sides: Sides) -> bool:
    """Whether every log holds a learning rate, and each has come down."""
    logged = all("learning_rate" in record.series for record in sides.judged)
    return logged and schedule_obstacle(sides.judged, sides.names) is None


def _digits(records: Sequence[LogRecord], endpoints: Sequence[Endpoint]) -> int | None:
    found = [one.digits for record in records for e in endpoints if (one := _series_of(record, e)) and one.digits is not None]
    return min(found, default=None)


def _obstacles(
    policy: Policy, sides: Sides, aligned: dict[Endpoint, Lines], primary: Sequence[Endpoint], pairing: Pairing
) -> tuple[Obstacle, ...]:
    """Why these runs cannot be compared as they are, each once."""
    found = [obstacle for endpoint in primary for obstacle in aligned[endpoint].aligned.problems]
    found += [o for e, lines in aligned.items() if e not in primary for o in lines.aligned.problems if o.code == "TRUNCATED"]
    found += precision_obstacles(sides.baseline, sides.names)
    shown = next(iter(aligned.values())) if "training_loss" not in aligned else aligned["training_loss"]
    found += [*_repeated(shown, sides), *_other_rates(sides)]
    if "training_loss" in aligned:
        found += _data_within(aligned["training_loss"], sides, pairing)
    if policy.attest.schedule is None and (obstacle := schedule_obstacle(sides.judged, sides.names)):
        found.append(obstacle)
    if (lines := aligned.get("training_loss")) and (obstacle := _other_start(lines, pairing, sides)):
        found.append(obstacle)
    return tuple(dict.fromkeys(found))


def _other_start(lines: Lines, pairing: Pairing, sides: Sides) -> Obstacle | None:
    """Runs that should be a pair and do not begin with the same loss. Groups may well have seeds of their own."""
    one_each = pairing.kind == "unknown" and len(sides.judged) == 2
    pairs = pairing.pairs if pairing.kind == "pairs" else ((0, 0),) if one_each else ()
    if not pairs or not lines.steps.size or lines.steps[0] > 1:
        return None  # after the first step a difference is no longer one of the start
    count = len(sides.baseline)
    for b, c in pairs:
        left, right = float(lines.values[b, 0]), float(lines.values[count + c, 0])
        if left > UNTRAINED_NATS and abs(right - left) / left > SAME_START:
            what = (
                f"{sides.names[b]} and {sides.names[count + c]} do not start alike: loss {left:.7g} against {right:.7g} at "
                f"step {lines.steps[0]:g}; other weights, another batch or another configuration"
            )
            return Obstacle("INVALID_PAIR", what)
    return None


def _groups(
    policy: Policy,
    sides: Sides,
    pairing: Pairing,
    curves: Lines,
    aligned: dict[Endpoint, Lines],
    obstacles: tuple[Obstacle, ...],
    primary: Sequence[Endpoint],
) -> Groups:
    axes = dict.fromkeys(one.axis for record in sides.judged for one in record.losses)
    aligning = (note for lines in aligned.values() for note in lines.aligned.notes)
    reading = (note for record, name in zip(sides.all, sides.names, strict=True) for note in reading_notes(record, name))
    notes = dict.fromkeys((*aligning, *reading))
    count = len(sides.baseline)
    return Groups(
        pairing=pairing.kind,
        sizes=(count, len(sides.candidate)),
        axis=", ".join(axes),
        forward_penalty=policy.forward_penalty,
        margins=_margins(policy),
        obstacles=obstacles,
        notes=tuple(notes),
        gross_spikes=_gross_spikes(curves, sides),
        wild_ends=_wild_ends(curves, sides, policy.margin_fraction),
        not_learned=_not_learned(curves, aligned.get("logged_validation_loss"), sides),
        no_fp8=says_no_fp8(sides.candidate),
        efficiency=efficiency(sides.baseline, sides.candidate, pairing.pairs if pairing.kind == "pairs" else ()),
        growths=_growths(curves, sides),
        spikes=_spikes(curves, sides, same_data=pairing.kind in ("pairs", "shared")),
        requires=policy.require,
        limits=_limits(policy),
    )


def _not_learned(curves: Lines, validation: Lines | None, sides: Sides) -> tuple[tuple[str, str], ...]:
    """Baseline runs that did not learn, and why. Where the training losses are too noisy to tell, the validation may."""
    count = len(sides.baseline)
    rows = zip(sides.names[:count], curves.values[:count], strict=True)
    found = tuple((name, why) for name, row in rows if (why := not_learned(row)))
    if found or not curves.steps.size:
        return found
    if validation is not None and validation.steps.size > 1:
        ends = validation.values[:count]
        if (ends[:, -1] < ends[:, 0]).all():
            return ()
    why = flat(curves.values[:count].mean(axis=0))
    return ((sides.names[0], why),) if why else ()


def _limits(policy: Policy) -> dict[str, float]:
    metrics = policy.metrics
    floors = {"speed": metrics.speed, "worth_it": metrics.worth_it}
    found = {name: metric.at_least for name, metric in floors.items() if metric}
    ceilings = {"memory": metrics.memory, "grad_norm": metrics.grad_norm}
    return found | {name: metric.at_most for name, metric in ceilings.items() if metric}


def _margins(policy: Policy) -> dict[Endpoint, float]:
    own: dict[Endpoint, LossMetric | None] = {
        "logged_validation_loss": policy.metrics.validation_loss,
        "training_loss": policy.metrics.training_loss,
    }
    return {e: margin_fraction(metric.margin) for e, metric in own.items() if metric and metric.margin is not None}


def _gross_spikes(lines: Lines, sides: Sides) -> tuple[tuple[str, float], ...]:
    """(run, step) of each candidate run's first jump to more than twice its loss, at a step where no baseline has one."""
    count = len(sides.baseline)
    shared = {step for row in lines.values[:count] for step in gross_jumps(row)}
    found = []
    for name, row in zip(sides.names[sides.candidates], lines.values[sides.candidates], strict=True):
        own = [step for step in gross_jumps(row) if step not in shared]
        if own:
            found.append((name, float(lines.steps[own[0]])))
    return tuple(found)


def _wild_ends(lines: Lines, sides: Sides, margin: float) -> tuple[tuple[str, float], ...]:
    """Candidate runs whose last 1 % of points (three at least) lies far above every baseline's: one of several runs does not
    show in a mean, and 1 % of a run is too short for the rule of divergence.
    """
    points, count = lines.steps.size, len(sides.baseline)
    if points < 2 * LEAST_END_POINTS or not np.isfinite(lines.values[: len(sides.judged)]).all():
        return ()
    ends = np.median(lines.values[:, -max(LEAST_END_POINTS, points // 100) :], axis=1)
    highest, noise = float(ends[:count].max()), float(np.abs(ends[:count] - np.median(ends[:count])).max())
    if highest <= 0:
        return ()
    most = highest * (1 + GROSS_END * max(LEAST_GAP, MARGINS * margin)) + noise
    found = zip(sides.names[sides.candidates], ends[sides.candidates].tolist(), strict=True)
    return tuple((name, end / highest - 1) for name, end in found if end > most)


def _growths(lines: Lines, sides: Sides) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """ln(loss of the last 10 %) − ln(loss at 50–60 %) of each run, by arm: what `gap` growth is made of."""
    points = lines.steps.size
    if points < LEAST_POINTS_FOR_GROWTH:
        return (), ()
    early, late = slice(round(0.5 * points), round(0.6 * points)), slice(round(0.9 * points), points)
    with np.errstate(invalid="ignore", divide="ignore"):
        medians = [np.log(np.median(lines.values[:, part], axis=1)) for part in (late, early)]
    growth = (medians[0] - medians[1]).tolist()
    return tuple(growth[: len(sides.baseline)]), tuple(growth[sides.candidates])


def _spikes(lines: Lines, sides: Sides, *, same_data: bool) -> tuple[int, int]:
    """Spikes of baseline and candidate runs. On one data order, a spike at a step where the other arm has one is data."""
    count = len(sides.baseline)
    steps = [spike_steps(row) for row in lines.values[: len(sides.judged)]]
    sets = [set(found.tolist()) for found in steps]
    both = (set().union(*sets[:count]), set().union(*sets[count:]))
    totals = [0, 0]
    for place, found in enumerate(steps):
        arm = int(place >= count)
        other = both[1 - arm] if same_data else set()
        totals[arm] += sum(not other.intersection(event.tolist()) for event in spike_events(found))
    return totals[0], totals[1]
