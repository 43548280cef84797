"""Scales as Transformer Engine computes them, worked by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.facts.recipes import CurrentRecipe, DelayedRecipe, FixedRecipe
from fp8migrate.worker.scaling import FLOAT32_MAX, CurrentScaler, DelayedScaler, FixedScaler, Scaler, scaler_factory


def passes(scaler: Scaler, amaxes: Sequence[float]) -> list[float]:
    """Quantise one tensor of each amax, a pass each; the scales that they met."""
    scales = []
    for amax in amaxes:
        scales.append(1 / float(scaler.quantize(torch.tensor([amax, -amax / 4])).inverse_scale))
        scaler.end_pass()
    return scales


def delayed(length: int = 3, **settings: object) -> DelayedScaler:
    return DelayedScaler(E4M3, DelayedRecipe(amax_history_len=length, **settings))  # type: ignore[arg-type]


def test_current_scaling_maps_the_largest_magnitude_to_the_formats_largest() -> None:
    found = CurrentScaler(E4M3).quantize(torch.tensor([3.5, -1.75, 0.0]))
    assert float(found.inverse_scale) == 1 / 128  # scale 448 / 3.5
    assert found.values.tolist() == [448.0, -224.0, 0.0]
    assert (found.values * found.inverse_scale).tolist() == [3.5, -1.75, 0.0]
    assert float(CurrentScaler(E5M2).quantize(torch.tensor([-7.0])).inverse_scale) == 7 / 57344
    assert float(CurrentScaler(E2M1).quantize(torch.tensor([-3.0])).inverse_scale) == 0.5


def test_current_scaling_rounds_to_bf16_before_it_looks() -> None:
    """3.501 is 3.5 in BF16, and that is the amax."""
    found = CurrentScaler(E4M3).quantize(torch.tensor([3.501, 1.0]))
    assert float(found.inverse_scale) == 1 / 128
    assert found.values.tolist() == [448.0, 128.0]


@pytest.mark.parametrize("info", [E4M3, E5M2, E2M1], ids=lambda info: info.name)
def test_a_scale_is_the_float32_quotient_for_every_amax(info: FormatInfo) -> None:
    """Rounded once, as Transformer Engine divides: a scale one ulp off moves values that lie on a tie."""
    amaxes = (1 + torch.arange(128) / 128).to(torch.bfloat16)
    expected = np.float32(info.max_finite) / amaxes.float().numpy()
    current, last = CurrentScaler(info), DelayedScaler(info, DelayedRecipe(amax_history_len=1))
    for amax, scale in zip(amaxes, expected, strict=True):
        assert float(current.scale_for(amax[None])) == scale
        last.quantize(amax[None])
        last.end_pass()
        assert float(last.scale) == scale


@pytest.mark.parametrize(
    ("x", "values"),
    [
        ([0.0, 0.0], [0.0, 0.0]),
        ([float("inf"), 2.0], [448.0, 2.0]),
        ([-float("inf"), 0.3], [-448.0, 0.3125]),
    ],
)
def test_current_scaling_of_an_amax_that_is_no_scale_is_one(x: list[float], values: list[float]) -> None:
    found = CurrentScaler(E4M3).quantize(torch.tensor(x))
    assert float(found.inverse_scale) == 1.0
    assert found.values.tolist() == values


def test_current_scaling_passes_a_nan_on() -> None:
    found = CurrentScaler(E4M3).quantize(torch.tensor([float("nan"), 1.0]))
    assert found.values.isnan().tolist() == [True, False]


def test_a_scale_that_overflows_becomes_the_largest_float32() -> None:
    scaler = CurrentScaler(E5M2)
    assert float(scaler.scale_for(torch.tensor([1e-38], dtype=torch.bfloat16))) == pytest.approx(FLOAT32_MAX)
    cold = DelayedScaler(E5M2, DelayedRecipe(amax_history_len=2))
    passes(cold, [1e-38])
    assert float(cold.scale) == pytest.approx(FLOAT32_MAX)


def test_fixed_scaling_never_looks_at_the_tensor() -> None:
    scaler = FixedScaler(E4M3, 8.0)
    found = scaler.quantize(torch.tensor([1.0, 100.0, 2.0**-13]))
    assert found.values.tolist() == [8.0, 448.0, 0.0]
    assert float(found.inverse_scale) == 0.125
    assert passes(scaler, [5.0, 0.0, 1e6]) == [8.0, 8.0, 8.0]


def test_delayed_scaling_is_cold_first_then_uses_earlier_passes() -> None:
    assert passes(delayed(), [3.5, 7.0, 7.0]) == [1.0, 128.0, 64.0]


def test_the_history_forgets_after_its_length() -> None:
    """Length 3: the pass that has just ended and the two before it."""
    assert passes(delayed(3), [28.0, 7.0, 3.5, 3.5, 3.5, 3.5]) == [1.0, 16.0, 16.0, 16.0, 64.0, 128.0]


def test_a_history_of_one_holds_the_pass_that_has_just_ended() -> None:
    assert passes(delayed(1), [28.0, 7.0, 3.5, 3.5]) == [1.0, 16.0, 64.0, 128.0]


def test_the_history_as_transformer_engine_lays_it_out() -> None:
    """Rolled by -1 with index 0 cleared: the newest stands last, and index 0 collects the pass under way."""
    scaler = delayed(4)
    passes(scaler, [1.0, 2.0, 4.0])
    assert scaler.amax_history.tolist() == [0.0, 1.0, 2.0, 4.0]
    scaler.quantize(torch.tensor([0.5]))
    assert scaler.amax_history.tolist() == [0.5, 1.0, 2.0, 4.0]
    scaler.end_pass()
    assert scaler.amax_history.tolist() == [0.0, 2.0, 4.0, 0.5]


def test_most_recent_looks_at_one_pass_only() -> None:
    assert passes(delayed(3, amax_compute="most_recent"), [28.0, 7.0, 3.5, 3.5]) == [1.0, 16.0, 64.0, 128.0]


def test_margin_takes_powers_of_two_off_the_scale() -> None:
    assert passes(delayed(margin=2), [3.5, 3.5]) == [1.0, 32.0]


@pytest.mark.parametrize("amax", [0.0, float("inf"), float("nan")])
def test_an_amax_that_is_no_scale_leaves_the_scale_as_it_was(amax: float) -> None:
    scaler = delayed(1)
    passes(scaler, [3.5, amax])
    assert float(scaler.scale) == 128.0


def test_two_tensors_in_one_pass_share_its_entry() -> None:
    scaler = delayed()
    scaler.quantize(torch.tensor([7.0]))
    scaler.quantize(torch.tensor([3.5]))
    scaler.end_pass()
    assert scaler.amax_history.tolist() == [0.0, 0.0, 7.0]
    assert float(scaler.scale) == 64.0


def test_a_pass_without_a_tensor_leaves_no_entry() -> None:
    """A weight quantised once a step takes one place in its history, however many micro-batches the step has."""
    scaler = delayed()
    passes(scaler, [7.0])
    scaler.end_pass()
    scaler.end_pass()
    assert scaler.amax_history.tolist() == [0.0, 0.0, 7.0]


def state(scaler: Scaler) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in scaler.state_dict().items()}


def test_recording_off_changes_nothing() -> None:
    scaler = delayed()
    passes(scaler, [3.5])
    scaler.quantize(torch.tensor([7.0]))  # a pass under way
    before = state(scaler)
    scaler.recording = False
    found = scaler.quantize(torch.tensor([100.0, 1.0]))
    assert found.values.tolist() == [448.0, 128.0]
    scaler.recording = True
    after = state(scaler)
    assert before.keys() == after.keys() == {"amax_history", "scale"}
    assert all(torch.equal(before[name], after[name]) for name in before)
    scaler.end_pass()
    assert float(scaler.scale) == 64.0


def test_an_evaluation_alone_does_not_end_a_pass() -> None:
    scaler = delayed()
    scaler.recording = False
    scaler.quantize(torch.tensor([100.0]))
    scaler.recording = True
    scaler.end_pass()
    assert scaler.amax_history.tolist() == [0.0, 0.0, 0.0]
    assert float(scaler.scale) == 1.0


def test_the_scale_handed_out_stays_when_the_scaler_moves_on() -> None:
    """The backward pass undoes the scale that the forward pass applied."""
    scaler = delayed()
    passes(scaler, [3.5])
    scale = scaler.scale_for(torch.tensor([14.0]))
    scaler.end_pass()
    assert (float(scale), float(scaler.scale)) == (128.0, 32.0)


def test_every_quantised_tensor_is_counted() -> None:
    scaler = CurrentScaler(E4M3)
    passes(scaler, [1.0, 2.0, 3.0])
    assert scaler.count == 3


def test_each_recipe_has_its_scaler() -> None:
    assert isinstance(scaler_factory(CurrentRecipe())(E4M3), CurrentScaler)
    made = scaler_factory(DelayedRecipe(amax_history_len=7))(E5M2)
    assert isinstance(made, DelayedScaler)
    assert made.amax_history.shape == (7,)
    assert made.info is E5M2
    fixed = scaler_factory(FixedRecipe(scale=4.0))(E4M3)
    assert float(fixed.scale_for(torch.ones(1))) == 4.0
    assert not fixed.state_dict()  # a constant of the recipe is nobody's state
