"""Kernel classes of compilers and general libraries: Inductor, ATen, CUB, FBGEMM, the driver's copy kernels."""

from __future__ import annotations

from typing import Final

from specschema.kernel_rule import KernelRule

_INDUCTOR: Final = "PyTorch torch/_inductor/codegen/triton.py: triton_<kind>_fused_<operators>_<n>"
_TEMPLATE: Final = "PyTorch torch/_inductor/select_algorithm.py: triton_tem_fused_<operators>_<n>"
_ATEN: Final = "PyTorch aten/src/ATen/native/cuda/"
_CUB: Final = "NVIDIA/cccl cub/device, also as at_cuda_detail::cub; rocPRIM and hipCUB on ROCm"
_FBGEMM: Final = "pytorch/FBGEMM fbgemm_gpu"

GENERATED: Final = (
    KernelRule(
        r"^(?:memcpy|memset) |^\[?cuda mem(?:cpy|set)",
        "memcpy",
        "copy",
        "Kineto and Nsight Systems names of copies and fills",
        True,
    ),
    KernelRule(
        r"^memcpy\d+(?:_post)?$", "other_compute", "copy", "CUDA driver: a copy node of a graph that ran as a kernel"
    ),
    KernelRule(r"^triton_(?:tem|mm|bmm)_\w*flex_attention", "attention", "flex attention", _TEMPLATE),
    KernelRule(r"^triton_tem_\w*grouped_mm", "moe", "experts", _TEMPLATE),
    KernelRule(r"^triton_tem_\w*(?:mm|convolution)|^triton_(?:mm|bmm)(?:_|$)", "gemm", "inductor gemm", _TEMPLATE),
    KernelRule(r"^triton_(?:poi|red|per|for|split_scan)_", "other_compute", "inductor", _INDUCTOR),
)
"""Names written by a compiler or by the driver."""

LIBRARIES: Final = (
    KernelRule(r"\bat::native::\w*tinygemm", "gemm", "quantised gemm", _ATEN + "int4mm.cu"),
    KernelRule(
        r"\bat::native::(?:\w+::)*\w*(?:layer_?norm|rms_?norm|batch_?norm|group_?norm|rowwisemoments|"
        r"gammabetabackward)",
        "other_compute",
        "norm",
        _ATEN + "layer_norm_kernel.cu, group_norm_kernel.cu, Normalization.cuh",
    ),
    KernelRule(
        r"\bcunn_softmax|\bsoftmax_warp_(?:forward|backward)|\bat::native::(?:\w+::)*\w*softmax",
        "other_compute",
        "softmax",
        _ATEN + "SoftMax.cu, PersistentSoftmax.cuh",
    ),
    KernelRule(
        r"\b(?:sbtopk|mbtopk)::|\bgathertopk|\bbitonicsort|\bradixsortkvinplace|"
        r"\bat::native::(?:\w+::)*\w*(?:sort|topk|gathermedian|gatherkthvalue)",
        "other_compute",
        "sort",
        _ATEN + "TensorTopK.cu, Sort.cu, SortStable.cu",
    ),
    KernelRule(
        r"\bat::native::(?:\w+::)*\w*(?:distribution_|random|philox|sample_?multinomial|multinomial|"
        r"bernoulli|dropout)",
        "other_compute",
        "random",
        _ATEN + "DistributionTemplates.h, MultinomialKernel.cu, Dropout.cu",
    ),
    KernelRule(r"\bcatarraybatchedcopy", "other_compute", "copy", _ATEN + "Shape.cu"),
    KernelRule(
        r"\bmulti_tensor_apply_kernel",
        "other_compute",
        "elementwise",
        _ATEN + "MultiTensorApply.cuh (foreach operators)",
    ),
    KernelRule(
        r"\bvectorized_gather_kernel|\bindex_elementwise_kernel|\bindexselect(?:small|large)index|"
        r"\bindexing_backward|\bindexfunc(?:small|large)index|"
        r"\b_scatter_gather_elementwise_kernel|\bat::native::(?:\w+::)*(?:\w*scatter|\w*gather|"
        r"\w*index|write_indices|flag_kernel|\w*embedding|take_)",
        "other_compute",
        "indexing",
        _ATEN + "IndexKernel.cu, Indexing.cu, ScatterGatherKernel.cu, Embedding.cu",
    ),
    KernelRule(
        r"\bat::native::(?:\w+::)*reduce_kernel|\bat::native::(?:\w+::)*\w*(?:cumsum|scan_)",
        "other_compute",
        "reduction",
        _ATEN + "Reduce.cuh, ScanUtils.cuh",
    ),
    KernelRule(
        r"(?:^|::)(?:vectorized_|unrolled_)?elementwise_kernel(?:_with_index|_manual_unroll|"
        r"_helper)?$|\bat::native::(?:\w+::)*\w*(?:triu_tril|elementwise|fill_|arange)",
        "other_compute",
        "elementwise",
        _ATEN + "CUDALoops.cuh, Loops.cuh, RangeFactories.cu, TriangularOps.cu",
    ),
    KernelRule(
        r"implicit_convolve|xmma_(?:fprop|dgrad|wgrad)|^cudnn::\w*conv|\bim2col|\bconv_depthwise",
        "other_compute",
        "convolution",
        "cuDNN and ATen convolutions (vision towers)",
    ),
    KernelRule(
        r"\b(?:dot_kernel|reduce_1block_kernel)<.*cublas", "other_compute", "reduction", "NVIDIA cuBLAS level 1", True
    ),
    KernelRule(r"^compute_cuda_kernel$", "other_compute", "indexing", _ATEN + "Repeat.cu (repeat_interleave)"),
    KernelRule(r"\bcub::|\brocprim::|\bhipcub::|\bthrust::", "other_compute", "sort and scan", _CUB),
    KernelRule(
        r"^split_embedding_|\bpermute_pooled_embs|^bounds_check_indices|^linearize_(?:cache_)?indices|"
        r"^linearize_index_kernel|"
        r"\bfbgemm_gpu::(?:\w+::)*(?:permute_|_offsets_range|\w*embedding|\w*jagged|\w*index_select|\w*group_index)",
        "other_compute",
        "embedding",
        _FBGEMM + " codegen and src: embedding tables, sparse and jagged operators",
    ),
    KernelRule(
        r"\bfbgemm_gpu::(?:\w+::)*\w*(?:fp8|quantize|hfp8|int8|float)",
        "other_compute",
        "quantisation",
        _FBGEMM + " src/quantize_ops",
    ),
)
"""Kernels of libraries whose namespace or file proves what they do; none of them is a model's attention, MoE or GEMM
kernel by name (ATen's flash attention is ``pytorch_flash::``, its GEMMs are cuBLAS's and CUTLASS's)."""
