"""Kernels by name. Names are those that a profiler shows; the cuBLAS ones were seen on an H200 (torch 2.11, CUDA 13)."""

import pytest

from fp8migrate.facts.kernels import KernelKind, kernel_kind

NAMES: list[tuple[str, KernelKind]] = [
    ("nvjet_sm90_qqtst_256x128_128x4_1x2_h_bz_coopA_TNT", "fp8_gemm"),
    ("nvjet_sm90_qrtst_64x64_128x13_2x1_v_bz_algo2_splitK_TNT", "fp8_gemm"),
    ("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_coopA_algo2_Ablk128_Bvec128_TNN", "fp8_gemm"),
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "gemm"),
    ("nvjet_sm90_tss_32x64_64x16_4x2_h_bz_NTN", "gemm"),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "gemm"),
    ("nvjet_sm100_zztst_128x256_64x4_TNT", "unknown_gemm"),
    ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize64x128x128_warpgroupsize1x1x1_execute_segment_k_off", "fp8_gemm"),
    ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_stage3_warpsize2x2x1_tensor16x8x16_kernel", "gemm"),
    ("void cutlass::device_kernel<at::cuda::detail::enable_3x_kernel_for_sm9x<cutlass::float_e4m3_t, 128>>()", "fp8_gemm"),
    ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", "gemm"),
    ("some_new_gemm_kernel_v2", "unknown_gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>", "other"),
    ("cast_transpose_optimized_kernel(__nv_bfloat16 const*, float const*, __nv_fp8_e4m3*, __nv_fp8_e4m3*)", "cast"),
    ("void transformer_engine::(anonymous namespace)::amax_kernel<16, true, __nv_bfloat16>(__nv_bfloat16 const*)", "cast"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::float8_copy_kernel_cuda(at::TensorIterator)>", "cast"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_6_128x128x64_4x1x1_cga1x1x1_kernel0_0", "attention"),
    ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64>>", "attention"),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "other"),
    ("triton_per_fused_native_layer_norm_0", "other"),
    ("triton_poi_fused__scaled_mm_clamp_mul_0", "other"),
    ("triton_red_fused__scaled_mm__to_copy_abs_amax_mul_2", "cast"),
    ("triton_tem_fused_mm_t_0", "unknown_gemm"),
    ("triton_tem_fused__scaled_mm_fp8_1", "fp8_gemm"),
]


@pytest.mark.parametrize(("name", "kind"), NAMES, ids=[name[:40] for name, _ in NAMES])
def test_a_kernel_is_known_by_its_name(name: str, kind: KernelKind) -> None:
    assert kernel_kind(name) == kind
