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
from fp8migrate.worker.adamw_kernel import norm  # noqa: E402
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
@pytest.mark.parametrize("scale", [2.0**-10, 1.0], ids=["clipped", "not clipped"])
def test_every_way_of_adamw_is_torchs(way: Way, scale: float) -> None:
    """From the same weights, states and gradients, at most one BF16 ulp apart, and equal nearly everywhere.

    torch's way rounds scaled gradients to BF16, ours not: the scale is a power of two, which loses nothing.
    """
    models = [packed() for _ in range(2)]
    optimizers = [FastAdamW(model, TRAINING, name) for model, name in zip(models, ("torch", way), strict=True)]
    for step in range(5):
        for model, optimizer in zip(models, optimizers, strict=True):
            generator = torch.Generator("cuda").manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.empty_like(parameter).normal_(generator=generator)
            optimizer.scaled_step(torch.tensor(scale, device="cuda"))
        pairs = list(zip(*(tensors_of(*each) for each in zip(models, optimizers, strict=True)), strict=True))
        for expected, found in pairs:
            apart = (expected.float() - found.float()).abs()
            # Sums that cancel leave FP32's error of what they were made of.
            assert (apart <= 2**-7 * expected.float().abs() + 1e-7).all()
        differing = sum(int((expected != found).sum()) for expected, found in pairs)
        values = sum(expected.numel() for expected, _ in pairs)
        print(f"\n{way}, update {step}: {differing} of {values} values differ")
        assert differing < 0.02 * values
        with torch.no_grad():
            for expected, found in pairs:
                found.copy_(expected)


@pytest.mark.parametrize("sizes", [(1,), (7, 4096, 32768), (100_003, 3_000_000)])
def test_the_kernels_norm_is_that_of_double_precision(sizes: tuple[int, ...]) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    tensors = [torch.empty(size, device="cuda", dtype=torch.bfloat16).normal_(generator=generator) for size in sizes]
    expected = torch.linalg.vector_norm(torch.cat(tensors).double())
    found = norm(tensors)
    assert abs(float(found) / float(expected) - 1) < 1e-6
    assert torch.equal(found, norm(tensors))
    assert not torch.isfinite(norm([*tensors, torch.full((3,), torch.inf, device="cuda", dtype=torch.bfloat16)]))


def tensors_of(model: PackedLlama, optimizer: FastAdamW) -> list[torch.Tensor]:
    """Weights and both moments."""
    parameters = list(model.parameters())
    return [*parameters, *(optimizer.state[each][name] for name in ("exp_avg", "exp_avg_sq") for each in parameters)]


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
