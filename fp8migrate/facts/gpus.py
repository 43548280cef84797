"""GPUs and their architectures as data. Rates are per GPU, dense (no 2:4 sparsity), with FP32 accumulation.

Data sheets quote sparse figures, twice the dense ones, and whole systems: "72 petaFLOP/s" of a DGX B200 is eight GPUs with
sparsity, so 4.5 per GPU dense. The figures here are peaks; what a training step reaches is a good deal less.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuInfo:
    """One GPU.

    device_names: what torch.cuda.get_device_name says, exactly: a slice of a GPU (MIG) or another variant is not mistaken
    for it. fp8_tflops is None where the GPU has no FP8 GEMMs. compute_capability is NVIDIA's; None for others.
    memory_gb and bandwidth_gb_per_second are in 10^9 bytes, as data sheets state them.
    """

    name: str
    device_names: tuple[str, ...]
    compute_capability: tuple[int, int] | None
    bf16_tflops: float
    fp8_tflops: float | None
    memory_gb: float
    bandwidth_gb_per_second: float
    source: str
    note: str = ""


A100_40GB = GpuInfo(
    name="A100 SXM4 40 GB",
    device_names=("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
    compute_capability=(8, 0),
    bf16_tflops=312,
    fp8_tflops=None,
    memory_gb=40,
    bandwidth_gb_per_second=1555,
    source="NVIDIA A100 Tensor Core GPU data sheet (40 GB SXM)",
)
A100_80GB = GpuInfo(
    name="A100 SXM4 80 GB",
    device_names=("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
    compute_capability=(8, 0),
    bf16_tflops=312,
    fp8_tflops=None,
    memory_gb=80,
    bandwidth_gb_per_second=2039,
    source="NVIDIA A100 Tensor Core GPU data sheet (80 GB SXM)",
)
H100_SXM = GpuInfo(
    name="H100 SXM5",
    device_names=("NVIDIA H100 80GB HBM3",),
    compute_capability=(9, 0),
    bf16_tflops=989.4,
    fp8_tflops=1978.9,
    memory_gb=80,
    bandwidth_gb_per_second=3350,
    source="NVIDIA H100 Tensor Core GPU architecture white paper, table of peak rates (dense), and data sheet (memory)",
)
H100_PCIE = GpuInfo(
    name="H100 PCIe",
    device_names=("NVIDIA H100 PCIe",),
    compute_capability=(9, 0),
    bf16_tflops=756,
    fp8_tflops=1513,
    memory_gb=80,
    bandwidth_gb_per_second=2000,
    source="NVIDIA H100 Tensor Core GPU data sheet, PCIe column, sparse figures halved",
)
H200 = GpuInfo(
    name="H200 SXM",
    device_names=("NVIDIA H200",),
    compute_capability=(9, 0),
    bf16_tflops=989.4,
    fp8_tflops=1978.9,
    memory_gb=141,
    bandwidth_gb_per_second=4800,
    source="NVIDIA H200 Tensor Core GPU data sheet (SXM): the H100 SXM5's rates, other memory",
)
B200 = GpuInfo(
    name="B200",
    device_names=("NVIDIA B200",),
    compute_capability=(10, 0),
    bf16_tflops=2250,
    fp8_tflops=4500,
    memory_gb=180,
    bandwidth_gb_per_second=8000,
    source="NVIDIA DGX B200 and HGX B200 data sheets, divided by 8 GPUs, sparse figures halved",
)
GB200 = GpuInfo(
    name="GB200 (one of its two GPUs)",
    device_names=("NVIDIA GB200",),
    compute_capability=(10, 0),
    bf16_tflops=2500,
    fp8_tflops=5000,
    memory_gb=186,
    bandwidth_gb_per_second=8000,
    source="NVIDIA GB200 NVL72 data sheet, divided by 72 GPUs, sparse figures halved",
)
L40S = GpuInfo(
    name="L40S",
    device_names=("NVIDIA L40S",),
    compute_capability=(8, 9),
    bf16_tflops=362.05,
    fp8_tflops=733,
    memory_gb=48,
    bandwidth_gb_per_second=864,
    source="NVIDIA L40S data sheet, dense figures",
)
RTX_4090 = GpuInfo(
    name="GeForce RTX 4090",
    device_names=("NVIDIA GeForce RTX 4090",),
    compute_capability=(8, 9),
    bf16_tflops=165.2,
    fp8_tflops=330.3,
    memory_gb=24,
    bandwidth_gb_per_second=1008,
    source="NVIDIA Ada GPU architecture white paper, appendix A, FP32 accumulation, dense",
    note="FP8 with FP16 accumulation is twice as fast, and is not what training uses",
)
MI300X = GpuInfo(
    name="Instinct MI300X",
    device_names=("AMD Instinct MI300X",),
    compute_capability=None,
    bf16_tflops=1307.4,
    fp8_tflops=2614.9,
    memory_gb=192,
    bandwidth_gb_per_second=5300,
    source="AMD Instinct MI300X accelerator data sheet, dense figures",
    note="its FP8 formats are the FNUZ ones (E4M3 up to 240), not OCP's",
)

GPUS = (A100_40GB, A100_80GB, H100_SXM, H100_PCIE, H200, B200, GB200, L40S, RTX_4090, MI300X)


def find_gpu(device_name: str) -> GpuInfo | None:
    """The GPU that a driver calls by this name; None where it is not in the table."""
    return next((gpu for gpu in GPUS if device_name in gpu.device_names), None)


@dataclass(frozen=True)
class Architecture:
    """A generation of NVIDIA GPUs: compute capabilities from `least` up to but not `below`."""

    name: str
    least: tuple[int, int]
    below: tuple[int, int]
    fp8_gemms: bool
    source: str


_CAPABILITIES = "NVIDIA, CUDA GPU Compute Capability (developer.nvidia.com/cuda-gpus)"

ARCHITECTURES = (
    Architecture("Volta", (7, 0), (7, 5), False, _CAPABILITIES),
    Architecture("Turing", (7, 5), (8, 0), False, _CAPABILITIES),
    Architecture("Ampere", (8, 0), (8, 9), False, f"{_CAPABILITIES}: 8.0, 8.6, 8.7; A100 white paper: no FP8"),
    Architecture("Ada", (8, 9), (9, 0), True, f"{_CAPABILITIES}; Ada GPU architecture white paper: FP8 tensor cores"),
    Architecture("Hopper", (9, 0), (10, 0), True, f"{_CAPABILITIES}; H100 white paper: FP8 tensor cores"),
    Architecture("Blackwell", (10, 0), (12, 0), True, f"{_CAPABILITIES}: 10.0 (B200), 10.3 (B300), 11.0 (Thor)"),
    Architecture("RTX Blackwell", (12, 0), (13, 0), True, f"{_CAPABILITIES}: 12.0 (RTX 50, RTX PRO), 12.1 (GB10)"),
)


def find_architecture(capability: tuple[int, int]) -> Architecture | None:
    """The architecture of a compute capability; None for one that is older or newer than this table."""
    return next((each for each in ARCHITECTURES if each.least <= capability < each.below), None)
