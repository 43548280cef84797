"""The advisor's statistics against values worked out by hand, and what holds for any tensor."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fp8migrate.facts.formats import E4M3, E5M2
from fp8migrate.facts.operands import GEMM_OPERANDS, GEMMS, AmaxHistory, Operand, TensorName
from fp8migrate.facts.recipes import (
    KNOWN_BAD,
    BlockRecipe,
    CurrentRecipe,
    DelayedRecipe,
    FixedRecipe,
    Mxfp8Recipe,
    Nvfp4Recipe,
    Recipe,
    RowwiseHighPrecisionRecipe,
    RowwiseRecipe,
)
from fp8migrate.worker.linear import CONTRACTION
from fp8migrate.worker.quantize import quantize, rotate
from fp8migrate.worker.tensor_stats import STATISTICS, Rows, delayed_scales, losses, stacked, take

RECIPES: tuple[Recipe, ...] = (
    DelayedRecipe(),
    CurrentRecipe(),
    BlockRecipe(),
    RowwiseRecipe(),
    RowwiseHighPrecisionRecipe(),
    Mxfp8Recipe(),
    Nvfp4Recipe(),
    FixedRecipe(),
    KNOWN_BAD,
)
PLAIN = Operand(E4M3, constant=1.0)


def one(
    values: list[list[float]] | Tensor, operand: Operand, along: int = 1, rows: int = 1000, **more: Any
) -> dict[str, float]:
    taken = take(torch.as_tensor(values, dtype=torch.float32), rows)
    return dict(zip(STATISTICS, losses(taken, operand, along, **more)[:, 0].tolist(), strict=True))


def all_operands() -> list[tuple[str, TensorName, Operand, int]]:
    return [
        (recipe.kind, tensor, operand, CONTRACTION[gemm, tensor])
        for recipe in RECIPES
        for gemm in GEMMS
        for tensor, operand in zip(GEMM_OPERANDS[gemm], recipe.operands(gemm) or (), strict=False)
    ]


# By hand


def test_underflow_and_sqnr() -> None:
    """E4M3's least number is 2^-9: a quarter of it becomes zero, and is all the noise. A zero is nothing that could be lost."""
    found = one([[2**-11, 2**-9, 1.0, 0.0]], PLAIN)
    assert found["underflow"] == pytest.approx(1 / 3)
    assert found["overflow"] == 0
    assert found["sqnr_db"] == pytest.approx(10 * math.log10((2**-22 + 2**-18 + 1) / 2**-22))
    assert (found["least_log2_scale"], found["largest_log2_scale"]) == (0, 0)


def test_overflow_begins_half_a_step_beyond_the_largest_number() -> None:
    """448's last step is 32: 464 would still round to 448."""
    assert one([[448.0, 464.0, 472.0, -1000.0]], PLAIN)["overflow"] == 0.5
    assert one([[57344.0, 61440.0, 62464.0, 0.0]], Operand(E5M2, constant=1.0))["overflow"] == 0.25


def test_a_tensor_that_loses_nothing() -> None:
    found = one([[1.0, -0.5, 448.0, 2.0**-9]], PLAIN)
    assert (found["sqnr_db"], found["underflow"], found["overflow"]) == (math.inf, 0, 0)
    assert one([[0.0, 0.0]], PLAIN)["sqnr_db"] == math.inf
    assert one([[0.0, 0.0]], PLAIN)["underflow"] == 0


def test_delayed_scaling_clips_what_its_history_has_not_seen() -> None:
    """Scale 448 / 2 = 224 from an amax of 2: 4 · 224 is beyond 448 and comes back as 2."""
    operand = Operand(E4M3, history=AmaxHistory(4, "max", 0))
    scale = delayed_scales([[1.0, 2.0, 0.5]], operand, torch.device("cpu"))
    found = one([[1.0, 4.0]], operand, scale=scale)
    assert scale.tolist() == [224.0]
    assert found["overflow"] == 0.5
    assert found["sqnr_db"] == pytest.approx(10 * math.log10(17 / 4))
    assert found["largest_log2_scale"] == pytest.approx(-math.log2(224))


