"""Our casts beside torchao's, on any device. torchao is imported by the caller's `torchao_quietly` first."""

import logging
import warnings
from types import ModuleType

import pytest
from torch import Tensor

from fp8migrate.facts.formats import FormatInfo
from fp8migrate.facts.operands import Operand, ScaleRule
from fp8migrate.facts.recipes.rowwise import TORCHAO_LEAST_AMAX
from tests.low_precision import TORCH_DTYPES, alike, assert_same_codes, assert_same_floats, quantized


def torchao_quietly(name: str = "torchao.float8") -> ModuleType:
    """Import a module of torchao, which logs and warns while it loads. Skips where it is not installed."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pytest.importorskip(name, reason="torchao is not installed")  # type: ignore[no-any-return]
    finally:
        logging.disable(before)


def check_cast(x: Tensor, info: FormatInfo, along: int | None, powers_of_two: bool) -> None:
    """hp_tensor_to_float8_dynamic: one scale for each row along `along`, or (None) for the tensor."""
    scaling = torchao_quietly("torchao.float8.float8_scaling_utils")
    granularity = torchao_quietly("torchao.float8.config").ScalingGranularity
    config = torchao_quietly("torchao.float8.float8_training_tensor").LinearMMConfig()
    theirs = scaling.hp_tensor_to_float8_dynamic(
        x,
        TORCH_DTYPES[info.name],
        config,
        scaling_granularity=granularity.TENSORWISE if along is None else granularity.AXISWISE,
        # torchao takes the last dimension as -1 only.
        axiswise_dim={None: None, 0: 0, 1: -1}[along],
        round_scales_to_power_of_2=powers_of_two,
    )
    rule: ScaleRule = "power_of_two" if powers_of_two else "float32"
    tile = (None, None) if along is None else (1, None)
    found, ours = quantized(x, Operand(info, tile, rule, TORCHAO_LEAST_AMAX), 1 if along is None else along)
    assert_same_floats("inverse scales", found.inverse_scale, theirs._scale.reciprocal())
    assert_same_codes("values", ours, alike(theirs._data.view(ours.dtype), info), x)
