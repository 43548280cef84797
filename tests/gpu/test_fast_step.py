"""The measured step on a GPU: AdamW's compiled and Triton ways beside torch's, fused modules beside the packed model."""

import pytest

torch = pytest.importorskip("torch")

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a Hopper GPU or newer", allow_module_level=True)

from fp8migrate.facts.kernels import kernel_kind  # noqa: E402 - after the skips
from fp8migrate.facts.recipes import CurrentRecipe  # noqa: E402
from fp8migrate.jobs import MeasuredArm, Precision  # noqa: E402
from fp8migrate.plan.schema import LlamaModel, Training  # noqa: E402
from fp8migrate.worker.adamw import FastAdamW, Way  # noqa: E402
from fp8migrate.worker.arms import build_arm  # noqa: E402
from fp8migrate.worker.kernels import KernelWatch  # noqa: E402
from fp8migrate.worker.models.packed import PackedLlama  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

MODEL = LlamaModel(num_layers=2, hidden_size=256, num_heads=4, num_kv_heads=2, ffn_hidden_size=512)
TRAINING = Training(
    num_steps=10, sequence_length=128, micro_batch_size=4, global_batch_size=4, learning_rate=1e-2, warmup_steps=1
)
FUSED = Precision(backend="transformer_engine", keep_bf16=("lm_head",))


def packed() -> PackedLlama:
    found = PackedLlama(MODEL, 128, torch.device("cuda"), torch.bfloat16)
    found.fill(seed=3)
    return found


def tokens() -> torch.Tensor:
    return torch.randint(0, 256, (4, 129), generator=torch.Generator().manual_seed(1)).cuda()


@pytest.mark.parametrize("way", ["compiled", "triton"])
@pytest.mark.parametrize("max_norm", [1e-3, 1e9], ids=["clipped", "not clipped"])
def test_every_way_of_adamw_is_torchs(way: Way, max_norm: float) -> None:
    """From the same weights, states and gradients, at most one BF16 ulp apart, and equal nearly everywhere."""
    models = [packed() for _ in range(2)]
    optimizers = [FastAdamW(model, TRAINING, name) for model, name in zip(models, ("torch", way), strict=True)]
    for step in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            generator = torch.Generator("cuda").manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter).normal_(generator=generator)
            optimizer.clipped_step(max_norm)
        parameters = list(zip(*(model.parameters() for model in models), strict=True))
        for expected, found in parameters:
            assert_one_ulp_apart(expected, found)
            states = [optimizer.state[each] for optimizer, each in zip(optimizers, (expected, found), strict=True)]
            for name in ("exp_avg", "exp_avg_sq"):
                assert_one_ulp_apart(states[0][name], states[1][name])
                states[1][name].copy_(states[0][name])
            with torch.no_grad():
                found.copy_(expected)


def assert_one_ulp_apart(expected: torch.Tensor, found: torch.Tensor) -> None:
    """An ulp of BF16 is at most 2^-7 of the value. Sums that cancel leave FP32's error of what they were made of: 1e-7."""
    apart = (expected.float() - found.float()).abs()
    assert (apart <= 2**-7 * expected.float().abs() + 1e-7).all()
    assert (apart > 0).float().mean() < 0.02


def test_fused_modules_with_fp8_off_are_the_packed_model() -> None:
    pytest.importorskip("transformer_engine", reason="Transformer Engine is not installed")
    found = []
    for name, precision in (("baseline", Precision()), ("control", FUSED)):
        source = packed()
        loss = build_arm(MeasuredArm(name=name, precision=precision), source, 512).loss(tokens())
        loss.backward()
        found.append((loss.detach(), {part.name: part.of(part.parameter.grad) for part in source.canonical_parameters()}))
    (expected, exact), (loss, gradients) = found
    assert torch.allclose(loss, expected, rtol=1e-3)
    for name in exact:
        assert (gradients[name].float() - exact[name].float()).norm() <= 3e-2 * exact[name].float().norm(), name


def test_a_fused_step_runs_as_many_fp8_gemms_as_it_says() -> None:
    pytest.importorskip("transformer_engine", reason="Transformer Engine is not installed")
    precision = FUSED.model_copy(update={"recipe": CurrentRecipe()})
    arm = build_arm(MeasuredArm(name="candidate", precision=precision), packed(), 512)
    arm.loss(tokens()).backward()
    with KernelWatch() as watch, watch.range("step"):
        loss = arm.loss(tokens())
        loss.backward()
    assert torch.isfinite(loss)
    # Four matrices a layer, three GEMMs each.
    assert sum(kernel.calls for kernel in watch.kernels()["step"] if kernel_kind(kernel.name) == "fp8_gemm") == 2 * 4 * 3
