"""Rounding by chance: the noise is uniform and repeatable, and a value goes to its two neighbours as often as it should."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fp8migrate.facts.codec import values
from fp8migrate.facts.formats import E2M1, E4M3, E5M2, FormatInfo
from fp8migrate.worker.chance import round_stochastically_, uniform_noise

every_format = pytest.mark.parametrize("info", [E4M3, E5M2, E2M1], ids=lambda info: info.name)

# As the quantisers make seeds: a layer's, spread over 64 bits, and one more for each tensor. Also the ends of int64.
SEEDS = [0, 1, 2, 7, 0x9E3779B97F4A7C15 % (1 << 63), 2**32, 2**63 - 1, -(2**63)]
NOISE_STEP = 2.0**-24
COUNT = 1 << 16
# Of a correlation between independent numbers, times √COUNT, or of any mean.
FIVE_SIGMA = 5.0


def noise(seed: int, *shape: int) -> Tensor:
    return uniform_noise(torch.Size(shape), torch.tensor(seed, dtype=torch.int64))


def rounded(x: list[float] | np.ndarray | Tensor, info: FormatInfo, chances: float | Tensor) -> Tensor:
    found = torch.as_tensor(x, dtype=torch.float32).clone()
    return round_stochastically_(found, info, torch.as_tensor(chances, dtype=torch.float32).expand(found.shape))


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((a, b)))[0, 1])


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_uniform(seed: int) -> None:
    """Over [0, 1), in 256 cells, and in each of its leading bits with the next: 16 cells of pairs."""
    found = noise(seed, COUNT).numpy()
    assert 0 <= found.min() < 1e-3
    assert 1 - 1e-3 < found.max() < 1
    for cells in (256, 251):  # 251: cells that do not end where those of the bits do
        counts = np.bincount((found * cells).astype(int), minlength=cells)
        assert stats.chisquare(counts).pvalue > 1e-4
    pairs = (found[0::2] * 16).astype(int) * 16 + (found[1::2] * 16).astype(int)
    assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-4


def test_noise_has_24_bits_and_each_of_them_is_used() -> None:
    bits = noise(3, COUNT) / NOISE_STEP
    assert torch.equal(bits, bits.round())
    ones = torch.stack([(bits.to(torch.int32) >> bit) & 1 for bit in range(24)]).double().mean(dim=1)
    assert float((ones - 0.5).abs().max()) < FIVE_SIGMA * 0.5 / COUNT**0.5


def test_noise_is_the_same_for_the_same_seed_and_any_shape() -> None:
    assert torch.equal(noise(5, 6, 8), noise(5, 48).view(6, 8))
    assert torch.equal(noise(5, 48), noise(5, 4096)[:48])
    assert noise(5, 0).shape == (0,)


def test_noise_differs_by_position_and_by_seed() -> None:
    found = torch.stack([noise(seed, COUNT) for seed in SEEDS])
    # Of so many draws from 2^24 numbers, birthdays leave 99 % distinct.
    assert all(row.unique().numel() > 0.99 * COUNT for row in found)
    for i, row in enumerate(found):
        assert float((found[:i] == row).double().mean() if i else 0.0) < 1e-3


@pytest.mark.parametrize("step", [1, 2, 4, 2**16, 2**32])
def test_noise_of_neighbouring_seeds_is_not_correlated(step: int) -> None:
    for seed in SEEDS[:-2]:
        assert abs(correlation(noise(seed, COUNT), noise(seed + step, COUNT))) < FIVE_SIGMA / COUNT**0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 16, 128, 4096])
def test_noise_of_neighbouring_positions_is_not_correlated(lag: int) -> None:
    found = noise(11, COUNT)
    assert abs(correlation(found[:-lag], found[lag:])) < FIVE_SIGMA / (COUNT - lag) ** 0.5


def test_noise_of_the_next_tensor_is_not_this_ones_in_another_order() -> None:
    first, second = noise(0, COUNT), noise(1, COUNT)
    assert abs(correlation(first, second.view(-1, 2).flip(1).flatten())) < FIVE_SIGMA / COUNT**0.5
    assert not torch.equal(first.sort().values, second.sort().values)


@every_format
def test_between_neighbours_the_way_up_is_as_likely_as_it_is_near(info: FormatInfo) -> None:
    """All neighbours, all 64ths of the way between them, all of 64 noises: the counts are exact."""
    grid = np.array(values(info))
    low, high = (torch.tensor(side, dtype=torch.float32)[:, None, None] for side in (grid[:-1], grid[1:]))
    share = torch.arange(64)[None, :, None] / 64
    x = (low + share * (high - low)).expand(-1, -1, 64)
    found = rounded(x, info, (torch.arange(64) / 64)[None, None, :])
    assert bool(((found == low) | (found == high)).all())
    upper = torch.where(low >= 0, share, 1 - share)  # magnitudes go up where noise < share
    went_out = torch.where(low >= 0, found == high, found == low).double().mean(dim=2, keepdim=True)
    assert torch.equal(went_out, upper.double())


@every_format
def test_the_mean_is_kept(info: FormatInfo) -> None:
    """200 numbers from far below the subnormals to the largest, each 2^14 times: within 5 sigma, each and all."""
    draws = 1 << 14
    generator = torch.Generator().manual_seed(0)
    exponents = torch.empty(200).uniform_(np.log2(info.min_subnormal) - 3, np.log2(info.max_finite), generator=generator)
    x = torch.exp2(exponents) * torch.randn(200, generator=generator).sign()
    found = rounded(x[:, None].expand(-1, draws).contiguous(), info, noise(17, 200, draws)).double()
    grid = np.array(values(info))
    at = np.searchsorted(grid, x.numpy(), side="right")
    low, high = (torch.tensor(grid[i]) for i in (at - 1, at))
    sigma = ((high - x) * (x - low) / draws).sqrt()
    sigmas = (found.mean(dim=1) - x.double()) / sigma
    assert float(sigmas.abs().max()) < FIVE_SIGMA
    assert abs(float(sigmas.mean())) < FIVE_SIGMA / 200**0.5


@every_format
@pytest.mark.parametrize("chance", [0.0, NOISE_STEP, 0.5, 1 - NOISE_STEP])
def test_values_of_the_format_stay(info: FormatInfo, chance: float) -> None:
    grid = torch.tensor(values(info), dtype=torch.float32)
    assert torch.equal(rounded(grid, info, chance), grid)


@every_format
@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - NOISE_STEP])
def test_beyond_the_largest_value_all_saturates_and_nan_stays_nan(info: FormatInfo, chance: float) -> None:
    largest = info.max_finite
    beyond = [float(np.nextafter(np.float32(largest), np.float32(np.inf))), largest * 1.5, 3.4e38, float("inf")]
    assert rounded(beyond, info, chance).tolist() == [largest] * 4
    assert rounded([-x for x in beyond], info, chance).tolist() == [-largest] * 4
    assert bool(rounded([float("nan"), -float("nan")], info, chance).isnan().all())


@every_format
@settings(max_examples=100, deadline=None)
@given(
    x=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=32),
    chance=st.integers(0, 2**24 - 1).map(lambda bits: bits * NOISE_STEP),
)
def test_any_float32_goes_to_one_of_its_two_neighbours(info: FormatInfo, x: list[float], chance: float) -> None:
    grid = np.array(values(info))
    held = np.clip(np.array(x), -info.max_finite, info.max_finite)
    low = grid[np.searchsorted(grid, held, side="right") - 1]
    high = grid[np.searchsorted(grid, held, side="left")]
    found = rounded(x, info, chance).double().numpy()
    assert np.all((found == low) | (found == high))
    np.testing.assert_array_equal(rounded([-value for value in x], info, chance).numpy(), -found)


def test_it_rounds_in_place_and_by_the_noise_it_is_given() -> None:
    x = torch.tensor([2.25, 2.25, -2.25, -2.25, 0.125])
    found = round_stochastically_(x, E2M1, torch.tensor([0.2, 0.25, 0.2, 0.25, 0.0]))
    assert found is x
    assert x.tolist() == [3.0, 2.0, -3.0, -2.0, 0.5]
