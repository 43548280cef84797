"""Golden values: lists and maps of Megatron-LM, steps of Megatron-Bridge, and files of runs that were cut short."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fp8migrate.errors import UsageError
from tests.records.readers.logs import read
from tests.records.readers.reading import claimed_by

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "logs" / "megatron-golden"


def metric(values: Any, start: int, end: int, interval: float) -> dict[str, Any]:
    return {"start_step": start, "end_step": end, "step_interval": interval, "values": values}


def test_a_list_ends_before_its_end_step(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "iteration-time": metric([9.5, 0.25, 0.5], 0, 15, 5),
            "lm loss": metric([9.12345, 8.5, 7.25], 0, 15, 5),
            "lm loss vs samples": metric([1.0, 1.0, 1.0], 0, 15, 5),
            "grad-norm": metric([3.5, 2.5], 0, 13, 5),
            "lm loss validation": metric([7.5], 0, 4, 5),
            "num-zeros": metric([1.0, 2.0, 3.0], 0, 15, 5),
        }
    )
    (run,) = read(tmp_path, text)
    loss = run.series["training_loss"]
    assert (run.format, loss.label, loss.digits) == ("megatron-golden", "lm loss", 6)
    assert loss.steps.tolist() == [0, 5, 10]
    assert loss.values.tolist() == [9.12345, 8.5, 7.25]
    assert run.expected_last_step == 10
    assert run.series["step_seconds"].values.tolist() == [9.5, 0.25, 0.5]
    assert run.unused == ("num-zeros",)


def test_where_a_list_counts_its_values_they_stand_at_no_step(tmp_path: Path) -> None:
    text = json.dumps({"lm loss": metric([9.5, 8.5], 0, 10, 5), "lm loss validation": metric([7.5], 0, 4, 5)})
    (run,) = read(tmp_path, text)
    validation = run.series["validation_loss"]
    assert (validation.axis, validation.steps.tolist(), validation.values.tolist()) == ("points", [1], [7.5])
    assert run.notes == ("lm loss validation: the file counts its values, not the steps at which they were logged",)


def test_a_map_that_ends_in_nan_was_cut_short(tmp_path: Path) -> None:
    losses = {"1": 9.5, "2": "nan", "3": 8.5, "4": 8.25, "5": "nan", "6": "nan"}
    (run,) = read(tmp_path, json.dumps({"lm loss": metric(losses, 1, 6, 1)}, indent=4))
    assert run.series["training_loss"].steps.tolist() == [1, 3, 4]
    assert run.series["training_loss"].values.tolist() == [9.5, 8.5, 8.25]
    assert run.expected_last_step == 6
    assert run.notes == ("cut short at 4", "lm loss: 1 values missing or no numbers")


def test_a_nan_that_was_measured_is_a_value(tmp_path: Path) -> None:
    (run,) = read(tmp_path, '{"lm loss": {"start_step": 1, "end_step": 3, "step_interval": 1, "values": {"1": 9.5, "3": NaN}}}')
    assert np.isnan(run.series["training_loss"].values[1])
    assert run.notes == ()


def test_keys_of_a_map_are_sorted_and_need_not_reach_the_end(tmp_path: Path) -> None:
    (run,) = read(tmp_path, json.dumps({"lm loss": metric({"10": 8.5, "1": 9.5, "5": 9.0}, 1, 12, 5)}))
    assert run.series["training_loss"].steps.tolist() == [1, 5, 10]
    assert run.expected_last_step == 10
    (run,) = read(tmp_path, json.dumps({"lm loss": metric({"1": 9.5, "5": 9.0}, 1, 50, 5)}))
    assert run.expected_last_step == 50
    assert run.notes == ("cut short at 5",)


def test_a_short_list_was_cut_short(tmp_path: Path) -> None:
    (run,) = read(tmp_path, json.dumps({"lm loss": metric([9.5, 8.5, "nan", "nan"], 0, 100, 5)}))
    assert run.series["training_loss"].steps.tolist() == [0, 5]
    assert (run.expected_last_step, run.notes) == (95, ("cut short at 5",))


def test_steps_of_megatron_bridge(tmp_path: Path) -> None:
    row = {"lm loss": 9.5, "elapsed time per iteration (ms)": 250.0, "GPU utilization": 1.0}
    text = json.dumps({"0": row, "1": {**row, "lm loss": 9.25}, "10": {**row, "lm loss": 8.0}, "2": row, "alloc": 1.5})
    (run,) = read(tmp_path, text)
    assert run.series["training_loss"].steps.tolist() == [0, 1, 2, 10]
    assert run.series["training_loss"].values.tolist() == [9.5, 9.25, 9.5, 8.0]
    assert run.series["step_seconds"].values.tolist() == [0.25] * 4
    assert run.unused == ("GPU utilization", "alloc")


def test_an_interval_that_cannot_be_is_taken_as_one(tmp_path: Path) -> None:
    for interval in (0, -5, 1e-300, True):
        (run,) = read(tmp_path, json.dumps({"lm loss": metric([9.5, 8.5], 0, 2, interval)}))
        assert (run.series["training_loss"].steps.tolist(), run.expected_last_step) == ([0, 1], 1)


@pytest.mark.parametrize("indent", [None, 4])
def test_no_other_reader_takes_golden_values(indent: int | None) -> None:
    text = json.dumps({"lm loss": metric([9.5] * 20_000, 0, 20_000, 1)}, indent=indent)
    assert claimed_by(text) == ("megatron-golden", ["megatron-golden"])
    assert claimed_by(json.dumps({"0": {"lm loss": 9.5}}, indent=indent))[0] == "megatron-golden"


@pytest.mark.parametrize(
    "text",
    [
        '{"lm loss": {"start_step": 0, "values": [9.5, 8.',
        '{"lm loss": {"values": ' + "[" * 100_000,
        '{"lm loss": {"values": ' + "[" * 100_000 + "]" * 100_000 + "}}",
        '{"lm loss": {"values": 5}}',
        '{"lm loss": {"values": {"a": 5}}}',
        '{"lm loss": {"values": ["nan", "nan"]}}',
        '{"0": {"lm loss": [1]}}',
        '{"lm loss": {"start_step": "x", "end_step": null, "step_interval": 0, "values": [true, {}]}}',
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError):
        read(tmp_path, text)


def test_golden_values_of_megatron(tmp_path: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there")
    (run,) = read(tmp_path, (SHARED / "truncated_nan_from_1444.json").read_bytes())
    # "1444" is the first key without a value.
    assert run.series["training_loss"].steps[-1] == 1443
    assert run.expected_last_step == 2000
    assert "cut short at 1443" in run.notes
    (run,) = read(tmp_path, (SHARED / "fp8_delayed.json").read_bytes())
    assert run.series["training_loss"].steps[-1] == run.expected_last_step == 1995
