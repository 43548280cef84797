"""`measure`: arms by their names, and what lines of a measurement say, whole or cut off."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fp8migrate.engine.measure import arm_of, default_arms, measure_plan
from fp8migrate.errors import UsageError
from fp8migrate.evidence.measurement import Memory, converted_products, saved_by_gemms, summarize
from fp8migrate.facts.operands import GEMMS
from fp8migrate.facts.recipes import Bf16Recipe, CurrentRecipe, DelayedRecipe, RowwiseRecipe, TensorwiseRecipe
from fp8migrate.jobs import Precision
from fp8migrate.plan.load import load_plan
from fp8migrate.plan.schema import LlamaModel, Plan, PolicyRule
from fp8migrate.plan.template import starting_plan
from fp8migrate.report.measurement import render, verdict

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=128)
PLAN = Plan.model_validate(
    {
        "name": "speed",
        "model": MODEL.model_dump(),
        "training": {
            "num_steps": 200,
            "sequence_length": 32,
            "micro_batch_size": 4,
            "global_batch_size": 4,
            "learning_rate": 1e-3,
            "warmup_steps": 5,
        },
        "candidate": {"recipe": {"kind": "delayed", "amax_history_len": 16}, "keep_bf16": ["lm_head"]},
        "design": {"branch": {"at": 0.5, "pairs": 4}},
    },
    strict=False,
)


def test_arms_by_their_names() -> None:
    assert arm_of(PLAN, "baseline").precision == Precision()
    control = arm_of(PLAN, "control").precision
    assert (control.backend, control.recipe) == ("transformer_engine", None)
    found = arm_of(PLAN, "candidate+fp8_head+fast_accumulation+history=1")
    assert found.precision.keep_bf16 == ()
    assert found.precision.recipe == DelayedRecipe(amax_history_len=1, backward_split_accumulator=False)
    assert arm_of(PLAN, "candidate+recipe=current").precision.recipe == CurrentRecipe()
    assert arm_of(PLAN, "torchao=tensorwise").precision.recipe == TensorwiseRecipe()


@pytest.mark.parametrize(
    "name", ["candidat", "candidate+fp8_hed", "baseline+fp8_head", "torchao=delaied", "candidate+history=x"]
)
def test_what_is_no_arm_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"(?s)unknown arm .*Allowed: baseline, control"):
        arm_of(PLAN, name)


def test_steps_that_recompute_their_activations_are_not_measured(tmp_path: Path) -> None:
    """The models of a measurement do not: it would be the speed of another training."""
    path = tmp_path / "plan.yaml"
    path.write_text(starting_plan("mine").replace("  recompute: false", "  recompute: true"))
    with pytest.raises(UsageError, match=rf"{path}:\d+: training\.recompute: measure .*keep(?s:.*)recompute: false"):
        measure_plan(load_plan(path), tmp_path / "reports", arms=())
    assert not (tmp_path / "reports").exists()


def changed(**candidate: Any) -> Plan:
    found = PLAN.candidate.model_copy(update=candidate)
    return PLAN.model_copy(update={"candidate": found})


def test_a_recipe_of_torchaos_is_measured_on_torchao() -> None:
    plan = changed(recipe=RowwiseRecipe())
    assert arm_of(plan, "candidate").precision.backend == "torchao"
    assert default_arms(plan) == ("baseline", "candidate")
    with pytest.raises(UsageError, match="rowwise runs on torchao"):
        arm_of(plan, "candidate+fp8_head")


@pytest.mark.parametrize("keep", [{"keep_bf16": ("lm_*",)}, {"keep_smaller_than": 10**9}])
def test_a_head_that_stays_in_bf16_all_the_same_is_no_lever(keep: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="lm_head stays in BF16 all the same"):
        arm_of(changed(**keep), "candidate+fp8_head")


def test_torchaos_arm_differs_in_recipe_and_backend_alone() -> None:
    rule = PolicyRule(layers="layers.*.mlp.down", recipe=Bf16Recipe())
    plan = changed(policy=(rule,), keep_smaller_than=10**9, odd_shapes="pad")
    ours, theirs = (arm_of(plan, name).precision for name in ("candidate", "torchao=tensorwise"))
    assert theirs == ours.model_copy(update={"backend": "torchao", "recipe": TensorwiseRecipe()})
    assert len(theirs.kept) > 0


def test_a_lever_named_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown arm"):
        arm_of(PLAN, "candidate+fp8_head+fp8_head")


def step(total: float) -> dict[str, float]:
    return {"forward": total / 4, "backward": total / 2, "optimizer": total / 4}


def turn(arm: str, number: int, *totals: float, losses: tuple[float | None, ...] = (5.0,)) -> dict[str, Any]:
    steps = [step(total) for total in totals]
    about = {
        "peak_bytes": 2**30,
        "held_bytes": {"before": 7000, "after_forward": 9500, "after_backward": 9100},
        "joules": 10.0,
        "losses": list(losses),
    }
    return {"kind": "turn", "at": 1.0, "arm": arm, "round": number, "steps": steps, **about}


def arm(name: str, precision: Precision, share: float) -> dict[str, Any]:
    settings = {"name": name, "precision": precision.model_dump(mode="json")}
    return {
        "kind": "arm",
        "at": 0.5,
        "arm": name,
        "settings": settings,
        "first_step_s": 3.0,
        "fp8_weights": 100,
        "fp8_share": share,
    }


def lines() -> list[dict[str, Any]]:
    environment = {"device": "cuda", "device_name": "NVIDIA H200", "torch": "2.11.0", "driver": "580"}
    environment |= {"transformer_engine": "2.20.2", "torchao": None}
    about = {"environment": environment, "cudnn": 91900, "energy_missing": None, "parameters": 1000, "weight_bytes": 2000}
    candidate = Precision(backend="transformer_engine", recipe=DelayedRecipe(), keep_bf16=("lm_head",))
    gemm = {"kind": "gemm", "at": 0.2, "m": 8, "n": 8, "k": 8, "times": 10}
    return [
        {"kind": "environment", "at": 0.1, "tokens_per_step": 4000, **about},
        *(
            {**gemm, "name": name, "gemm": each, "bf16": 0.02, "fp8_fast": 0.01, "fp8_exact": 0.015}
            for name in ("qkv", "output", "gate_up", "down", "lm_head")
            for each in GEMMS
        ),
        {"kind": "optimizer", "at": 0.4, "way": "torch", "block": 2048, "warps": 8},
        {"kind": "states", "at": 0.4, "bytes": 4000},
        arm("baseline", Precision(), 0.0),
        arm("candidate", candidate, 0.9),
        turn("baseline", 0, 0.5, 0.6),
        turn("candidate", 0, 0.4, 0.4),
        turn("baseline", 1, 0.6, 0.7),
        turn("candidate", 1, 0.4, 0.5),
        {"kind": "end", "at": 9.0},
    ]


def test_energy_of_turns_too_short_for_the_counter_is_no_figure() -> None:
    short = [
        turn("candidate", 2, 0.2, 0.2) if line.get("round") == 1 and line["arm"] == "candidate" else line for line in lines()
    ]
    found = summarize("speed", MODEL, PLAN.training, short)
    baseline, candidate = found.arms
    assert (baseline.joules_per_token, candidate.joules_per_token) == (pytest.approx(20 / (4 * 4000)), None)
    assert any(note.startswith("no energy of candidate: turns below 0.5 s") for note in found.notes)


def test_memory_by_part() -> None:
    """7000 bytes before a step, 2000 of them weights, 4000 states."""
    found = summarize("speed", MODEL, PLAN.training, lines())
    expected = Memory(weights=2000, states=4000, kept=1000, forward=2500, gradients=2100)
    assert [arm.memory for arm in found.arms] == [expected, expected]
    without = [line for line in lines() if line["kind"] != "states"]
    assert summarize("speed", MODEL, PLAN.training, without).arms[0].memory is None
    assert "## Memory, GiB" in render(found)
    assert "## Memory, GiB" not in render(summarize("speed", MODEL, PLAN.training, without))


def test_a_whole_measurement() -> None:
    found = summarize("speed", MODEL, PLAN.training, lines())
    baseline, candidate = found.arms
    assert (baseline.median_s, candidate.median_s) == (pytest.approx(0.6), pytest.approx(0.4))
    assert candidate.tokens_per_second == pytest.approx(10_000)
    assert candidate.tflops_6n == pytest.approx(6 * 1000 * 4000 / 0.4 / 1e12)
    assert candidate.speedup == pytest.approx(1.5)
    assert candidate.round_speedups == (pytest.approx(0.55 / 0.4), pytest.approx(0.65 / 0.45))
    # Two layers of four matrices, the head in BF16: 0.01 s could be saved forward (fast), twice 0.005 s backward (exact).
    assert candidate.limit == pytest.approx(0.6 / (0.6 - 0.16))
    assert candidate.captured == pytest.approx(0.2 / 0.16)
    assert candidate.joules_per_token == pytest.approx(20 / (4 * 4000))
    assert found.complete
    assert verdict(found).startswith("candidate runs a whole step 1.500 × as fast as BF16 (round by round 1.375 to 1.444)")
    assert "| candidate | 400.0 |" in render(found)


def test_of_one_that_was_cut_off_what_is_there_is_told() -> None:
    cut = [*lines()[:-3], {"kind": "turn_failed", "at": 2.0, "arm": "candidate", "error": "OutOfMemoryError: no"}]
    found = summarize("speed", MODEL, PLAN.training, cut)
    assert not found.complete
    assert found.failed == {"candidate": "OutOfMemoryError: no"}
    assert [each.steps for each in found.arms] == [2, 2]
    assert "candidate failed: OutOfMemoryError: no" in render(found)


def test_a_loss_that_is_not_finite_takes_an_arm_out_of_the_verdict() -> None:
    broken = [
        turn("candidate", 0, 0.1, losses=(None,)) if each.get("arm") == "candidate" and each["kind"] == "turn" else each
        for each in lines()
    ]
    found = summarize("speed", MODEL, PLAN.training, broken)
    assert not found.arms[1].finite
    assert verdict(found) == "No FP8 arm was measured beside a BF16 one."


def test_a_rate_that_is_missing_makes_no_limit() -> None:
    gemms = [{"name": "qkv", "gemm": "forward", "bf16": 1.0, "fp8_fast": None, "fp8_exact": None}]
    assert saved_by_gemms(gemms, Counter({("qkv", "forward"): 2})) is None
    assert saved_by_gemms([], Counter({("qkv", "forward"): 2})) is None
    assert saved_by_gemms(gemms, Counter()) is None


def test_what_a_policy_keeps_does_not_count_towards_the_limit() -> None:
    kept = Precision(backend="transformer_engine", recipe=CurrentRecipe(), keep_bf16=("head", "attention"))
    found = converted_products(arm("candidate", kept, 0.5), MODEL, PLAN.training)
    assert found == Counter({(name, gemm): 2 for name in ("gate_up", "down") for gemm in GEMMS})
    # One module holds the whole feed-forward: with a part of it kept, all of it is.
    part = Precision(backend="transformer_engine", recipe=CurrentRecipe(), keep_bf16=("head", "layers.0.mlp.down"))
    assert converted_products(arm("candidate", part, 0.5), MODEL, PLAN.training)["gate_up", "forward"] == 1
    assert converted_products(arm("control", Precision(backend="transformer_engine"), 0.0), MODEL, PLAN.training) == Counter()