def test_delayed_scales_follow_the_recipe() -> None:
    amaxes = [[1.0, 7.0, 14.0]]
    for history, scale in (
        (AmaxHistory(3, "max", 0), 32),
        (AmaxHistory(2, "max", 0), 64),
        (AmaxHistory(3, "most_recent", 1), 224),
    ):
        assert delayed_scales(amaxes, Operand(E4M3, history=history), torch.device("cpu")).tolist() == [scale]


@pytest.mark.parametrize("along", [0, 1])
def test_a_scale_of_the_whole_tensor_looks_beyond_the_rows_taken(along: int) -> None:
    """The second row is not looked at; its 896 sets the scale: 1/1024 becomes 2^-11 of E4M3's 1, which is lost."""
    values = [[1.0, 2**-10], [3.0, 896.0]]
    found = one(values, Operand(E4M3), along, rows=1)
    assert found["largest_log2_scale"] == 1
    assert found["underflow"] == 0.5
    assert one(values, Operand(E4M3), along, rows=2)["largest_log2_scale"] == 1
    assert one(values[:1], Operand(E4M3), along)["underflow"] == 0


def test_a_scale_over_all_rows_looks_beyond_the_rows_taken() -> None:
    """Along tokens each column has a scale of its own: 4 / 448 and 896 / 448."""
    column = Operand(E4M3, (1, None))
    found = one([[1.0, 1.0], [4.0, 896.0]], column, along=0, rows=1)
    assert (found["least_log2_scale"], found["largest_log2_scale"]) == (pytest.approx(math.log2(4 / 448)), 1)
    row = one([[1.0, 1.0], [4.0, 896.0]], column, along=1, rows=1)
    assert row["largest_log2_scale"] == pytest.approx(-math.log2(448))


def test_blocks_have_a_scale_each() -> None:
    """MXFP8: amax 448 · 2^3 and 448 · 2^-2 in two blocks of 32."""
    values = torch.cat((torch.full((1, 32), 448 * 8.0), torch.full((1, 32), 448 / 4)), 1)
    operands = Mxfp8Recipe().operands("forward")
    found = one(values, operands[0])
    assert (found["least_log2_scale"], found["largest_log2_scale"]) == (-2, 3)


