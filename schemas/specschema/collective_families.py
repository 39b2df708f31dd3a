"""Every kernel family known to move data between ranks, in the order in which it is tried."""

from __future__ import annotations

from typing import Final

from specschema.collective_families_engines import ENGINES
from specschema.collective_family import ALLREDUCE, Family

_NCCL_NAMES: Final = "NCCL 2.30 src/device/generate.py; ncclKernel_ up to 2.18, ncclFooRingLLKernel up to 2.12"
_NCCL: Final = r"\bnccl(?:symk?|dev)*kernel_"
_SYMMETRIC: Final = r"\bncclsymk?devkernel_"
_SYMMETRIC_NAMES: Final = "NCCL 2.27 to 2.30 src/device/symmetric/generate.py"
_DEEPEP: Final = "deepseek-ai/DeepEP csrc/kernels and its descendants in NIXL and Mooncake"
_EP: Final = (
    "ROCm/mori EpDispatch*, EpCombine*; perplexityai pplx-kernels and pplx-garden a2a_dispatch_*, a2a_combine_*"
)
_ITSELF: Final = (
    "the function calls itself so; a kernel that contains a collective is one (fused with norm, finalize or GEMM)"
)

NCCL: Final = (
    # NCCL, symmetric-memory kernels first: their operation sits in the same place.
    Family(_SYMMETRIC + "allreduce", "nccl symmetric", ALLREDUCE, origin=_SYMMETRIC_NAMES),
    Family(_SYMMETRIC + "allgather", "nccl symmetric", "allgather", origin=_SYMMETRIC_NAMES),
    Family(_SYMMETRIC + "reducescatter", "nccl symmetric", "reducescatter", origin=_SYMMETRIC_NAMES),
    Family(_SYMMETRIC, "nccl symmetric", None, origin=_SYMMETRIC_NAMES),
    Family(_NCCL + r"allreduce|\bncclallreduce\w*kernel", "nccl", ALLREDUCE, origin=_NCCL_NAMES),
    Family(_NCCL + r"allgather|\bncclallgather\w*kernel", "nccl", "allgather", origin=_NCCL_NAMES),
    Family(_NCCL + r"reducescatter|\bncclreducescatter\w*kernel", "nccl", "reducescatter", origin=_NCCL_NAMES),
    Family(_NCCL + r"broadcast|\bncclbroadcast\w*kernel", "nccl", "broadcast", origin=_NCCL_NAMES),
    Family(_NCCL + r"alltoall", "nccl", "alltoall", origin=_NCCL_NAMES),
    Family(_NCCL + r"sendrecv|\bncclsendrecv\w*kernel", "nccl", "sendrecv", origin=_NCCL_NAMES),
    Family(_NCCL + r"reduce|\bncclreduce\w*kernel", "nccl", "reduce", origin=_NCCL_NAMES),
    Family(r"\bnccl\w*kernel|\brccl_main_kernel|\bmscclkernel", "nccl", None, origin=_NCCL_NAMES + "; RCCL"),
    Family(r"\bonerankreduce", "nccl", "reduce", origin="NCCL src/device/onerank.cu: a group of one rank"),
)
"""NCCL and RCCL."""

