"""Environment variables that change what a training step computes, as data: what each changes, and where that is said."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """changes: what other values than the default change, in a few words. numbers: whether results can differ for it."""

    name: str
    changes: str
    source: str
    numbers: bool = True


# Names with these beginnings are told even where their effect is not known here.
PREFIXES = (
    "NVTE_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "PYTORCH_",
    "CUDA_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDNN_",
    "NVIDIA_TF32_",
    "NCCL_",
    "OMP_",
    "MKL_",
    "ATEN_",
    "DNNL_",
    "ONEDNN_",
    "FLASH_ATTENTION_",
    "TRITON_",
)

_TE = "Transformer Engine 2.20.2"
_ATTENTION = f"{_TE}, pytorch/attention/dot_product_attention/utils.py, get_attention_backend"
_FP8_ATTENTION = f"{_TE}, pytorch/attention/dot_product_attention/dot_product_attention.py"
_RECIPE = f"{_TE}, common/recipe/__init__.py"
_TE_DOCS = "Transformer Engine user guide, Environment Variables"
_TORCH_DOCS = "PyTorch documentation, CUDA environment variables"
_NCCL_DOCS = "NCCL user guide, Environment Variables"
_CUBLAS_DOCS = "cuBLAS documentation, Results Reproducibility"

VARIABLES: tuple[Variable, ...] = (
    Variable("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0: only attention kernels that repeat bit for bit", _FP8_ATTENTION),
    Variable("NVTE_FLASH_ATTN", "0: no flash-attn, another attention kernel", _ATTENTION),
    Variable("NVTE_FLASH_ATTN_V2", "0: no flash-attn 2, another attention kernel", _ATTENTION),
    Variable("NVTE_FLASH_ATTN_V3", "0: no flash-attn 3, another attention kernel", _ATTENTION),
    Variable("NVTE_FLASH_ATTN_V4", "0: no flash-attn 4, another attention kernel", _ATTENTION),
    Variable("NVTE_FUSED_ATTN", "0: no cuDNN attention; without flash-attn the unfused path, slow and hungry", _ATTENTION),
    Variable("NVTE_UNFUSED_ATTN", "0: an error in place of the unfused path", _ATTENTION),
    Variable("NVTE_FUSED_ATTN_BACKEND", "which of cuDNN's attention kernels", _TE_DOCS),
    Variable("NVTE_FUSED_ATTN_FORCE_WORKSPACE_OPT", "another path through cuDNN's attention backward", _TE_DOCS),
    Variable("NVTE_FUSED_ATTN_USE_FAv2_BWD", "1: flash-attn 2 in the backward of cuDNN's attention", _TE_DOCS),
    Variable("NVTE_APPLY_QK_LAYER_SCALING", "1: logits of unfused attention are scaled by layer", _TE_DOCS),
    Variable(
        "NVTE_MASKED_SOFTMAX_FUSION",
        "0: softmax of unfused attention in torch",
        f"{_TE}, pytorch/attention/dot_product_attention/softmax.py",
    ),
    Variable("NVTE_UnfusedDPA_Emulate_FP8", "1: FP8 attention may be emulated, unfused", _ATTENTION),
    Variable("NVTE_FP8_DPA_BWD", "0: backward of FP8 attention in BF16", _TE_DOCS),
    Variable("NVTE_DPA_FP8_RECIPE", "another recipe, or none, in FP8 attention", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8_RECIPE_DPA", "FP8 in attention itself under NVTE_DPA_FP8_RECIPE", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8_RECIPE_MHA", "FP8 between attention and its projections", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8_FORMAT", "formats of FP8 attention under NVTE_DPA_FP8_RECIPE", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8DS_AMAX_ALGO", "scales of FP8 attention: largest or most recent amax", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8DS_AMAX_HISTLEN", "how far back scales of FP8 attention look", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8DS_REDUCE_AMAX", "0: each rank has its own scales in FP8 attention", _FP8_ATTENTION),
    Variable("NVTE_DPA_FP8CS_O_in_F16", "0: output of FP8 attention kept in FP8 for the backward", _TE_DOCS),
    Variable("NVTE_BACKWARD_OVERRIDE", "backward GEMMs of every recipe in high precision, or of dequantised tensors", _RECIPE),
    Variable("NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", "1: scales of current scaling are powers of two", _RECIPE),
    Variable("NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "1: scales of block scaling are not powers of two", _RECIPE),
    Variable("NVTE_NVFP4_DISABLE_RHT", "1: NVFP4 without the Hadamard transform", _RECIPE),
    Variable("NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING", "1: NVFP4 gradients rounded to nearest", _RECIPE),
    Variable("NVTE_NVFP4_DISABLE_2D_QUANTIZATION", "1: NVFP4 weights scaled in rows, not squares", _RECIPE),
    Variable("NVTE_NVFP4_ROW_SCALED_ACTIVATION", "1: NVFP4 activations with a scale per row", _RECIPE),
    Variable("NVTE_NVFP4_4OVER6", "NVFP4 blocks may be scaled to 4 in place of 6", _RECIPE),
    Variable("NVTE_NVFP4_4OVER6_ERR_MODE", "the error by which NVFP4 chooses between 4 and 6", _RECIPE),
    Variable("NVTE_NVFP4_4OVER6_E4M3_USE_256", "range of NVFP4's block scales under 4 over 6", _RECIPE),
    Variable(
        "NVTE_UNFUSED_FP8_UPDATE", "1: delayed scales by torch, not by the fused kernel", f"{_TE}, pytorch/quantization.py"
    ),
    Variable("NVTE_USE_FAST_MATH", "1: less exact arithmetic in kernels compiled at run time", _TE_DOCS),
    Variable("NVTE_DISABLE_NVRTC", "1: other kernels for transposes and casts", _TE_DOCS),
    Variable("NVTE_TORCH_COMPILE", "0: fused element-wise kernels by TorchScript", f"{_TE}, pytorch/jit.py"),
    Variable("NVTE_BIAS_GELU_NVFUSION", "0: bias and GELU apart", _TE_DOCS),
    Variable("NVTE_BIAS_DROPOUT_FUSION", "0: bias and dropout apart", _TE_DOCS),
    Variable("NVTE_GEMM_GELU_FUSION", "1: GELU inside the GEMM", f"{_TE}, pytorch/module/layernorm_mlp.py"),
    Variable("NVTE_FWD_LAYERNORM_SM_MARGIN", "order of sums in normalisations, forward", _TE_DOCS),
    Variable("NVTE_BWD_LAYERNORM_SM_MARGIN", "order of sums in normalisations, backward", _TE_DOCS),
    Variable("NVTE_EXT_MARGIN_SM", "GEMM kernels and their order of sums", _TE_DOCS),
    Variable("NVTE_PLUGIN", "kernels of somebody else in place of Transformer Engine's", f"{_TE}, common/__init__.py"),
    Variable("NVTE_DEBUG", "what is printed", _TE_DOCS, numbers=False),
    Variable("NVTE_DEBUG_LEVEL", "what is printed", _TE_DOCS, numbers=False),
    Variable("NVTE_CUDA_INCLUDE_DIR", "where headers are found", f"{_TE}, common/__init__.py", numbers=False),
    Variable("NVIDIA_TF32_OVERRIDE", "0: no TF32 in any CUDA library, whatever the program says", "cuBLAS documentation, TF32"),
    Variable("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1: float32 GEMMs in TF32, whatever the program says", _TORCH_DOCS),
    Variable("TORCH_CUDNN_V8_API_DISABLED", "1: other cuDNN kernels", _TORCH_DOCS),
    Variable("TORCH_BLAS_PREFER_CUBLASLT", "1: GEMM kernels of cuBLASLt", "torch, aten/src/ATen/Context.cpp"),
    Variable("TORCH_CUDA_ARCH_LIST", "which kernels extensions are built with", "torch.utils.cpp_extension", numbers=False),
    Variable("PYTORCH_ALLOC_CONF", "how memory is held", _TORCH_DOCS, numbers=False),
    Variable("PYTORCH_CUDA_ALLOC_CONF", "how memory is held", _TORCH_DOCS, numbers=False),
    Variable("PYTORCH_NVML_BASED_CUDA_CHECK", "how a GPU is looked for", _TORCH_DOCS, numbers=False),
    Variable("TORCHINDUCTOR_MAX_AUTOTUNE", "1: compiled GEMMs are chosen by timing", "torch, torch/_inductor/config.py"),
    Variable("CUBLAS_WORKSPACE_CONFIG", "whether GEMMs on several streams repeat bit for bit", _CUBLAS_DOCS),
    Variable("CUBLASLT_WORKSPACE_SIZE", "which GEMM kernels there is room for", "torch, aten/src/ATen/cuda/CUDABlas.cpp"),
    Variable("CUDA_LAUNCH_BLOCKING", "when kernels start", "CUDA C++ Programming Guide", numbers=False),
    Variable("CUDA_VISIBLE_DEVICES", "which GPUs are seen", "CUDA C++ Programming Guide", numbers=False),
    Variable("CUDA_DEVICE_ORDER", "in which order GPUs are seen", "CUDA C++ Programming Guide", numbers=False),
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", "how kernels overlap", "CUDA C++ Programming Guide", numbers=False),
    Variable("CUDA_MODULE_LOADING", "when kernels are loaded", "CUDA C++ Programming Guide", numbers=False),
    Variable("CUDA_HOME", "where Transformer Engine looks for cuDNN, after CUDNN_PATH", f"{_TE}, common/__init__.py"),
    Variable("CUDA_PATH", "where Transformer Engine looks for cuDNN, after CUDA_HOME", f"{_TE}, common/__init__.py"),
    Variable("CUDNN_HOME", "where Transformer Engine looks for cuDNN first", f"{_TE}, common/__init__.py"),
    Variable("CUDNN_PATH", "where Transformer Engine looks for cuDNN, after CUDNN_HOME", f"{_TE}, common/__init__.py"),
    Variable("NCCL_ALGO", "order of sums across GPUs", _NCCL_DOCS),
    Variable("NCCL_PROTO", "order of sums across GPUs", _NCCL_DOCS),
    Variable("NCCL_NVLS_ENABLE", "sums in the switch or in the GPUs", _NCCL_DOCS),
    Variable("NCCL_COLLNET_ENABLE", "sums in the network or in the GPUs", _NCCL_DOCS),
    Variable("NCCL_MIN_NCHANNELS", "how sums across GPUs are cut up", _NCCL_DOCS),
    Variable("NCCL_MAX_NCHANNELS", "how sums across GPUs are cut up", _NCCL_DOCS),
    Variable("NCCL_MIN_CTAS", "how sums across GPUs are cut up", _NCCL_DOCS),
    Variable("NCCL_MAX_CTAS", "how sums across GPUs are cut up", _NCCL_DOCS),
    Variable("NCCL_DEBUG", "what is printed", _NCCL_DOCS, numbers=False),
    Variable("NCCL_DEBUG_SUBSYS", "what is printed", _NCCL_DOCS, numbers=False),
    Variable("NCCL_SOCKET_IFNAME", "which network is used", _NCCL_DOCS, numbers=False),
    Variable("NCCL_IB_HCA", "which network is used", _NCCL_DOCS, numbers=False),
    Variable("OMP_NUM_THREADS", "order of sums on the CPU; fp8migrate sets its own for each job", "OpenMP", numbers=False),
    Variable("MKL_NUM_THREADS", "order of sums on the CPU; fp8migrate sets its own for each job", "oneMKL", numbers=False),
    Variable("ATEN_CPU_CAPABILITY", "instruction set of torch's CPU kernels", "torch, aten/src/ATen/native/DispatchStub.cpp"),
    Variable("ONEDNN_MAX_CPU_ISA", "instruction set of GEMMs on the CPU", "oneDNN developer guide, CPU Dispatcher Control"),
    Variable("DNNL_MAX_CPU_ISA", "instruction set of GEMMs on the CPU", "oneDNN developer guide, CPU Dispatcher Control"),
    Variable("ONEDNN_DEFAULT_FPMATH_MODE", "float32 GEMMs on the CPU in less", "oneDNN developer guide, fpmath mode"),
    Variable("MKL_CBWR", "whether sums on the CPU repeat across processors", "oneMKL, Conditional Numerical Reproducibility"),
)

_BY_NAME = {variable.name: variable for variable in VARIABLES}


def find_variable(name: str) -> Variable | None:
    """What a variable changes; None where it is not known here."""
    return _BY_NAME.get(name)


def is_told(name: str) -> bool:
    """Whether doctor speaks of this variable where it is set: those that change numbers, and those nobody here knows."""
    known = find_variable(name)
    return known.numbers if known else name.startswith(PREFIXES)
