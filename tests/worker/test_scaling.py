"""Scales as Transformer Engine computes them, worked by hand."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.facts.operands import AmaxHistory, Operand
from fp8migrate.worker.quantizers import Quantizer, end_pass
from fp8migrate.worker.scaling import FLOAT32_MAX


def low(quantizer: Quantizer, values: Sequence[float]) -> tuple[list[float], float]:
    """One row quantised: values on the grid, and the scale that brought them there."""
    found = quantizer.quantize(torch.tensor([values]), along=1)
    return found.values[0].tolist(), 1 / float(found.inverse_scale)


def passes(quantizer: Quantizer, amaxes: Sequence[float]) -> list[float]:
    """Quantise one tensor of each amax, a pass each; the scales that they met."""
    scales = []
    for amax in amaxes:
        scales.append(low(quantizer, [amax, -amax / 4])[1])
        end_pass(quantizer)
    return scales


def current(info: FormatInfo = E4M3) -> Quantizer:
    return Quantizer(Operand(info))


def delayed(length: int = 3, compute: str = "max", margin: int = 0, info: FormatInfo = E4M3) -> Quantizer:
    return Quantizer(Operand(info, history=AmaxHistory(length, compute, margin)))  # type: ignore[arg-type]


def scale(quantizer: Quantizer) -> float:
    return float(quantizer.get_buffer("scale"))


def history(quantizer: Quantizer) -> list[float]:
    return quantizer.get_buffer("amax_history").tolist()  # type: ignore[no-any-return]


def test_current_scaling_maps_the_largest_magnitude_to_the_formats_largest() -> None:
    found = current().quantize(torch.tensor([[3.5, -1.75, 0.0]]), along=1)
    assert float(found.inverse_scale) == 1 / 128  # scale 448 / 3.5
    assert found.values.tolist() == [[448.0, -224.0, 0.0]]
    assert found.dequantized().tolist() == [[3.5, -1.75, 0.0]]
    assert low(current(E5M2), [-7.0])[1] == pytest.approx(57344 / 7)
    assert low(current(E2M1), [-3.0])[1] == 2.0


def test_current_scaling_rounds_to_bf16_before_it_looks() -> None:
    """3.501 is 3.5 in BF16, and that is the amax."""
    assert low(current(), [3.501, 1.0]) == ([448.0, 128.0], 128.0)


@pytest.mark.parametrize("info", [E4M3, E5M2, E2M1], ids=lambda info: info.name)
def test_a_scale_is_the_float32_quotient_for_every_amax(info: FormatInfo) -> None:
    """Rounded once, as Transformer Engine divides: a scale one ulp off moves values that lie on a tie."""
    amaxes = (1 + torch.arange(128) / 128).to(torch.bfloat16)
    expected = np.float32(info.max_finite) / amaxes.float().numpy()
    last = delayed(1, info=info)
    for amax, quotient in zip(amaxes, expected, strict=True):
        assert float(current(info).quantize(amax[None, None], 1).inverse_scale) == np.float32(1) / quotient
        passes(last, [float(amax)])
        assert scale(last) == quotient


@pytest.mark.parametrize(
    ("x", "values"),
    [
        ([0.0, 0.0], [0.0, 0.0]),
        ([float("inf"), 2.0], [448.0, 2.0]),
        ([-float("inf"), 0.3], [-448.0, 0.3125]),
    ],
)
def test_current_scaling_of_an_amax_that_is_no_scale_is_one(x: list[float], values: list[float]) -> None:
    assert low(current(), x) == (values, 1.0)


def test_current_scaling_passes_a_nan_on() -> None:
    assert np.isnan(low(current(), [float("nan"), 1.0])[0]).tolist() == [True, False]


def test_a_scale_that_overflows_becomes_the_largest_float32() -> None:
    assert low(current(E5M2), [1e-38])[1] == pytest.approx(FLOAT32_MAX)
    cold = delayed(2, info=E5M2)
    passes(cold, [1e-38])
    assert scale(cold) == pytest.approx(FLOAT32_MAX)


def test_fixed_scaling_never_looks_at_the_tensor() -> None:
    fixed = Quantizer(Operand(E4M3, constant=8.0))
    assert low(fixed, [1.0, 100.0, 2.0**-13]) == ([8.0, 448.0, 0.0], 8.0)
    assert passes(fixed, [5.0, 0.0, 1e6]) == [8.0, 8.0, 8.0]
    assert not fixed.state_dict()  # a constant of the recipe is nobody's state


def test_delayed_scaling_is_cold_first_then_uses_earlier_passes() -> None:
    assert passes(delayed(), [3.5, 7.0, 7.0]) == [1.0, 128.0, 64.0]


def test_the_history_forgets_after_its_length() -> None:
    """Length 3: the pass that has just ended and the two before it."""
    assert passes(delayed(3), [28.0, 7.0, 3.5, 3.5, 3.5, 3.5]) == [1.0, 16.0, 16.0, 16.0, 64.0, 128.0]


def test_a_history_of_one_holds_the_pass_that_has_just_ended() -> None:
    assert passes(delayed(1), [28.0, 7.0, 3.5, 3.5]) == [1.0, 16.0, 64.0, 128.0]


def test_the_history_as_transformer_engine_lays_it_out() -> None:
    """Rolled by -1 with index 0 cleared: the newest stands last."""
    found = delayed(4)
    passes(found, [1.0, 2.0, 4.0])
    assert history(found) == [0.0, 1.0, 2.0, 4.0]
    passes(found, [0.5])
    assert history(found) == [0.0, 2.0, 4.0, 0.5]


def test_most_recent_looks_at_one_pass_only() -> None:
    assert passes(delayed(3, "most_recent"), [28.0, 7.0, 3.5, 3.5]) == [1.0, 16.0, 64.0, 128.0]


def test_margin_takes_powers_of_two_off_the_scale() -> None:
    assert passes(delayed(margin=2), [3.5, 3.5]) == [1.0, 32.0]


@pytest.mark.parametrize("amax", [0.0, float("inf"), float("nan")])
def test_an_amax_that_is_no_scale_leaves_the_scale_as_it_was(amax: float) -> None:
    found = delayed(1)
    passes(found, [3.5, amax])
    assert scale(found) == 128.0


def test_two_tensors_in_one_pass_share_its_entry() -> None:
    found = delayed()
    low(found, [7.0])
    passes(found, [3.5])
    assert history(found) == [0.0, 0.0, 7.0]
    assert scale(found) == 64.0


def test_a_pass_without_a_tensor_leaves_history_and_scale() -> None:
    """Transformer Engine's update skips an amax of 0: a weight quantised once a step has one entry for it."""
    found = delayed()
    passes(found, [7.0])
    for _ in range(4):
        end_pass(found)
    passes(found, [0.0])
    assert history(found) == [0.0, 0.0, 7.0]
    assert scale(found) == 64.0


