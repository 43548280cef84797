"""Estimates against counts done by hand."""

import pytest

from fp8migrate.errors import ExitCode, PlanError
from fp8migrate.facts.gpus import H200
from fp8migrate.facts.recipes import Bf16Recipe, CurrentRecipe, Nvfp4Recipe
from fp8migrate.jobs import Arm, DataOrder, ForwardCheck, Job, OneStep, Precision, Role, Train
from fp8migrate.plan.schema import LlamaModel, PolicyRule, PythonSourceData, Training
from fp8migrate.sizing.cost import Speed, Work, check_budget, estimate, gpu_speed, job_work, measured_speed
from fp8migrate.sizing.flops import flops_per_token, forward_flops_per_token

MODEL = LlamaModel(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=176)
DATA = PythonSourceData(validation_tokens=4096)
TRAINING = Training(
    num_steps=100, sequence_length=128, micro_batch_size=4, global_batch_size=8, learning_rate=1e-3, warmup_steps=10
)
FP8 = Precision(backend="emulated", recipe=CurrentRecipe())
STEP = 8 * 128 * flops_per_token(MODEL, 128)
VALIDATION = 4096 * forward_flops_per_token(MODEL, 128)


def train(precision: Precision, **changes: object) -> Train:
    settings = {"first_step": 40, "last_step": 100, "data_order": DataOrder(seed=0), **changes}
    return Train.model_validate({"model": MODEL, "data": DATA, "training": TRAINING, "precision": precision, **settings})


def job(task: Train | ForwardCheck | OneStep, arm: Arm = "baseline", pair: int = 0) -> Job:
    return Job(task=task, label=f"{arm}-{pair}", role=Role(design="branch", arm=arm, pair=pair))


def emulated(flops: float, slowdown: float = CurrentRecipe.emulated_step) -> Work:
    return Work(emulated_flops=flops, emulation_flops=flops * slowdown)


def test_the_slowest_recipe_of_a_policy_counts_and_a_stand_in_by_itself() -> None:
    """A budget refused on the estimate of a cheap recipe would be broken by a dear one."""
    rule = PolicyRule(layers="first_layer", recipe=Nvfp4Recipe())
    mixed = FP8.model_copy(update={"policy": (rule,)})
    assert job_work(job(train(mixed))) == emulated(60 * STEP, 7.0)
    assert job_work(job(train(mixed.model_copy(update={"stand_in": CurrentRecipe()})))) == emulated(60 * STEP)


def test_training_costs_its_own_steps_only() -> None:
    assert job_work(job(train(Precision()))) == Work(bf16_flops=60 * STEP)


def test_recompute_counts() -> None:
    again = 8 * 128 * (forward_flops_per_token(MODEL, 128) - 2 * 256 * 64)  # all but the head's
    recomputed = TRAINING.model_copy(update={"recompute": True})
    assert job_work(job(train(Precision(), training=recomputed))) == Work(bf16_flops=60 * (STEP + again))


def test_warming_passes_and_validations_count() -> None:
    task = train(FP8, warm_amax_batches=16, validate_at=(70, 100), validate_forwards=("bf16", "fp8"))
    assert job_work(job(task)) == Work(bf16_flops=2 * VALIDATION) + emulated(76 * STEP + 2 * VALIDATION)


@pytest.mark.parametrize(
    "precision",
    [Precision(), Precision(backend="emulated"), Precision(backend="emulated", recipe=Bf16Recipe())],
    ids=["bf16", "control", "A/A"],
)
def test_arms_without_fp8_emulate_nothing(precision: Precision) -> None:
    assert job_work(job(train(precision))).emulated_flops == 0


