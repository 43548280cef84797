"""The table of GPUs against relations that hold between its columns, and against the traps of data sheets."""

from dataclasses import FrozenInstanceError

import pytest

from fp8migrate.facts.gpus import A100_80GB, B200, GPUS, H100_SXM, H200, GpuInfo, find_gpu


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_fp8_is_twice_bf16_where_it_exists(gpu: GpuInfo) -> None:
    if gpu.fp8_tflops is not None:
        assert gpu.fp8_tflops / gpu.bf16_tflops == pytest.approx(2, rel=0.02)
    if gpu.compute_capability is not None:
        assert (gpu.fp8_tflops is not None) == (gpu.compute_capability >= (8, 9))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_gpu_has_a_source_and_is_found_by_its_names(gpu: GpuInfo) -> None:
    assert gpu.source
    assert all(find_gpu(name) is gpu for name in gpu.device_names)


def test_dgx_b200_is_eight_gpus_with_sparsity() -> None:
    # Its data sheet: 72 petaFLOP/s FP8 training, 1,440 GB, 64 TB/s.
    assert B200.fp8_tflops == 72_000 / 8 / 2
    assert B200.memory_gb == 1440 / 8
    assert B200.bandwidth_gb_per_second == 64_000 / 8


def test_measured_gemms_stay_below_the_peak() -> None:
    # torch.mm and torch._scaled_mm on one H200: 812 TFLOP/s in BF16, 1510 in FP8.
    assert H200.bf16_tflops > 812
    assert H200.fp8_tflops is not None
    assert H200.fp8_tflops > 1510


def test_a100_has_no_fp8() -> None:
    assert A100_80GB.fp8_tflops is None


@pytest.mark.parametrize(
    "name", ["", "H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090 Laptop GPU", "cpu"]
)
def test_a_name_that_is_not_known_exactly_is_not_guessed(name: str) -> None:
    assert find_gpu(name) is None


def test_facts_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        H100_SXM.bf16_tflops = 1.0  # type: ignore[misc]
