"""Finished runs judged from their logs, through the whole path: read, align, pair, check, decide."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8migrate.engine.compare import Judged, judge
from fp8migrate.plan.policy import Logs, Policy
from fp8migrate.verdict import Verdict, decide
from tests.logs import STEPS, curve, group, write

SHARED = Path(__file__).parents[3] / "shared" / "logs"


def judged(baseline: list[Path] | Path, candidate: list[Path] | Path, **policy: Any) -> Judged:
    left, right = (tuple(map(str, side if isinstance(side, list) else [side])) for side in (baseline, candidate))
    return judge(Policy(baseline=Logs(logs=left), candidate=Logs(logs=right), **policy))


def verdict(baseline: list[Path] | Path, candidate: list[Path] | Path, **policy: Any) -> Verdict:
    return decide(judged(baseline, candidate, **policy).results)


def one_pair(folder: Path, candidate: "np.ndarray[Any, np.dtype[np.float64]]", baseline: Any = None) -> Verdict:
    """One run against one on the same batches."""
    left = write(folder / "bf16" / "log.jsonl", curve(0, data=5) if baseline is None else baseline)
    return verdict(left, write(folder / "fp8" / "log.jsonl", candidate))


def test_equal_groups_pass(tmp_path: Path) -> None:
    found = verdict(group(tmp_path / "a", 8, data=3), group(tmp_path / "b", 8, first_seed=50, data=3))
    assert (found.name, found.code) == ("PASS", "PASS")


def test_a_gap_of_one_percent_fails_groups_and_pairs(tmp_path: Path) -> None:
    baseline = group(tmp_path / "a", 4, data=3)
    assert verdict(baseline, group(tmp_path / "b", 4, gap=0.01, first_seed=50, data=3), serve="fp8").code == "GAP"
    pairs = [write(tmp_path / "p" / f"{run}.jsonl", curve(60 + run, data=run, gap=0.008)) for run in range(4)]
    own = [write(tmp_path / "q" / f"{run}.jsonl", curve(run, data=run)) for run in range(4)]
    found = judged(own, pairs, serve="fp8")
    assert found.comparisons[0].groups is not None
    assert found.comparisons[0].groups.pairing == "pairs"
    assert decide(found.results).code == "GAP"


def test_pairs_are_found_whatever_their_order(tmp_path: Path) -> None:
    """Files in another order on the other side: the noise says which belong together, and each gap is within its pair."""
    baseline = [write(tmp_path / "a" / f"{run}.jsonl", curve(run, data=run)) for run in range(5)]
    shuffled = (3, 0, 4, 1, 2)
    candidate = [write(tmp_path / "b" / f"{i}.jsonl", curve(40 + run, data=run)) for i, run in enumerate(shuffled)]
    comparison = judged(baseline, candidate).comparisons[0]
    cell = comparison.cell("candidate", "training_loss", None)
    assert cell is not None
    assert cell.groups is None
    assert [row.status for row in comparison.audit if row.setting == "same data"] == ["same"]
    finals = [end(curve(40 + run, data=run)) / end(curve(run, data=run)) - 1 for run in range(5)]
    assert cell.values == pytest.approx(finals, abs=1e-12)


def end(losses: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    """Median of the means of ten blocks of the last tenth (PARITY.md 3)."""
    return float(np.median([block.mean() for block in np.split(losses[-100:], 10)]))


def test_a_gap_above_the_margin_is_not_the_forward_penalty_alone_unless_that_is_known(tmp_path: Path) -> None:
    """PARITY.md 3: 0.5 % in training loss, of which the FP8 forward may be a part."""
    sides = group(tmp_path / "a", 6, data=3), group(tmp_path / "b", 6, gap=0.005, first_seed=50, data=3)
    assert verdict(*sides).code == "PENALTY_UNKNOWN"
    assert verdict(*sides, forward_penalty=0.0).code == "GAP"
    assert verdict(*sides, forward_penalty=0.004).name == "INCONCLUSIVE"
    assert verdict(*sides, serve="fp8").code == "GAP"


def test_few_runs_never_pass(tmp_path: Path) -> None:
    for baseline, candidate in ((1, 1), (3, 3), (3, 8), (8, 3)):
        folder = tmp_path / f"{baseline}v{candidate}"
        sides = group(folder / "a", baseline, data=3), group(folder / "b", candidate, first_seed=50, data=3)
        assert (verdict(*sides).name, verdict(*sides).code) == ("INCONCLUSIVE", "TOO_FEW_PAIRS")


# Megatron's own comparison passes these five (FIELD_NOTES.md).


def test_all_nan_is_no_pass(tmp_path: Path) -> None:
    assert one_pair(tmp_path, np.full(STEPS, np.nan)).code == "NON_FINITE"


def test_one_nan_among_fifty_is_no_pass(tmp_path: Path) -> None:
    losses = curve(1, data=5, steps=50)
    losses[20] = np.nan
    assert one_pair(tmp_path, losses, curve(0, data=5, steps=50)).code == "NON_FINITE"


def test_a_missing_last_step_is_no_pass(tmp_path: Path) -> None:
    found = one_pair(tmp_path, curve(1, data=5, steps=50)[:-1], curve(0, data=5, steps=50))
    assert found.code == "TRUNCATED"
    assert "runs of unequal length: ends at 49, the longest at 50" in found.why


def test_a_log_that_counts_from_0_is_as_long_as_one_that_counts_from_1(tmp_path: Path) -> None:
    baseline, candidate = group(tmp_path / "a", 5, data=3), tmp_path / "b"
    for run in range(5):
        losses = curve(50 + run, data=3)
        rows = [f'{{"step": {step}, "loss": {loss!r}}}' for step, loss in enumerate(losses.tolist())]
        candidate.mkdir(exist_ok=True)
        (candidate / f"{run}.jsonl").write_text("\n".join(rows) + "\n")
    found = judged(baseline, candidate)
    assert decide(found.results).name == "PASS"
    assert found.comparisons[0].groups is not None
    assert any("counts from 0" in note for note in found.comparisons[0].groups.notes)


def test_a_log_that_lacks_its_first_step_is_no_pass(tmp_path: Path) -> None:
    """Found by fuzzing: a damaged first line."""
    baseline, candidate = group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)
    lines = (candidate / "run4.jsonl").read_text().splitlines(keepends=True)
    (candidate / "run4.jsonl").write_text("{}\n{" + "".join(lines)[2:])
    found = verdict(baseline, candidate)
    assert (found.code, "begins at 2, where others begin at 1" in found.why) == ("TRUNCATED", True)


@pytest.mark.parametrize("steps", [50, STEPS])
@pytest.mark.parametrize("runs", [1, 8])
def test_one_spike_of_450_times_is_no_pass(tmp_path: Path, steps: int, runs: int) -> None:
    sides: list[list[Path]] = [[], []]
    for side, first in enumerate((0, 50)):
        for run in range(runs):
            losses = curve(first + run, data=3, steps=steps)
            if side and run == 0:
                losses[steps // 2] *= 450
            sides[side].append(write(tmp_path / str(side) / f"{run}.jsonl", losses))
    found = judged(sides[0], sides[1])
    assert decide(found.results).name == "INCONCLUSIVE"
    assert [r.code for r in found.results if r.check == "spikes"] == ["SPIKES"]


@pytest.mark.parametrize("steps", [50, STEPS])
@pytest.mark.parametrize("runs", [1, 4])
def test_a_uniform_four_and_a_half_percent_is_no_pass(tmp_path: Path, steps: int, runs: int) -> None:
    sides = [
        [
            write(tmp_path / str(side) / f"{run}.jsonl", curve(50 * side + run, data=3, steps=steps) * factor)
            for run in range(runs)
        ]
        for side, factor in enumerate((1.0, 1.045))
    ]
    assert verdict(sides[0], sides[1]).name != "PASS"
    if runs == 4:
        assert verdict(sides[0], sides[1], serve="fp8").name == "FAIL"


def test_identical_curves_are_no_pass(tmp_path: Path) -> None:
    """The same files on both sides, and one file among several."""
    runs = group(tmp_path / "a", 5, data=3)
    assert verdict(runs, runs).code == "FP8_NOT_ACTIVE"
    other = group(tmp_path / "b", 5, first_seed=50, data=3)
    (other / "run0.jsonl").write_bytes((runs / "run2.jsonl").read_bytes())
    assert verdict(runs, other).code == "FP8_NOT_ACTIVE"


@pytest.mark.parametrize("shape", ["flat", "stuck at a uniform guess", "diverged by itself"])
def test_two_models_that_fail_to_learn_are_no_pass(tmp_path: Path, shape: str) -> None:
    steps = np.arange(STEPS)
    level = {
        "flat": np.full(STEPS, 4.0),
        "stuck at a uniform guess": 10.8 - 0.2 * steps / STEPS,
        "diverged by itself": np.where(steps < 600, curve(0, data=9), 7.5),
    }[shape]
    sides = [
        [
            write(
                tmp_path / str(side) / f"{run}.jsonl",
                level + 0.02 * np.random.default_rng(50 * side + run).standard_normal(STEPS),
            )
            for run in range(5)
        ]
        for side in range(2)
    ]
    assert verdict(sides[0], sides[1]).code == "BASELINE_UNHEALTHY"


def test_a_fine_tune_that_falls_a_little_has_learned(tmp_path: Path) -> None:
    """A continued run falls from 2.1 to 2.0: little, and more than its noise."""
    level = 2.1 - 0.1 * np.arange(STEPS) / STEPS
    sides = [
        [
            write(
                tmp_path / str(side) / f"{run}.jsonl",
                level + 0.03 * np.random.default_rng(50 * side + run).standard_normal(STEPS),
            )
            for run in range(5)
        ]
        for side in range(2)
    ]
    assert verdict(sides[0], sides[1]).code != "BASELINE_UNHEALTHY"


def test_late_divergence_of_one_run_fails(tmp_path: Path) -> None:
    candidate = group(tmp_path / "b", 5, first_seed=50, data=3)
    late = np.clip((np.arange(STEPS) - 850) / 150, 0, 1)
    write(candidate / "run4.jsonl", curve(54, data=3) * (1 + 0.15 * late))
    assert verdict(group(tmp_path / "a", 5, data=3), candidate).code == "DIVERGED"


def test_data_noise_of_unpaired_runs_is_no_divergence(tmp_path: Path) -> None:
    """One run against one on other batches: 3 % of noise a step, blocks of ten steps."""
    for seed in range(5):
        sides = [write(tmp_path / str(seed) / f"{side}.jsonl", curve(seed + 50 * side)) for side in range(2)]
        assert verdict(sides[0], sides[1]).code == "TOO_FEW_PAIRS"


def test_a_schedule_that_has_not_decayed_is_no_end(tmp_path: Path) -> None:
    sides = [group(tmp_path / "a", 5, data=3, lr=1e-3), group(tmp_path / "b", 5, first_seed=50, data=3, lr=1e-3)]
    assert verdict(sides[0], sides[1]).code == "TRUNCATED"
    from fp8migrate.plan.policy import Attested

    assert verdict(sides[0], sides[1], attest=Attested(schedule="J. Doe: constant by design")).name == "PASS"
    rates = np.linspace(1e-3, 1e-5, STEPS)
    decayed = [group(tmp_path / "c", 5, data=3, lr=rates), group(tmp_path / "d", 5, first_seed=50, data=3, lr=rates)]
    assert verdict(decayed[0], decayed[1]).name == "PASS"


def test_configurations_beside_logs_are_compared(tmp_path: Path) -> None:
    sides = [group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)]
    (tmp_path / "a" / "config.yaml").write_text("lr: 1e-3\nbatch: 64\noutput_dir: /a\nbf16: true\n")
    (tmp_path / "b" / "config.yaml").write_text("lr: 0.001\nbatch: 64\noutput_dir: /b\nbf16: true\nfp8: hybrid\n")
    found = judged(sides[0], sides[1])
    assert decide(found.results).name == "PASS"
    rows = {row.setting: row for row in found.comparisons[0].audit}
    assert rows["same configuration"].status == "same"
    assert (rows["fp8"].status, rows["fp8"].expected) == ("different", True)
    assert (rows["FP8 ran"].status, rows["FP8 ran"].candidate) == ("unknown", "asked for (fp8: hybrid)")
    (tmp_path / "b" / "config.yaml").write_text("lr: 0.002\nbatch: 64\nfp8: hybrid\nbf16: true\n")
    spoilt = verdict(sides[0], sides[1])
    assert spoilt.code == "INVALID_PAIR"
    assert "lr (0.001 against 0.002)" in spoilt.why


def test_a_baseline_that_is_fp16_is_named(tmp_path: Path) -> None:
    sides = [group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)]
    (tmp_path / "a" / "config.yaml").write_text("MODEL_ARGS:\n  --fp16: true\n")
    found = verdict(sides[0], sides[1])
    assert found.code == "INVALID_PAIR"
    assert "FP16" in found.why


def test_a_candidate_whose_configuration_says_bf16_is_no_evidence(tmp_path: Path) -> None:
    sides = [group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)]
    for side in sides:
        (side / "config.yaml").write_text("mixed_precision: bf16\nuse_fp8: false\n")
    assert verdict(sides[0], sides[1]).code == "FP8_NOT_ACTIVE"


def test_one_configuration_for_both_sides_says_nothing(tmp_path: Path) -> None:
    group(tmp_path, 10, data=3)
    (tmp_path / "config.yaml").write_text("lr: 1e-3\n")
    files = sorted(tmp_path.glob("run*.jsonl"))
    found = judged(files[:5], files[5:])
    assert [row.status for row in found.comparisons[0].audit if row.setting == "same configuration"] == ["unknown"]


def test_speed_memory_and_worth(tmp_path: Path) -> None:
    """Twice as fast after a slow start; pauses and warm-up do not count; memory is told."""
    rng = np.random.default_rng(0)
    sides = []
    for side, speed in enumerate((1000.0, 2000.0)):
        for run in range(4):
            rates = speed * (1 + 0.01 * rng.standard_normal(STEPS))
            rates[:30] = 10.0
            rates[500] = 1.0
            memory = 40e9 * (1 + 0.1 * side)
            folder = tmp_path / str(side)
            write(folder / f"{run}.jsonl", curve(50 * side + run, data=3), tokens_per_second=rates, memory_bytes=memory)
        sides.append(tmp_path / str(side))
    results = {result.check: result for result in judged(sides[0], sides[1]).results}
    assert results["speed"].measured == pytest.approx(2.0, rel=0.01)
    assert results["memory"].measured == pytest.approx(1.1)
    assert results["worth_it"].code == "WORTH_IT"


def test_limits_on_speed_and_memory_gate(tmp_path: Path) -> None:
    from fp8migrate.plan.policy import AtLeast, AtMost, Metrics

    sides = []
    for side, speed in enumerate((1000.0, 1100.0)):
        rates = speed + np.random.default_rng(side).standard_normal(STEPS)
        columns = {"tokens_per_second": rates, "memory_bytes": 40e9 + 1e9 * side}
        sides.append(group(tmp_path / str(side), 5, first_seed=50 * side, data=3, **columns))
    fast = Metrics(speed=AtLeast(at_least=1.05))
    assert verdict(sides[0], sides[1], metrics=fast).name == "PASS"
    assert verdict(sides[0], sides[1], metrics=Metrics(speed=AtLeast(at_least=1.2))).code == "TOO_SLOW"
    assert verdict(sides[0], sides[1], metrics=Metrics(memory=AtMost(at_most=1.0))).code == "TOO_MUCH_MEMORY"
    supporting = Metrics(memory=AtMost(at_most=1.0, tier="supporting"))
    assert verdict(sides[0], sides[1], metrics=supporting).code == "SUPPORTING_FAILED"
    advisory = Metrics(memory=AtMost(at_most=1.0, tier="advisory"))
    assert verdict(sides[0], sides[1], metrics=advisory).name == "PASS"
    plain = [group(tmp_path / "c", 5, data=3), group(tmp_path / "d", 5, first_seed=50, data=3)]
    assert verdict(plain[0], plain[1], metrics=fast).code == "SPEED_UNKNOWN"


def test_required_evidence(tmp_path: Path) -> None:
    from fp8migrate.plan.policy import Attested

    sides = [group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)]
    assert verdict(sides[0], sides[1], require=("data",)).name == "PASS"  # the noise shows one data order
    assert verdict(sides[0], sides[1], require=("schedule",)).code == "EVIDENCE_REQUIRED"
    by_word = Attested(schedule="J. Doe: to the end")
    assert verdict(sides[0], sides[1], require=("schedule",), attest=by_word).name == "PASS"
    rates = np.linspace(1e-3, 1e-5, STEPS)
    by_log = [group(tmp_path / "c", 5, data=3, lr=rates), group(tmp_path / "d", 5, first_seed=50, data=3, lr=rates)]
    assert verdict(by_log[0], by_log[1], require=("schedule",)).name == "PASS"
    assert verdict(sides[0], sides[1], require=("data", "fp8")).code == "EVIDENCE_REQUIRED"
    said = Attested(fp8="J. Doe: kernel trace of run 7")
    assert verdict(sides[0], sides[1], require=("data", "fp8"), attest=said).name == "PASS"


def rows(path: Path, lines: list[tuple[int, float]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"step": {step}, "loss": {str(loss) if loss == loss else "NaN"}}}\n' for step, loss in lines))
    return path


# What a newcomer got past an earlier version.


def test_one_run_given_several_times_is_one(tmp_path: Path) -> None:
    baseline, candidate = group(tmp_path / "a", 4, data=3), group(tmp_path / "b", 4, first_seed=50, data=3)
    for run in (1, 2, 3):
        (candidate / f"run{run}.jsonl").write_bytes((candidate / "run0.jsonl").read_bytes())
    found = verdict(baseline, candidate)
    assert (found.code, "is one run" in found.why or "one run that stands for two" in found.why) == ("REPEATED_RUN", True)
    twice = [baseline, baseline]
    assert verdict(twice, [group(tmp_path / "c", 4, first_seed=70, data=3)]).name == "INCONCLUSIVE"


@pytest.mark.parametrize("before", [float("nan"), 9.0])
def test_a_run_that_was_rolled_back_does_not_pass(tmp_path: Path, before: float) -> None:
    """NaN from step 600 to 700, then resumed at 550 and fine ever after; the same with a loss three times as high."""
    baseline, candidate = group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)
    losses = curve(54, data=3).tolist()
    first = [(step, before if step > 600 else losses[step - 1]) for step in range(1, 701)]
    rows(candidate / "run4.jsonl", first + [(step, losses[step - 1]) for step in range(550, STEPS + 1)])
    assert verdict(baseline, candidate).code == ("NON_FINITE" if before != before else "TRUNCATED")
    # An ordinary resume logs the same again.
    first = [(step, losses[step - 1] * 1.0001) for step in range(1, 701)]
    rows(candidate / "run4.jsonl", first + [(step, losses[step - 1]) for step in range(650, STEPS + 1)])
    found = judged(baseline, candidate)
    assert decide(found.results).name == "PASS"
    assert found.comparisons[0].groups is not None
    assert any("resumed at 650, 51 points" in note for note in found.comparisons[0].groups.notes)


@pytest.mark.parametrize("every", [10, 25, 40])
def test_late_divergence_in_a_log_of_few_points(tmp_path: Path, every: int) -> None:
    at = np.arange(every, STEPS + 1, every)
    late = np.clip((at / STEPS - 0.88) / 0.12, 0, None)
    sides = []
    for side in range(2):
        for run in range(4):
            losses = curve(50 * side + run, data=3)[at - 1] * (1 + side * late)
            rows(tmp_path / str(side) / f"{run}.jsonl", list(zip(at.tolist(), losses.tolist(), strict=True)))
        sides.append(tmp_path / str(side))
    assert verdict(sides[0], sides[1]).name != "PASS"


def test_one_run_of_eight_that_leaves_at_the_very_end(tmp_path: Path) -> None:
    baseline, candidate = group(tmp_path / "a", 8, data=3), group(tmp_path / "b", 8, first_seed=50, data=3)
    losses = curve(57, data=3)
    losses[-20:] *= np.linspace(1, 2, 20)
    write(candidate / "run7.jsonl", losses)
    assert verdict(baseline, candidate).name != "PASS"


def test_learning_rates_that_differ_in_the_logs(tmp_path: Path) -> None:
    rates = np.linspace(1e-3, 1e-5, STEPS)
    sides = group(tmp_path / "a", 5, data=3, lr=rates), group(tmp_path / "b", 5, first_seed=50, data=3, lr=2 * rates)
    found = verdict(sides[0], sides[1])
    assert (found.code, "the learning rates differ: 0.001 against 0.002 at 1" in found.why) == ("INVALID_PAIR", True)


def test_runs_of_an_arm_that_share_a_data_order_of_its_own(tmp_path: Path) -> None:
    """Two orders of two runs each in either arm: four runs that are no four repetitions."""
    sides = [
        [
            write(tmp_path / str(side) / f"{run}.jsonl", curve(50 * side + run, data=90 + 10 * side + run // 2))
            for run in range(4)
        ]
        for side in range(2)
    ]
    found = verdict(sides[0], sides[1])
    assert (found.code, "saw 2 data orders" in found.why) == ("INVALID_PAIR", True)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_a_loss_that_no_loss_can_be(tmp_path: Path, value: float) -> None:
    baseline, candidate = group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3)
    losses = curve(54, data=3)
    losses[-1] = value
    write(candidate / "run4.jsonl", losses)
    assert verdict(baseline, candidate).code == "TRUNCATED"


def test_a_candidate_nearer_than_fp8_can_be(tmp_path: Path) -> None:
    baseline = group(tmp_path / "a", 5, data=3)
    for run in range(5):
        write(tmp_path / "b" / f"{run}.jsonl", curve(run, data=3) * (1 + 1e-6))
    assert verdict(baseline, tmp_path / "b").code == "FP8_NOT_ACTIVE"


def test_what_no_forward_penalty_explains_fails(tmp_path: Path) -> None:
    """+5 %, penalty unknown: a penalty excuses 1 % above the margin at most."""
    sides = group(tmp_path / "a", 5, data=3), group(tmp_path / "b", 5, first_seed=50, data=3, gap=0.05)
    assert verdict(sides[0], sides[1]).name == "FAIL"


def test_a_traceback_where_the_log_breaks_off_is_a_crash(tmp_path: Path) -> None:
    line = " iteration {:8d}/    1000 | consumed samples: 1 | lm loss: {:.6E} | number of nan iterations:   0 |\n"
    sides: list[list[Path]] = [[], []]
    for side in range(2):
        for run in range(2):
            losses = curve(50 * side + run, data=3)[: 600 if side else STEPS]
            text = "".join(line.format(step + 1, loss) for step, loss in enumerate(losses.tolist()))
            if side:
                text += "Traceback (most recent call last):\n  File x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"
            path = tmp_path / f"{side}{run}.log"
            path.write_text(text)
            sides[side].append(path)
    found = verdict(sides[0], sides[1])
    assert (found.code, "out of memory at step 600" in found.why) == ("CANDIDATE_CRASH", True)


needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public logs are not at {SHARED}")


@needs_shared
class TestPublicLogs:
    """SOURCES.md says what is true of them."""

    def test_modded_nanogpt_passes(self) -> None:
        found = judged(SHARED / "modded-nanogpt" / "baseline", SHARED / "modded-nanogpt" / "this_pr")
        cell = found.comparisons[0].cell("candidate", "logged_validation_loss", None)
        assert cell is not None
        assert cell.groups is not None
        means = [np.mean(side) for side in cell.groups]
        assert means == pytest.approx([3.27825, 3.27837], abs=5e-6)
        assert [np.std(side, ddof=1) for side in cell.groups] == pytest.approx([0.00202, 0.00142], abs=5e-6)
        assert decide(found.results).name == "PASS"
        speed = next(r for r in found.results if r.check == "speed")
        assert speed.measured == pytest.approx(80.73 / 79.68, rel=0.003)

    @pytest.mark.parametrize(
        ("policy", "code"), [({}, "TOO_FEW_PAIRS"), ({"margin": "strict", "serve": "fp8"}, "GAP")], ids=["standard", "strict"]
    )
    def test_nanochat_moe(self, policy: dict[str, Any], code: str) -> None:
        folder = (str(SHARED / "nanochat-moe"),)
        sides = [Logs(logs=folder, runs=runs) for runs in ("*bf16*_long", "*fp8_experts*_long*")]
        found = judge(Policy(baseline=sides[0], candidate=sides[1], **policy))
        assert decide(found.results).code == code
        comparison = found.comparisons[0]
        assert comparison.groups is not None
        assert (comparison.groups.sizes, comparison.groups.pairing) == ((3, 5), "shared")
        results = {result.check: result for result in found.results}
        assert results["parity"].measured == pytest.approx(0.0025, abs=0.0002)
        assert results["worth_it"].code == "NOT_WORTH_IT"
        assert results["speed"].measured is not None
        assert results["speed"].measured < 0.7

    def test_the_megatron_pair_is_none_by_its_configurations_or_by_its_start(self, tmp_path: Path) -> None:
        golden = SHARED / "megatron-golden"
        pair = golden / "bf16_named_baseline.json", golden / "fp8_delayed.json"
        by_configuration = verdict(pair[0], pair[1])
        assert (by_configuration.name, by_configuration.code) == ("INCONCLUSIVE", "INVALID_PAIR")
        assert "is FP16, not BF16, by its configuration (MODEL_ARGS.fp16: true)" in by_configuration.why
        bare = []
        for path in pair:
            bare.append(tmp_path / path.name)
            bare[-1].write_bytes(path.read_bytes())
        by_start = verdict(bare[0], bare[1])
        assert by_start.code == "INVALID_PAIR"
        assert "do not start alike: loss 10.89393 against 10.88321" in by_start.why

    def test_the_truncated_file_is_cut_short(self) -> None:
        golden = SHARED / "megatron-golden"
        found = judged(golden / "bf16_named_baseline.json", golden / "truncated_nan_from_1444.json")
        assert decide(found.results).name == "INCONCLUSIVE"  # the baseline is FP16 besides, by the configuration beside it
        cut = next(r for r in found.results if r.check == "completeness")
        assert (cut.status, cut.code) == ("inconclusive", "TRUNCATED")
        assert "cut short at 1444" in cut.summary
        assert all(r.status == "pass" for r in found.results if r.check in ("not_diverged", "finite"))

    def test_mlperf_runs_of_unequal_length(self) -> None:
        files = [SHARED / "mlperf" / f"llama2_70b_lora_{run}.txt" for run in range(3)]
        found = verdict(files[0], files[2])
        assert (found.name, found.code) == ("INCONCLUSIVE", "TRUNCATED")
        assert "unequal length" in found.why
