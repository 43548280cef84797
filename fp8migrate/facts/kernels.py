"""GPU kernels by name: which are GEMMs, and of which operands.

A name that looks like a GEMM and is in none of the lists is `unknown_gemm`: no proof either way, so it counts against coverage.
"""

import re
from typing import Literal

KernelKind = Literal["fp8_gemm", "fp4_gemm", "gemm", "unknown_gemm", "attention", "cast", "other"]

# cuBLAS's own kernels: nvjet_sm90_qrtst_256x128_…: letters are A and B (one letter where they are alike), C, the sum and D.
# Seen on an H200 with cuBLAS 13: q E4M3, r E5M2, t BF16, s FP32, h FP16 (tst: BF16 × BF16; qrtst: E4M3 × E5M2).
_NVJET = re.compile(r"nvjet_(?:sm\d+_)?([a-z]+?)_\d")
_NVJET_FP8, _NVJET_HIGH = set("qr"), set("thsd")
_FP8 = re.compile(r"e4m3|e5m2|float8|fp8", re.IGNORECASE)
_FP4 = re.compile(r"e2m1|float4|fp4", re.IGNORECASE)
_HIGH = re.compile(r"bf16|bfloat16|fp16|half|f16|tf32|s1688|sgemm|dgemm|f32f32", re.IGNORECASE)
_GEMM = re.compile(r"gemm|nvjet|cutlass.*(?:device_kernel|Kernel)|xmma|_mm_|matmul", re.IGNORECASE)
# Sums of partial products and repacked scales: they follow a GEMM and are none.
# torch.compile names its element-wise kernels (poi) and sums (red, per, for) after what was fused: `…_scaled_mm__to_copy_…`.
_HELPER = re.compile(
    r"^triton_(?:poi|red|per|for)_|splitKreduce|swizzle|reduce_kernel|elementwise|cast_transpose|amax|transpose_kernel",
    re.IGNORECASE,
)
_ATTENTION = re.compile(r"flash|sdpa|fmha|attention|softmax", re.IGNORECASE)
_CAST = re.compile(r"cast|quantize|amax|compute_scale|float8_copy", re.IGNORECASE)


def kernel_kind(name: str) -> KernelKind:
    """What a kernel is, by its name as the profiler gives it."""
    if _ATTENTION.search(name):
        return "attention"
    if _HELPER.search(name) or not _GEMM.search(name):
        return "cast" if _CAST.search(name) else "other"
    if found := _NVJET.search(name):
        return _nvjet_kind(found[1])
    if _FP4.search(name):
        return "fp4_gemm"
    if _FP8.search(name):
        return "fp8_gemm"
    return "gemm" if _HIGH.search(name) else "unknown_gemm"


def _nvjet_kind(letters: str) -> KernelKind:
    """By the letters of A and B: five letters name both, three one."""
    operands = letters[:2] if len(letters) >= 5 else letters[:1]
    if set(operands) <= _NVJET_FP8:
        return "fp8_gemm"
    return "gemm" if set(operands) <= _NVJET_HIGH else "unknown_gemm"