def test_checks_of_the_integration_phase() -> None:
    check = ForwardCheck(model=MODEL, data=DATA, training=TRAINING, precision=FP8, data_order=DataOrder(seed=0))
    assert job_work(job(check)) == Work(bf16_flops=VALIDATION) + emulated(4 * STEP + VALIDATION)
    step = OneStep(model=MODEL, data=DATA, training=TRAINING, precision=FP8, data_order=DataOrder(seed=0))
    assert job_work(job(step)) == emulated(33 * STEP)


def test_a_job_that_serves_several_comparisons_is_counted_once() -> None:
    jobs = [job(train(Precision())), job(train(Precision()), pair=1), job(train(FP8), "candidate")]
    estimated = estimate(jobs, None)
    assert estimated.num_jobs == 2
    assert estimated.by_arm == {"baseline": Work(bf16_flops=60 * STEP), "candidate": emulated(60 * STEP)}
    assert estimated.work.flops == 120 * STEP


def test_without_a_speed_there_are_no_hours_and_that_is_said() -> None:
    estimated = estimate([job(train(Precision()))], None)
    assert estimated.hours is None
    assert estimated.wall_hours(4) is None
    assert estimated.assumptions[-1] == "no hours: the speed of this machine is not known"


def test_hours_at_a_speed() -> None:
    speed = Speed(STEP, "CPU-hours", "one step a second")
    estimated = estimate([job(train(Precision())), job(train(FP8), "candidate")], speed)
    assert estimated.hours == pytest.approx((60 + 1.9 * 60) / 3600)
    assert estimated.wall_hours(2) == pytest.approx(87 / 3600)
    assert estimated.assumptions == (
        "GEMM FLOPs only, attention over the full square; start-up, data and evaluation of logs are not counted",
        "one step a second",
        "emulated FP8 takes 1.9 times as long as BF16",
    )


def test_nothing_costs_nothing() -> None:
    estimated = estimate([], measured_speed(2e9, 1.0, "CPU-hours", "probe"))
    assert (estimated.num_jobs, estimated.hours) == (0, 0.0)


def test_speeds_say_where_they_come_from() -> None:
    assert gpu_speed(H200) == Speed(989.4e12 * 0.4, "GPU-hours", "H200 SXM: 40% of 989.4 TFLOP/s (dense BF16 peak)")
    measured = measured_speed(3e11, 2.0, "CPU-hours", "5 steps on 1 thread")
    assert measured.flops_per_second == 1.5e11
    assert measured.basis == "5 steps on 1 thread: 150 GFLOP/s measured"


def test_llama_3_8b_on_an_h200_takes_what_was_measured() -> None:
    # 8192 tokens a step in 0.703 s in BF16 (measured): 0.57 of the peak by 6 FLOPs per parameter, embedding included.
    model = LlamaModel(num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_hidden_size=14336, vocab_size=128256)
    work = Work(bf16_flops=8192 * flops_per_token(model, 4096))
    assert work.hours(gpu_speed(H200, achieved=0.57)) * 3600 == pytest.approx(0.703, rel=0.15)


def test_a_budget_bounds_gpu_hours() -> None:
    slow = Speed(STEP, "GPU-hours", "one step a second")
    estimated = estimate([job(train(Precision(), last_step=100))], slow)
    check_budget([estimated], 1.0)
    check_budget([estimated], None)
    with pytest.raises(PlanError) as caught:
        check_budget([estimated], 0.01)
    assert caught.value.exit_code == ExitCode.USAGE
    assert str(caught.value) == (
        "budget.gpu_hours: estimated at 0.0167 GPU-hours, above the budget of 0.01 (one step a second)\n"
        "Raise the budget, or run less: fewer pairs, fewer steps, a smaller model."
    )


def test_a_budget_of_gpu_hours_says_nothing_about_cpus() -> None:
    estimated = estimate([job(train(Precision()))], Speed(1.0, "CPU-hours", "slow"))
    assert check_budget([estimated], 0.01) is None  # type: ignore[func-returns-value]
    assert check_budget([estimate([job(train(Precision()))], None)], 0.01) is None  # type: ignore[func-returns-value]
