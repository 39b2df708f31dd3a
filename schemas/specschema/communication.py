"""Kernels that move data between ranks: which collective, algorithm, protocol, element type and library, by name alone.

The one place that knows their names. ``kernel_rules`` takes its communication rules from FAMILIES; ``describe`` reads
the finer points a name tells. A name never tells the size or the group: those come from the framework or the node map.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Final, NamedTuple

from specschema.kernel_function import function_of

ALLREDUCE: Final = "allreduce"


class Family(NamedTuple):
    """Kernels of one library that do one thing.

    ``pattern`` is searched, without regard to case, in the function's qualified name, or in the whole name where a
    template argument says which collective it is. ``None`` = the name does not say.
    """

    pattern: str
    library: str
    operation: str | None
    algorithm: str | None = None
    protocol: str | None = None
    origin: str = ""
    whole_name: bool = False


class CollectiveKernel(NamedTuple):
    """What a kernel's name says of the collective it runs. None: the name does not say; all None: no communication."""

    operation: str | None
    algorithm: str | None
    protocol: str | None
    dtype: str | None
    library: str | None


_NCCL_NAMES: Final = "NCCL 2.30 src/device/generate.py; ncclKernel_ up to 2.18, ncclFooRingLLKernel up to 2.12"
_NCCL: Final = r"\bnccl(?:symk?|dev)*kernel_"
_SYMMETRIC: Final = r"\bncclsymk?devkernel_"
_SYMMETRIC_NAMES: Final = "NCCL 2.27 to 2.30 src/device/symmetric/generate.py"
_SGLANG_JIT: Final = "SGLang 0.5.12 to 0.5.23 custom_all_reduce.cuh (JIT kernels)"
_SGLANG_NVLINK: Final = (
    "SGLang 0.5.23 kernels/jit/csrc/distributed: Primitive 1 = reduce-scatter, 2 = all-gather, 3 = both"
)
_TORCH: Final = "PyTorch torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"
_MSCCLPP: Final = "microsoft/mscclpp src/ext/collectives"
_TRTLLM: Final = "FlashInfer include/flashinfer/comm/trtllm_allreduce_fusion.cuh, trtllm_moe_allreduce_fusion.cuh"
_MNNVL: Final = "FlashInfer include/flashinfer/comm/trtllm_mnnvl_allreduce.cuh; vLLM 0.33 (binary symbols)"
_DEEPEP: Final = "deepseek-ai/DeepEP csrc/kernels and its descendants in NIXL and Mooncake"
_IPC: Final = "FlashInfer 0.7 include/flashinfer/comm/mixed_comm.cuh, pcie_ipc_*.cuh"
_EP: Final = (
    "ROCm/mori EpDispatch*, EpCombine*; perplexityai pplx-kernels and pplx-garden a2a_dispatch_*, a2a_combine_*"
)
_ITSELF: Final = (
    "the function calls itself so; a kernel that contains a collective is one (fused with norm, finalize or GEMM)"
)
_K3: Final = "SGLang 0.5.17 kernels/jit/csrc/kimi_k3/comm"

