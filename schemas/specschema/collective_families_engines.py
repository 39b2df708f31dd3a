"""Kernel families of the serving engines' own all-reduces, plain and fused, and of multicast memory."""

from __future__ import annotations

from typing import Final

from specschema.collective_family import ALLREDUCE, Family

_SGLANG_JIT: Final = "SGLang 0.5.12 to 0.5.23 custom_all_reduce.cuh (JIT kernels)"
_SGLANG_SHOT: Final = (
    "SGLang 0.5.17 custom_all_reduce.cuh: the last template argument is the number of shots; recorded on H200"
)
_SGLANG_NVLINK: Final = (
    "SGLang 0.5.23 kernels/jit/csrc/distributed: Primitive 1 = reduce-scatter, 2 = all-gather, 3 = both"
)
_TORCH: Final = "PyTorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"
_MSCCLPP: Final = "microsoft/mscclpp src/ext/collectives"
_TRTLLM: Final = "FlashInfer include/flashinfer/comm/trtllm_allreduce_fusion.cuh, trtllm_moe_allreduce_fusion.cuh"
_MNNVL: Final = "FlashInfer include/flashinfer/comm/trtllm_mnnvl_allreduce.cuh; vLLM 0.33 (binary symbols)"
_IPC: Final = "FlashInfer 0.7 include/flashinfer/comm/mixed_comm.cuh, pcie_ipc_*.cuh"
_K3: Final = "SGLang 0.5.17 kernels/jit/csrc/kimi_k3/comm"