EXCHANGES: Final = (
    # Expert parallelism: all-to-all of tokens.
    Family(
        r"\b(?:deep_ep|nixl_ep|mooncake)::(?:\w+::)*(?:hybrid_)?dispatch|"
        r"\b(?:hybrid_)?dispatch_(?:impl|copy_epilogue_impl)$",
        "deepep",
        "dispatch",
        None,
        None,
        _DEEPEP,
    ),
    Family(
        r"\b(?:deep_ep|nixl_ep|mooncake)::(?:\w+::)*(?:hybrid_)?combine|\b(?:hybrid_)?combine_(?:impl|"
        r"reduce_epilogue_impl)$",
        "deepep",
        "combine",
        None,
        None,
        _DEEPEP,
    ),
    Family(
        r"\bdeep_ep::|\bnotify_dispatch|\bcached_notify|\bget_dispatch_layout|\bclean_low_latency_buffer",
        "deepep",
        "dispatch setup",
        None,
        None,
        _DEEPEP,
    ),
    Family(
        r"\bmoea2adispatch|\bmoea2aprepare",
        "trtllm all-to-all",
        "dispatch",
        None,
        None,
        "FlashInfer 0.7 communicationKernels/moeAlltoAllKernels.cu",
    ),
    Family(
        r"\bmoea2acombine|\bmoea2a\w*kernel",
        "trtllm all-to-all",
        "combine",
        None,
        None,
        "FlashInfer 0.7 communicationKernels/moeAlltoAllKernels.cu",
    ),
    Family(
        r"\bmoe\w*all_?to_?all|\bkernel_flashinfer_mnnvl_moe_alltoall|\balltoallmetadatadevice|\bcomputesendrecv",
        "trtllm all-to-all",
        "alltoall",
        None,
        None,
        "FlashInfer 0.7 trtllm_alltoall_prepare.cu, trtllm_alltoall.cuh",
    ),
    Family(
        r"\bhelixalltoallkernel|\b_dcp_a2a_|\bkernel_cake_dcp_alltoall",
        "context parallel all-to-all",
        "alltoall",
        None,
        None,
        "FlashInfer 0.7 helixAllToAll.cu; vLLM 0.26 v1/attention/ops/dcp_alltoall.py",
    ),
    Family(
        r"\bcombine_(?:publish|reduce|tail)_kernel",
        "push all-to-all",
        "combine",
        None,
        None,
        "FlashInfer 0.7 moe_ep push_style_megamoe/src/a2a/sm90_push_a2a_ops.cu",
    ),
    Family(
        r"\bep_?dispatch\w*kernel|\ba2a_dispatch_|\bpplx::(?:\w+::)*dispatch",
        "expert all-to-all",
        "dispatch",
        None,
        None,
        _EP,
    ),
    Family(
        r"\bep_?combine\w*kernel|\ba2a_combine_|\bpplx::(?:\w+::)*combine",
        "expert all-to-all",
        "combine",
        None,
        None,
        _EP,
    ),
    # NVSHMEM and PyTorch's operators on it.
    Family(
        r"\bexchangesplitandoffset|\balltoallv",
        "torch nvshmem",
        "alltoall",
        None,
        None,
        "PyTorch symm_mem/nvshmem_extension.cu",
    ),
    Family(
        r"\bnvshmemi?_|\b\w*(?:barrier|sync|broadcast|fcollect|alltoall|rdxn|reduce|reducescatter)_on_stream_kernel",
        "nvshmem",
        None,
        None,
        None,
        "NVIDIA NVSHMEM src/device/launch: collectives on a stream",
    ),
    # The function calls itself a collective. Reductions within a warp, a block or a cluster are not between ranks.
    Family(
        r"(?<!warp_)(?<!block_)(?<!cta_)(?<!cluster_)(?<!warp)(?<!block)all_?reduce",
        "other",
        ALLREDUCE,
        None,
        None,
        _ITSELF,
    ),
    Family(
        r"(?<!warp_)(?<!block_)(?<!cta_)(?<!cluster_)(?<!warp)(?<!block)all_?gather(?!_?matmul)",
        "other",
        "allgather",
        None,
        None,
        _ITSELF,
    ),
    Family(
        r"(?<![a-z])(?<!warp_)(?<!block_)(?<!cta_)(?<!cluster_)reduce_?scatter",
        "other",
        "reducescatter",
        None,
        None,
        _ITSELF,
    ),
    Family(r"all_?to_?all(?!_?attention)", "other", "alltoall", None, None, _ITSELF),
)
"""Expert parallelism, NVSHMEM, and functions that call themselves a collective."""

FAMILIES: Final = (*NCCL, *ENGINES, *EXCHANGES)
"""The first family whose pattern is found decides."""
