"""What the name of a communication kernel tells."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from specschema.communication import FAMILIES, CollectiveKernel, describe, family_of
from specschema.kernel_classes import classify
from specschema.phases import COMMUNICATION_BUCKETS

_NAMES = [
    row["name"]
    for row in csv.DictReader(io.StringIO(Path(__file__).with_name("kernel_names.csv").read_text(encoding="utf-8")))
]
_ANON = "(anonymous namespace)"


@pytest.mark.parametrize(
    ("name", "operation", "algorithm", "protocol", "dtype", "library"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "allreduce", "ring", "LL", "bf16", "nccl"),
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL128(x)", "allreduce", "tree", "LL128", "bf16", "nccl"),
        ("ncclDevKernel_AllReduce_Sum_f8e4m3_COLLNET_DIRECT_SIMPLE(x)",
         "allreduce", "collnet direct", "SIMPLE", "f8e4m3", "nccl"),
        ("ncclDevKernel_AllReduce_Sum_bf16_NVLS_TREE_SIMPLE(x)", "allreduce", "nvls tree", "SIMPLE", "bf16", "nccl"),
        ("ncclDevKernel_AllReduce_Sum_bf16_NVLS(x)", "allreduce", "nvls", None, "bf16", "nccl"),
        ("ncclDevKernel_AllGather_PAT_SIMPLE(x)", "allgather", "pat", "SIMPLE", None, "nccl"),
        ("ncclDevKernel_ReduceScatter_Sum_u8_RING_LL(x)", "reducescatter", "ring", "LL", "u8", "nccl"),
        ("ncclDevKernel_Generic_4(x)", None, None, None, None, "nccl"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "sendrecv", "ring", "SIMPLE", "i8", "nccl"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "allreduce", "ring", "LL", "f32", "nccl"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclWorkElem)", "allreduce", "ring", "LL", "f32", "nccl"),
        ("nccldevkernel_allreduce_sum_f16_ring_ll", "allreduce", "ring", "LL", "f16", "nccl"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)",
         "allreduce", "RSxLDMC_AGxSTMC", None, "bf16", "nccl symmetric"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16(x)", "allreduce", "AGxLL_R", "LL", "bf16", "nccl symmetric"),
        ("ncclSymDevKernel_AllGather_STMC(x)", "allgather", "STMC", None, None, "nccl symmetric"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*)",
         "allreduce", "one-shot", None, "bf16", "custom all-reduce"),
        ("_ZN6sglang26cross_device_reduce_1stageI13__nv_bfloat16Li8EEEvPNS_8RankDataE",
         "allreduce", "one-shot", None, "bf16", "custom all-reduce"),
        ("void vllm::cross_device_reduce_2stage<__half, 4>(vllm::RankData*)",
         "allreduce", "two-shot", None, "f16", "custom all-reduce"),
        (f"void {_ANON}::all_reduce_kernel<{_ANON}::AllReducePushImpl<__nv_bfloat16, 2u, true>, 2u, 1>(P<2u>)",
         "allreduce", "one-shot", "push", "bf16", "custom all-reduce"),
        (f"void {_ANON}::all_reduce_kernel<{_ANON}::AllReducePullImpl<__nv_bfloat16, 8u, (M)0, true>, 2>(P)",
         "allreduce", "two-shot", "pull", "bf16", "custom all-reduce"),
        (f"void {_ANON}::nvlink_push_kernel<__nv_bfloat16, ({_ANON}::Primitive)3, 8u, true>(P<8u>)",
         "allreduce", None, "push", "bf16", "custom all-reduce"),
        (f"void {_ANON}::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 8>(c10::BFloat16**)",
         "allreduce", "two-shot", None, "bf16", "torch symmetric memory"),
        (f"void {_ANON}::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
         "allreduce", "multimem", None, "bf16", "torch symmetric memory"),
        ("void trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1, __nv_bfloat16, 8, true>(P)",
         "allreduce", "one-shot", "lamport", "bf16", "trtllm fusion"),
        ("void ar_fusion::moe::moefinalize_allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 8>(P)",
         "allreduce", "one-shot", "lamport", "bf16", "trtllm fusion"),
        ("void sglang::allreduce_1shotLL_1node<__nv_bfloat16>(P)", "allreduce", "one-shot", "LL", "bf16", "mscclpp"),
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "dispatch", None, None, None, "deepep"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 8>(P)", "combine", None, None, "bf16", "deepep"),
    ],
)  # fmt: skip
def test_describe(
    name: str,
    operation: str | None,
    algorithm: str | None,
    protocol: str | None,
    dtype: str | None,
    library: str,
) -> None:
    assert describe(name) == CollectiveKernel(operation, algorithm, protocol, dtype, library)


@pytest.mark.parametrize(
    "name", ["fused_moe_kernel", "void at::native::reduce_kernel<512, 1>(int)", "void blockAllReduceSum<float>(float*)"]
)
def test_no_communication(name: str) -> None:
    assert describe(name) == CollectiveKernel(None, None, None, None, None)


def test_description_and_class_agree() -> None:
    for name in _NAMES:
        found = classify(name)
        assert (family_of(name) is not None and not name.startswith("triton_")) == (
            found.bucket in COMMUNICATION_BUCKETS
        ), name
        assert (describe(name).operation == "allreduce") == (found.bucket == "allreduce"), name


def test_every_family_has_a_name() -> None:
    found = {family_of(name) for name in _NAMES}
    assert [family.pattern for family in FAMILIES if family not in found] == []
