"""Kernel classes of matrix products outside MoE."""

from __future__ import annotations

from typing import Final

from specschema.kernel_rule import KernelRule

_DEEPGEMM: Final = "deepseek-ai/DeepGEMM deep_gemm/include/deep_gemm"

GEMM: Final = (
    KernelRule(
        r"\binterleave_\w*weights|_repack(?:_kernel)?$",
        "other_compute",
        "weight layout",
        "TensorRT-LLM moe_gemm_mixed_utils.cu; Marlin repack kernels: once, when weights are loaded",
    ),
    KernelRule(
        r"\bnvjet|\bcublas\w*::|\bsplitkreduce|\bgemmk1|\bgemv(?:2[tn]|nsp|nspkernel)|"
        r"\binternal::gemvx::|\bsgemm_|\bdgemm_|\bgemmsn_",
        "gemm",
        "cublas",
        "NVIDIA cuBLAS and cuBLASLt; recorded on H200",
    ),
    KernelRule(
        r"^sm\d+_xmma_gemm|^(?:volta|turing|ampere|hopper|maxwell)_\w*gemm|^cutlass_\d+_|"
        r"^cutlass3x_sm\d+|\bcublaslt|cublas(?:lt)?(?:epilogue|gemv|transpose|splitk)",
        "gemm",
        "cublas",
        "NVIDIA cuBLAS kernels named by architecture; helpers recognised by their cublas parameter types",
        True,
    ),
    KernelRule(r"^cijk_|\bpostgsu\d|\btensile", "gemm", "tensile", "ROCm Tensile and hipBLASLt, recorded on MI300X"),
    KernelRule(
        r"\bmarlin|\bawq_|\bawq::|\bgptq::|\bgemm_half_q_half|\bmachete|\bqserve|\bmul_mat_|"
        r"\bdequantize_block|\bdequantize_weights|\bgemm_forward_4bit",
        "gemm",
        "quantised gemm",
        "vLLM csrc/quantization (marlin, awq, gptq, machete, gguf); SGLang sgl-kernel csrc/gemm",
    ),
    KernelRule(
        r"\bdeep_gemm::(?:\w+::)*\w*(?:gemm|bmk_bnk_mn|bmm|einsum)|\bfp8_gemm_kernel",
        "gemm",
        "fp8 gemm",
        _DEEPGEMM + "/impls: dense and batched GEMM",
    ),
    KernelRule(
        r"\b_w8a8_|\b\w*fp8_blockwise|\bgemm_fp8_blockwise|\bblock_fp8_matmul|\b_?mxfp8_linear_kernel|"
        r"\b_?(?:fp8_)?scaled_mm_kernel",
        "gemm",
        "fp8 gemm",
        "SGLang srt/layers/quantization/fp8_kernel.py; vLLM model_executor/kernels/linear",
    ),
    KernelRule(
        r"cutlass::(?:device_kernel|kernel2?\b).*gemm|cutlass\w*(?:device_kernel|6kernel)\w*gemm|"
        r"cutlass::(?:device_kernel|kernel2?\b).*(?:s\d+|i\d+|h\d+)gemm",
        "gemm",
        "cutlass",
        "NVIDIA/cutlass device_kernel<...GemmUniversal...>, Kernel<cutlass_80_tensorop_...gemm...>",
        True,
    ),
    KernelRule(
        r"^kernel_cutlass_\w*gemm|^(?:gemm|bmm)_\w+_sm1\d\d|\btgvgemm\w*kernel|\bck::kernel_\w*gemm",
        "gemm",
        "cutlass",
        "CuTe DSL GEMM in FlashInfer and SGLang (tgv); trtllm-gen dense and static batched GEMM; composable_kernel",
    ),
    KernelRule(
        r"\bdsv3_fused_a_gemm|\bfused_a_gemm_kernel|\btiny_[kn]_gemm|\btinygemm|"
        r"\b\w*gemv(?:_\w*)?_kernel|\bll_?gemm|\bwvsplitk|\bllmm1",
        "gemm",
        "small gemm",
        "SGLang sgl-kernel csrc/gemm/dsv3_fused_a_gemm.cu; FlashInfer tinygemm2; vLLM csrc/rocm/skinny_gemms.cu",
    ),
    KernelRule(
        r"(?:^|_|::)(?:b?gemm|matmul|bmm)(?:_(?:kernel|fwd|device|persistent|splitk|impl|bf16|fp16|"
        r"fp8|fp4|fp32|int8|triton|descriptor|tma)\w*)?$",
        "gemm",
        "gemm",
        "the function calls itself a matrix product: matmul_kernel_persistent (SGLang "
        "batch_invariant_ops), gemm_kernel (FlashInfer triton/gemm)",
    ),
)
"""Matrix products outside MoE; preparation of weights is none."""
