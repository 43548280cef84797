"""The advisor's eyes: no bit of the training changes, and no row is lost or doubled, stopped or not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fp8migrate.evidence.advice import advice
from fp8migrate.facts.recipes import KNOWN_BAD, CurrentRecipe, DelayedRecipe, FixedRecipe, Nvfp4Recipe, RowwiseRecipe
from fp8migrate.jobs import TensorStats
from fp8migrate.records.store import read_run
from fp8migrate.records.writer import checkpoint_path
from fp8migrate.worker.tasks import train
from fp8migrate.worker.tasks.context import Interrupted
from fp8migrate.worker.tensor_watch import uses
from tests.worker.runs import BF16, Stop, carry_out, evidence, facts, make_run, train_task

RECIPES = (DelayedRecipe(amax_history_len=3), CurrentRecipe(), RowwiseRecipe(), Nvfp4Recipe(), KNOWN_BAD, FixedRecipe())
STATS = TensorStats(steps=(1, 5, 9), recipes=RECIPES, max_tokens=16)


def run(directory: Path, stats: TensorStats | None = STATS, **more: Any) -> Path:
    return carry_out(
        make_run(directory, train_task(BF16, validate_forwards=("bf16",), checkpoint_at=(12,), tensor_stats=stats)), **more
    )


def tables(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "tables").iterdir())}


def rows(directory: Path, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in tables(directory)[f"tensor_stats-{step:08d}.jsonl"].splitlines()]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("watched") / "run")


def test_training_is_the_same_bits_with_and_without(watched: Path, tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", None)
    assert evidence(alone) == evidence(watched)
    left, right = (load_file(checkpoint_path(directory, 12)) for directory in (alone, watched))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert not (alone / "tables").exists()


def test_a_repeated_run_leaves_the_same_tables(watched: Path, tmp_path: Path) -> None:
    assert tables(run(tmp_path / "again")) == tables(watched)


@pytest.mark.parametrize("looks", [3, 5, 8, 9, 11])
def test_a_stopped_run_loses_and_doubles_nothing(watched: Path, tmp_path: Path, looks: int) -> None:
    with pytest.raises(Interrupted):
        run(tmp_path / "stopped", stop=Stop(after=looks))
    assert tables(carry_out(tmp_path / "stopped")) == tables(watched)


@pytest.mark.parametrize("at", [5, 7, 9, 10])
def test_a_run_that_died_between_checkpoints_loses_and_doubles_nothing(
    watched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """It goes on from step 4 or 8, and samples again what it had sampled after that."""
    genuine = train.log_update

    def dies(task: Any, state: Any, stream: Any, log: Any) -> None:
        genuine(task, state, stream, log)
        if state.step == at:
            raise ZeroDivisionError

    monkeypatch.setattr(train, "log_update", dies)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path / "dead")
    monkeypatch.undo()
    assert tables(carry_out(tmp_path / "dead")) == tables(watched)


def test_every_layer_gemm_and_operand_has_its_row(watched: Path) -> None:
    found = rows(watched, 5)
    keys = {(row["recipe"], row["gemm"], row["tensor"]) for row in found}
    assert len(keys) == len(found) == 6 * len(RECIPES)
    layers = [f"layers.{i}.{name}" for i in range(2) for name in (
        "attention.query", "attention.key", "attention.value", "attention.output", "mlp.gate", "mlp.up", "mlp.down"
    )]  # fmt: skip
    for row in found:
        assert row["layers"] == [*layers, "lm_head"]
        assert len(row["sqnr_db"]) == len(row["overflow"]) == 15
        assert (row["step"], row["tokens"]) == (5, 16)


def test_layers_that_share_an_input_share_its_numbers(watched: Path) -> None:
    (row,) = [
        row for row in rows(watched, 5) if (row["gemm"], row["tensor"]) == ("forward", "input") and "rowwise" in row["recipe"]
    ]
    by_layer = dict(zip(row["layers"], row["sqnr_db"], strict=True))
    assert by_layer["layers.0.attention.query"] == by_layer["layers.0.attention.value"] != by_layer["layers.0.attention.output"]
    assert by_layer["layers.1.mlp.gate"] == by_layer["layers.1.mlp.up"] != by_layer["layers.0.mlp.up"]


def test_delayed_scaling_takes_its_scales_from_the_passes_before(watched: Path) -> None:
    """Two passes a step and a history of three: of step 4 both, of step 3 the second."""

    def amaxes(step: int) -> list[float]:
        lines = map(json.loads, tables(watched)[f"tensor_amaxes-{step:08d}.jsonl"].splitlines())
        (found,) = [line["amaxes"] for line in lines if (line["layer"], line["tensor"]) == ("lm_head", "gradient")]
        return list(found)

    expected = max([*amaxes(4), amaxes(3)[1]])
    (row,) = [
        r
        for r in rows(watched, 5)
        if r["recipe"].startswith("delayed") and (r["gemm"], r["tensor"]) == ("data_gradient", "gradient")
    ]
    assert 57344 * 2 ** row["largest_log2_scale"][-1] == pytest.approx(expected)


def test_before_the_first_step_there_is_no_history_to_tell_of(watched: Path) -> None:
    recipes = {row["recipe"].split("(")[0] for row in rows(watched, 1)}
    assert recipes == {"current", "rowwise", "nvfp4", "fixed"}


def test_what_it_cost_is_recorded_and_stays_out_of_the_steps(watched: Path) -> None:
    seconds = facts(watched)["advisor_seconds"]
    assert seconds > 0
    record = read_run(watched)
    slowest, median = record.series["step_seconds"].values.max(), torch.tensor(record.series["step_seconds"].values).median()
    assert slowest < median + seconds


def test_an_operand_that_two_recipes_share_is_measured_once() -> None:
    found = uses([CurrentRecipe(), RowwiseRecipe()])
    assert len(found["weight"]) == 3  # per tensor for both GEMMs; by row and by column
    per_tensor = next(taking for (operand, _), taking in found["weight"].items() if operand.tile == (None, None))
    assert [gemm for _, gemm in per_tensor] == ["forward", "data_gradient"]


def test_a_recipe_known_to_be_bad_is_forecast_to_be_bad_and_sound_ones_are_not(watched: Path) -> None:
    record = read_run(watched)
    found = advice(record.job, record, ("lm_head",), KNOWN_BAD)
    assert found is not None
    assert found.steps == (1, 5, 9)
    assert found.kept_by_plan == ("lm_head",)
    bad, fixed = found.forecast(KNOWN_BAD.in_words), found.forecast(FixedRecipe().in_words)
    assert bad.candidate
    assert not bad.advisable
    assert bad.poor_share > 0.2
    assert fixed.keep
    assert all("gradient" in kept.reason for kept in fixed.keep)
    # At this learning rate the tiny model moves faster than a history of three: delayed scaling clips, and that is seen.
    for sound in (CurrentRecipe(), RowwiseRecipe(), Nvfp4Recipe()):
        assert not found.forecast(sound.in_words).keep
    assert found.first in (CurrentRecipe().in_words, DelayedRecipe(amax_history_len=3).in_words)
    assert found.cost_share is not None