FAMILIES: Final = (
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
    Family(
        r"\bminimax_reduce_rms\w*lamport", "trtllm fusion", ALLREDUCE, None, "lamport", "vLLM 0.33 (binary symbols)"
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
"""Every kernel family known to move data between ranks; the first whose pattern is found decides."""

_NCCL_ALGORITHMS: Final = {
    "ring": "ring",
    "tree": "tree",
    "collnet_direct": "collnet direct",
    "collnet_chain": "collnet chain",
    "collnet": "collnet",
    "nvls_tree": "nvls tree",
    "nvls": "nvls",
    "pat": "pat",
}
_NCCL_ALGORITHM: Final = re.compile(
    r"_(ring|tree|collnet_direct|collnet_chain|collnet|nvls_tree|nvls|pat)(?=_|$)|nccl[a-z]+?(ring|"
    r"tree|collnet)(?=ll|simple|kernel)",
    re.IGNORECASE,
)
_NCCL_PROTOCOL: Final = re.compile(
    r"_(ll128|ll|simple)(?=_|$)|(?:ring|tree|collnet)(ll128|ll|simple)kernel", re.IGNORECASE
)
_SYMMETRIC_ALGORITHM: Final = re.compile(
    r"devkernel_(?:allreduce|allgather|reducescatter)_(\w+?)(?=_(?:sum|min|max|avg|prod)|$)", re.IGNORECASE
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_:]+")
_DTYPES: Final = {
    "bf16": "bf16",
    "__nv_bfloat16": "bf16",
    "__hip_bfloat16": "bf16",
    "c10::bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "f16": "f16",
    "half": "f16",
    "__half": "f16",
    "c10::half": "f16",
    "f32": "f32",
    "float": "f32",
    "f64": "f64",
    "double": "f64",
    "f8e4m3": "f8e4m3",
    "f8e5m2": "f8e5m2",
    "i8": "i8",
    "int8_t": "i8",
    "u8": "u8",
    "uint8_t": "u8",
    "i32": "i32",
    "u32": "u32",
    "i64": "i64",
    "u64": "u64",
}
_MANGLED_DTYPES: Final = (
    ("13__nv_bfloat16", "bf16"),
    ("n3c108bfloat16", "bf16"),
    ("6__half", "f16"),
    ("n3c104half", "f16"),
)


@cache
def _compiled() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(family.pattern, re.IGNORECASE) for family in FAMILIES)


def family_of(name: str) -> Family | None:
    """The family whose kernels bear this name, or None: not known to move data between ranks."""
    function = function_of(name)
    for family, pattern in zip(FAMILIES, _compiled(), strict=True):
        if pattern.search(name if family.whole_name else function):
            return family
    return None


def _nccl_dtype(function: str) -> str | None:
    """Element type among the words of an NCCL function name; int8_t and uint8_t hold an underscore of their own."""
    words = function.lower().split("_")
    joined = [first + "_" + second for first, second in itertools.pairwise(words)]
    for word in [*joined, *words]:
        if word in _DTYPES:
            return _DTYPES[word]
    return None


def _template_dtype(name: str) -> str | None:
    """First element type among the template arguments or parameters, for kernels that are templates of it."""
    lowered = name.lower()
    for mangled, dtype in _MANGLED_DTYPES:
        if lowered.startswith("_z") and mangled in lowered:
            return dtype
    start = lowered.find("<")
    for token in _TOKEN.findall(lowered[start:]) if start >= 0 else ():
        if token in _DTYPES:
            return _DTYPES[token]
    return None


@cache
def describe(name: str) -> CollectiveKernel:
    """What a communication kernel's name says.

    Args:
        name: kernel name, demangled or mangled.

    Returns:
        Operation (``allreduce``, ``allgather``, ``dispatch``, ...), algorithm (``ring``, ``tree``, ``one-shot``,
        ``multimem``, or NCCL's own token such as ``RSxLDMC_AGxSTMC``), protocol (``LL``, ``LL128``, ``SIMPLE``,
        ``lamport``, ``push``, ...), element type (``bf16``, ...) and library; None where the name does not say.
    """
    family = family_of(name)
    if family is None:
        return CollectiveKernel(None, None, None, None, None)
    function = function_of(name)
    algorithm, protocol, dtype = family.algorithm, family.protocol, None
    if family.library == "nccl":
        found = _NCCL_ALGORITHM.search(function)
        algorithm = _NCCL_ALGORITHMS[(found.group(1) or found.group(2)).lower()] if found else None
        found = _NCCL_PROTOCOL.search(function)
        protocol = (found.group(1) or found.group(2)).upper() if found else None
        dtype = _nccl_dtype(function)
    elif family.library == "nccl symmetric":
        found = _SYMMETRIC_ALGORITHM.search(function)
        algorithm = found.group(1) if found else None
        protocol = "LL" if algorithm and "ll" in re.split(r"[x_]", algorithm.lower()) else None
        dtype = _nccl_dtype(function)
    else:
        dtype = _template_dtype(name)
    if "allreducepushimpl" in name.lower():
        protocol = "push"
    elif "allreducepullimpl" in name.lower():
        protocol = "pull"
    return CollectiveKernel(family.operation, algorithm, protocol, dtype, family.library)