def test_a_nan_in_the_history_is_skipped_by_the_maximum() -> None:
    """fmaxf, with which Transformer Engine looks for it, takes the other number."""
    found = delayed(3)
    passes(found, [7.0, float("nan")])
    assert scale(found) == 64.0
    passes(found, [3.5])
    assert scale(found) == 64.0
    passes(found, [3.5])
    assert scale(found) == 128.0


def test_quantisers_of_several_rules_move_on_together() -> None:
    found = torch.nn.ModuleList([delayed(3), delayed(3, margin=1), delayed(1, info=E5M2), current()])
    for quantizer in found:
        low(quantizer, [3.5])  # type: ignore[arg-type]
    end_pass(found)
    assert [scale(quantizer) for quantizer in found[:3]] == [128.0, 64.0, 16384.0]  # type: ignore[arg-type]


def state(quantizer: Quantizer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in quantizer.state_dict().items()}


def test_recording_off_changes_nothing() -> None:
    found = delayed()
    passes(found, [3.5])
    low(found, [7.0])  # a pass under way
    before = state(found)
    found.tally.recording = False
    assert low(found, [100.0, 1.0]) == ([448.0, 128.0], 128.0)
    found.tally.recording = True
    after = state(found)
    assert before.keys() == after.keys() == {"amax_history", "scale"}
    assert all(torch.equal(before[name], after[name]) for name in before)
    end_pass(found)
    assert scale(found) == 64.0


def test_the_scale_handed_out_stays_when_the_quantiser_moves_on() -> None:
    """The backward pass undoes the scale that the forward pass applied."""
    found = delayed()
    passes(found, [3.5])
    handed = found.quantize(torch.tensor([[14.0]]), along=1)
    end_pass(found)
    assert (1 / float(handed.inverse_scale), scale(found)) == (128.0, 32.0)


def test_every_quantised_tensor_is_counted() -> None:
    found = current()
    passes(found, [1.0, 2.0, 3.0])
    assert found.tally.quantized == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_scaling_state_stays_float32_whatever_the_model_becomes(dtype: torch.dtype) -> None:
    """An amax of 1e-4 has a scale of 4.48e6, which is Inf in float16."""
    found = delayed()
    passes(found, [1e-4])
    low(found, [7.0])
    before = scale(found)
    found.to(dtype)
    assert {buffer.dtype for buffer in found.buffers()} == {torch.float32} == {found.pass_amax.dtype}
    assert (scale(found), float(found.pass_amax)) == (before, 7.0)
