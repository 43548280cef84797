"""Arms of a speed measurement: what they say of themselves is what runs."""

import pytest
import torch

from fp8migrate.errors import UsageError
from fp8migrate.facts.recipes import Bf16Recipe, CurrentRecipe, TensorwiseRecipe
from fp8migrate.jobs import MeasuredArm, Precision
from fp8migrate.plan.schema import LlamaModel, PolicyRule
from fp8migrate.sizing.flops import flops_shares, gemm_sites
from fp8migrate.worker import arms
from fp8migrate.worker.arms import _torchao_layers, build_arm
from fp8migrate.worker.backends import policy_of
from fp8migrate.worker.models.packed import PackedLlama

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
SITES = gemm_sites(MODEL, 32)
SHARES = flops_shares(SITES)


def packed() -> PackedLlama:
    found = PackedLlama(MODEL, 32, torch.device("cpu"), torch.bfloat16)
    found.fill(seed=3)
    return found


def share(*ends: str) -> float:
    return sum(value for name, value in SHARES.items() if name.endswith(ends))


@pytest.fixture
def fp8_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arms are built, and never run."""
    monkeypatch.setattr(arms, "_has_fp8", lambda device: True)


def test_emulated_speed_is_not_measured() -> None:
    arm = MeasuredArm(name="candidate", precision=Precision(backend="torchao", recipe=TensorwiseRecipe(), keep_bf16=("head",)))
    with pytest.raises(UsageError, match="no FP8 hardware here"):
        build_arm(arm, packed(), 128)


@pytest.mark.usefixtures("fp8_here")
def test_a_torchao_arm_counts_the_matrices_that_it_exchanges() -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    # One of three that are one matrix is kept: so is the matrix.
    precision = Precision(backend="torchao", recipe=TensorwiseRecipe(), keep_bf16=("head", "layers.*.attention.key"))
    arm, source = MeasuredArm(name="candidate", precision=precision), packed()
    found = build_arm(arm, source, 128)
    assert found.fp8_share == pytest.approx(share("output", "gate", "up", "down"))
    assert found.fp8_weights == 2 * (64 * 64 + 3 * 64 * 128)
    layers = _torchao_layers(arm, source, policy_of(SITES, precision, 128), SITES)
    kinds = {name: type(module).__name__ for name, module in layers[1].named_children()}
    assert (kinds["qkv"], kinds["output"], kinds["gate_up"], kinds["down"]) == ("Linear", *["Float8Linear"] * 3)
    assert layers[1].get_submodule("down").weight is source.layers[1].get_submodule("down").weight
    assert type(source.layers[1].get_submodule("down")).__name__ == "Linear"


@pytest.mark.usefixtures("fp8_here")
def test_a_torchao_arm_with_an_fp8_head_is_refused() -> None:
    with pytest.raises(UsageError, match="lm_head in BF16, and the plan has it in FP8"):
        build_arm(
            MeasuredArm(name="candidate", precision=Precision(backend="torchao", recipe=TensorwiseRecipe())), packed(), 128
        )


@pytest.mark.usefixtures("transformer_engine_stub")
def test_a_fused_arm_in_fp8_forward_alone_has_a_third_of_the_flops() -> None:
    rule = PolicyRule(layers="*", gemms=("data_gradient", "weight_gradient"), recipe=Bf16Recipe())
    whole, forward = (
        Precision(backend="transformer_engine", recipe=CurrentRecipe(), keep_bf16=("head",), policy=rules)
        for rules in ((), (rule,))
    )
    found = [build_arm(MeasuredArm(name="candidate", precision=each), packed(), 128).fp8_share for each in (whole, forward)]
    assert found == [pytest.approx(1 - share("products", "lm_head")), pytest.approx((1 - share("products", "lm_head")) / 3)]