ENGINES: Final = (
    # The engines' own all-reduce kernels.
    Family(
        r"\bcross_device_reduce_1stage",
        "custom all-reduce",
        ALLREDUCE,
        "one-shot",
        None,
        "vLLM csrc/custom_all_reduce.cuh; SGLang sgl-kernel; AITER",
    ),
    Family(
        r"\bcross_device_reduce_2stage",
        "custom all-reduce",
        ALLREDUCE,
        "two-shot",
        None,
        "vLLM csrc/custom_all_reduce.cuh; SGLang sgl-kernel; AITER",
    ),
    Family(r"\bcross_device_all_gather", "custom all-reduce", "allgather", None, None, "vLLM 0.33 (binary symbols)"),
    Family(
        r"\bcross_device_reduce_scatter", "custom all-reduce", "reducescatter", None, None, "vLLM 0.33 (binary symbols)"
    ),
    Family(
        r"\ball_reduce_(?:1|one_?)shot_push_kernel", "custom all-reduce", ALLREDUCE, "one-shot", "push", _SGLANG_JIT
    ),
    Family(
        r"\ball_reduce_(?:1|one_?)shot_(?:pull_)?kernel",
        "custom all-reduce",
        ALLREDUCE,
        "one-shot",
        "pull",
        _SGLANG_JIT,
    ),
    Family(
        r"\ball_reduce_(?:2|two_?)shot_push_kernel", "custom all-reduce", ALLREDUCE, "two-shot", "push", _SGLANG_JIT
    ),
    Family(
        r"\ball_reduce_(?:2|two_?)shot_(?:pull_)?kernel$",
        "custom all-reduce",
        ALLREDUCE,
        "two-shot",
        "pull",
        _SGLANG_JIT,
    ),
    Family(
        r"\ball_reduce_kernel<.*allreduce(?:push|pull)impl<.*,\s*1>\(",
        "custom all-reduce",
        ALLREDUCE,
        "one-shot",
        None,
        _SGLANG_SHOT,
        True,
    ),
    Family(
        r"\ball_reduce_kernel<.*allreduce(?:push|pull)impl<.*,\s*2>\(",
        "custom all-reduce",
        ALLREDUCE,
        "two-shot",
        None,
        _SGLANG_SHOT,
        True,
    ),
    Family(
        r"(?:^|::)all_reduce_kernel",
        "custom all-reduce",
        ALLREDUCE,
        None,
        None,
        "SGLang 0.5.17, recorded on H200 as all_reduce_kernel<AllReducePushImpl<...>>",
    ),
    Family(
        r"\bnvlink_(?:push|pull)_kernel.*primitive(?:\)|e)3",
        "custom all-reduce",
        ALLREDUCE,
        None,
        None,
        _SGLANG_NVLINK,
        True,
    ),
    Family(
        r"\bnvlink_(?:push|pull)_kernel.*primitive(?:\)|e)2",
        "custom all-reduce",
        "allgather",
        None,
        None,
        _SGLANG_NVLINK,
        True,
    ),
    Family(
        r"\bnvlink_(?:push|pull)_kernel.*primitive(?:\)|e)1",
        "custom all-reduce",
        "reducescatter",
        None,
        None,
        _SGLANG_NVLINK,
        True,
    ),
    Family(
        r"\bgemm_ag::|\bgemm_ag_gemv_kernel",
        "gemm all-gather",
        "allgather",
        "multimem",
        "lamport",
        _K3 + "/gemm_ag.cuh: a GEMV that multicasts its columns",
    ),
    Family(r"\bnvlink_(?:push|pull)_kernel", "custom all-reduce", None, None, None, _SGLANG_NVLINK),
    Family(
        r"\bspin_wait_kernel|\bbump_signal_kernel",
        "ipc all-to-all",
        "alltoall",
        None,
        None,
        "SGLang 0.5.23 kernels/jit/csrc/distributed/ipc_a2a.cuh",
    ),
    Family(
        r"\ballreduce_prototype_twoshot|\bquickreduce::|\bquick_?all_?reduce",
        "quick reduce",
        ALLREDUCE,
        "two-shot",
        None,
        "mk1-project/quickreduce in vLLM and SGLang for ROCm",
    ),
    Family(
        r"\bbeam::\w*(?:oneshot|twoshot)|\bbeam_all_reduce", "beam", ALLREDUCE, None, None, "vLLM 0.33 (binary symbols)"
    ),
    Family(r"\bbeam::finalizescatter", "beam", "reducescatter", None, None, "vLLM 0.33 (binary symbols)"),
    # MSCCL++.
    Family(
        r"\ballreduce_1shotll_[12]node",
        "mscclpp",
        ALLREDUCE,
        "one-shot",
        "LL",
        "SGLang sgl-kernel mscclpp_allreduce.cuh",
    ),
    Family(r"\ballreduce_ll_[12]node", "mscclpp", ALLREDUCE, None, "LL", "SGLang sgl-kernel mscclpp_allreduce.cuh"),
    Family(r"\ballreduce(?:fullmesh|packet|allpairs|nvls|rsag)", "mscclpp", ALLREDUCE, None, None, _MSCCLPP),
    Family(r"\ballgatherfullmesh", "mscclpp", "allgather", None, None, _MSCCLPP),
    Family(r"\bmscclpp\b", "mscclpp", None, None, None, _MSCCLPP),
    # All-reduce fused with the norm, the residual or the MoE finalize: all-reduce by rule.
    Family(r"\ballreduce_fusion_kernel_oneshot_lamport", "trtllm fusion", ALLREDUCE, "one-shot", "lamport", _TRTLLM),
    Family(r"\ballreduce_fusion_kernel_twoshot", "trtllm fusion", ALLREDUCE, "two-shot", None, _TRTLLM),
    Family(
        r"\bmoereduce_allreduce\w*lamport|\bmoefinalize_allreduce\w*lamport|"
        r"\bmoe_(?:finalize_)?all_?reduce\w*lamport",
        "trtllm fusion",
        ALLREDUCE,
        "one-shot",
        "lamport",
        _TRTLLM,
    ),
    Family(
        r"\bmoe_?reduce_all_?reduce|\bmoe_?finalize_all_?reduce|trtllm_(?:moe_)?allreduce|\bkernel_cake_trtllm_moe_",
        "trtllm fusion",
        ALLREDUCE,
        None,
        None,
        _TRTLLM,
    ),
    Family(r"\bminimax_reduce_rms", "trtllm fusion", ALLREDUCE, None, None, "vLLM 0.33 (binary symbols)"),
    Family(r"\boneshotallreduce\w*kernel", "trtllm mnnvl", ALLREDUCE, "one-shot", None, _MNNVL),
    Family(r"\btwoshotallreduce\w*kernel", "trtllm mnnvl", ALLREDUCE, "two-shot", None, _MNNVL),
    Family(
        r"\brmsnormlamport",
        "trtllm mnnvl",
        ALLREDUCE,
        "two-shot",
        "lamport",
        _MNNVL + "; second half of the two-shot kernel",
    ),
    Family(
        r"\ball_reduce_(?:push|pull)_(?:res|norm)|\ball_reduce_mhc_post",
        "custom all-reduce",
        ALLREDUCE,
        None,
        None,
        _K3,
    ),
    Family(
        r"\binkling_\w*all_reduce|\binkling_ar_",
        "custom all-reduce",
        ALLREDUCE,
        None,
        None,
        "SGLang 0.5.17 kernels/jit/csrc/inkling",
    ),
    Family(r"\bfused_reducescatter_allreduce|\bfused_allreduce_allgather", "mixed comm", ALLREDUCE, None, None, _IPC),
    Family(
        r"\battn_res_fused_(?:\w+_)?(?:ag|rs|pull)(?:_|$)|\bmuse_spark_all_gather_norm",
        "custom all-reduce",
        None,
        None,
        None,
        "SGLang 0.5.17 to 0.5.23 kernels/jit/csrc: gather or scatter fused with the residual and norm",
    ),
    # Multicast (NVLink SHARP) and PyTorch's symmetric memory.
    Family(
        r"\bmultimem_one_shot_(?:all_?)?reduce", "torch symmetric memory", ALLREDUCE, "one-shot multimem", None, _TORCH
    ),
    Family(
        r"\bmultimem_all_?reduce|\ball_?reduce_multimem|\binkling_\w*multimem",
        "torch symmetric memory",
        ALLREDUCE,
        "multimem",
        None,
        _TORCH,
    ),
    Family(r"\bmultimem_all_?gather", "torch symmetric memory", "allgather", "multimem", None, _TORCH),
    Family(r"\bmultimem_reduce_?scatter", "torch symmetric memory", "reducescatter", "multimem", None, _TORCH),
    Family(r"\bone_shot_all_?reduce", "torch symmetric memory", ALLREDUCE, "one-shot", None, _TORCH),
    Family(r"\btwo_shot_all_?reduce", "torch symmetric memory", ALLREDUCE, "two-shot", None, _TORCH),
    Family(r"\bmnnvl_\w*all_?reduce", "mnnvl", ALLREDUCE, None, None, "vLLM 0.33 (binary symbols)"),
    Family(r"\bmnnvl_\w*all_?gather", "mnnvl", "allgather", None, None, "vLLM 0.33 (binary symbols)"),
    Family(r"\bmnnvl_\w*reduce_?scatter", "mnnvl", "reducescatter", None, None, "vLLM 0.33 (binary symbols)"),
    Family(
        r"\bmnnvl_\w*barrier|\bbarrier_kernel$|\b_blockwise_barrier",
        "mnnvl",
        "barrier",
        None,
        None,
        "vLLM 0.33 (binary symbols); PyTorch CUDASymmetricMemory.cu",
    ),
    Family(
        r"\b_all_gather_kernel_inner|\b_multimem_st_128",
        "triton symmetric memory",
        "allgather",
        "multimem",
        None,
        "SGLang 0.5.17 srt/distributed/device_communicators/triton_symm_mem_ag.py",
    ),
    Family(
        r"\bdirect_dcp_\w*gather_multimem", "direct dcp", "allgather", "multimem", None, "vLLM 0.33 (binary symbols)"
    ),
    Family(
        r"(?:^|::)all_?reduce_(?:simple_)?kernel|\b_fp8_blockscale_2shot_kernel",
        "mixed comm",
        ALLREDUCE,
        None,
        None,
        _IPC,
    ),
    Family(r"(?:^|::)all_?gather_(?:\w+_)?kernel", "mixed comm", "allgather", None, None, _IPC + "; " + _K3),
    Family(r"(?:^|::)reduce_?scatter_(?:\w+_)?kernel", "mixed comm", "reducescatter", None, None, _IPC + "; " + _K3),
    Family(
        r"\bflat_push_kernel|\bipc_(?:topo_)?rsag|\bipc_tp2_|\bce_(?:wait|publish)_flag_kernel",
        "mixed comm",
        None,
        None,
        None,
        _IPC,
    ),
)
"""Custom, fused and multicast all-reduces and their kin."""
