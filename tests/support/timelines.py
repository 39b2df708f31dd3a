"""Random timelines of one rank: ranges, launch calls and kernels that overlap, nest, cross and lack parts of themselves."""

from __future__ import annotations

import traces
from hypothesis import strategies as st

KERNELS = {
    "nvjet_tst_128x64_64x9_1x2_h_bz_coopA_TNT": "gemm",
    "fused_moe_kernel": "moe",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)": (
        "other_compute"
    ),
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "allreduce",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "other_comm",
}
RANGES = ("spec.draft", "spec.verify", "spec.draft_extend", "spec.cycle", "spec.decode", "spec.prefill", "spec.sample")
CALLS = ("cudaLaunchKernel", "cudaGraphLaunch", "cuGraphLaunch", "cudaMemcpyAsync")


instant = st.integers(0, 120)
length = st.integers(0, 40)
thread = st.sampled_from([1, 1, 1, 2])
some_ranges = st.lists(
    st.builds(
        lambda name, s, d, tid: traces.phase(name, s, s + d if d is not None else None, tid=tid),
        st.sampled_from(RANGES),
        instant,
        st.one_of(length, length, st.none()),
        thread,
    ),
    min_size=0,
    max_size=8,
)
some_launches = st.lists(
    st.builds(
        lambda n, s, c, tid: traces.launch(n, s, c, tid=tid), st.sampled_from(CALLS), instant, st.integers(1, 6), thread
    ),
    max_size=6,
    unique_by=lambda row: row["correlation"],
)
some_kernels = st.lists(
    st.builds(
        lambda name, s, d, c, q, kind: traces.kernel(name, s, s + d if d is not None else None, c, stream=q, kind=kind),
        st.sampled_from(sorted(KERNELS)),
        instant,
        st.one_of(length, length, length, st.none(), st.just(-1)),
        st.one_of(st.integers(1, 7), st.none()),
        st.sampled_from([7, 7, 13, 20]),
        st.sampled_from(["kernel", "kernel", "kernel", "memcpy", "memset"]),
    ),
    max_size=14,
)

some_rows = st.tuples(some_ranges, some_launches, some_kernels).flatmap(
    lambda t: st.permutations([*t[0], *t[1], *t[2]])
)
"""Rows for ``traces.events``, in any order."""