def test_a_rotated_operand_is_compared_among_rotated_values() -> None:
    operands = Nvfp4Recipe(disable_stochastic_rounding=True).operands("weight_gradient")
    rotated = operands[1]
    assert rotated.hadamard
    x = torch.randn(32, 48, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact, back = rotate(x, 16, 0).double(), quantize(x, rotated, 0).dequantized().double()
    expected = 10 * math.log10(exact.square().sum() / (exact - back).square().sum())
    assert one(x.float(), rotated, along=0)["sqnr_db"] == pytest.approx(expected)


def test_a_normal_tensor_has_the_sqnr_of_its_format() -> None:
    """31.5 dB in E4M3, 25.5 in E5M2; in E2M1 NVFP4's blocks keep 20, and stochastic rounding takes 3 of them."""
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    wanted = {("current", "input"): 31.5, ("current", "gradient"): 25.5, ("mxfp8", "gradient"): 31.5, ("nvfp4", "input"): 20.4}
    wanted |= {("block", "weight"): 31.5, ("nvfp4", "gradient"): 17.2}
    for kind, tensor, operand, along in all_operands():
        if (kind, tensor) in wanted and (kind == "nvfp4" or operand.format.name != KNOWN_BAD.format):
            found = one(x, operand, along)
            assert found["sqnr_db"] == pytest.approx(wanted[kind, tensor], abs=0.4), (kind, tensor, along)


@pytest.mark.parametrize(("kind", "tensor", "operand", "along"), all_operands())
def test_a_group_of_layers_has_each_layers_numbers(kind: str, tensor: TensorName, operand: Operand, along: int) -> None:
    """vmap changes nothing, and what is clipped, lost and kept is what the quantiser gives for the tensor alone."""
    generator = torch.Generator().manual_seed(1)
    scales = torch.tensor([3.0, 500.0, 40.0]) if operand.history else None
    tensors = [torch.randn(40, 48, generator=generator) * size for size in (1.0, 100.0, 1e-6)]
    group = stacked([take(x, 32) for x in tensors])
    together = losses(group, operand, along, scales)
    for layer, x in enumerate(tensors):
        alone = losses(take(x, 32), operand, along, None if scales is None else scales[layer : layer + 1])[:, 0]
        assert torch.equal(together[:, layer], alone)


def test_where_vmap_cannot_layers_are_done_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    group = stacked([take(torch.randn(40, 48, generator=torch.Generator().manual_seed(seed)), 32) for seed in range(3)])
    for _, _, operand, along in all_operands():
        scales = torch.tensor([3.0, 500.0, 40.0]) if operand.history else None
        with monkeypatch.context() as old_torch:
            old_torch.setattr("fp8migrate.worker.tensor_stats._vmap_takes_views", lambda: False)
            alone = losses(group, operand, along, scales)
        assert torch.equal(alone, losses(group, operand, along, scales))


def test_nothing_but_delayed_constant_and_nvfp4_scales_can_clip() -> None:
    """The others are not looked at for overflow: their values never pass the largest number before the cast."""
    x = (torch.randn(128, 128, generator=torch.Generator().manual_seed(2)) * torch.logspace(-6, 6, 128)).bfloat16()
    for _, _, operand, along in all_operands():
        if operand.history is None and operand.constant is None and operand.scale != "e4m3" and not operand.hadamard:
            found = quantize(x, operand, along)
            at_the_end = found.values.abs() == operand.format.max_finite
            assert bool((x.float().abs() <= found.dequantized().abs() * (1 + 1 / 32))[at_the_end].all()), operand


# Any tensor

numbers = st.floats(-1e4, 1e4, width=32).filter(lambda x: x == 0 or abs(x) > 1e-4)
matrices = st.integers(1, 40).flatmap(
    lambda columns: st.lists(st.lists(numbers, min_size=columns, max_size=columns), min_size=1, max_size=20)
)


@given(matrices, st.sampled_from(all_operands()), st.integers(1, 20))
@settings(max_examples=60, deadline=None)
def test_shares_are_shares(values: list[list[float]], chosen: tuple[str, TensorName, Operand, int], rows: int) -> None:
    _, _, operand, along = chosen
    found = one(values, operand, along, rows, scale=torch.tensor([0.5]) if operand.history else None)
    assert 0 <= found["underflow"] <= 1
    assert 0 <= found["overflow"] <= 1
    assert not math.isnan(found["sqnr_db"])
    assert found["least_log2_scale"] == math.inf or found["least_log2_scale"] <= found["largest_log2_scale"]


@given(matrices, st.integers(-20, 20), st.sampled_from([CurrentRecipe(), BlockRecipe(), Mxfp8Recipe()]), st.sampled_from(GEMMS))
@settings(max_examples=60, deadline=None)
def test_a_power_of_two_changes_the_scales_alone(values: list[list[float]], power: int, recipe: Recipe, gemm: Any) -> None:
    operands = recipe.operands(gemm)
    assert operands is not None
    operand, along = operands[0], CONTRACTION[gemm, GEMM_OPERANDS[gemm][0]]
    x = torch.tensor(values)
    here, there = one(x, operand, along), one(x * 2.0**power, operand, along)
    assert (here["sqnr_db"], here["underflow"]) == (pytest.approx(there["sqnr_db"]), there["underflow"])
    if bool((x != 0).any(0).all()) and bool((x != 0).any(1).all()):
        assert there["largest_log2_scale"] == pytest.approx(here["largest_log2_scale"] + power)


def test_rows_of_equal_shape_are_one_group() -> None:
    group = stacked([take(torch.ones(4, 2), 3), take(torch.full((4, 2), 2.0), 3)])
    assert isinstance(group, Rows)
    assert group.values.shape == (2, 3, 2)
    assert group.column_amax is not None
    assert group.column_amax.tolist() == [[1, 1], [2, 2]]
    assert take(torch.ones(3, 2), 3).column_amax is None
