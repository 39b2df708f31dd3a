"""Random timelines of one rank: ranges, launch calls and kernels that overlap, nest, cross and lack parts of themselves."""

from __future__ import annotations

from typing import Any

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

MODULES = (
    ("model.layers.0.mlp.experts", "FusedMoE"),
    ("model.layers.0.self_attn.attn", "RadixAttention"),
    ("model.layers.0.self_attn.qkv_proj", "QKVParallelLinear"),
    ("model.layers.0.input_layernorm", "RMSNorm"),
    ("model.layers.0", "DecoderLayer"),
    ("model.logits_processor", "LogitsProcessor"),
    (None, None),
)
_collective = st.sampled_from([{}, {"op": "allreduce", "elements": 8, "group": "tp:0", "group_ranks": [0, 1]}])
_captured = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "kernel", "kernel", "memcpy", "event_record"]),
        st.sampled_from(sorted(KERNELS)),
        st.booleans(),
        st.sampled_from(MODULES),
        _collective,
    ),
    min_size=1,
    max_size=5,
)
_change = st.sampled_from(["", "", "", "", "lost", "cut", "renamed", "turned", "devices"])
_names_ids = st.sampled_from(["order", "graph", "ids", "ids", "other graph"])
_replays = st.lists(
    st.tuples(st.integers(0, 2), _change, _names_ids, st.integers(0, 90), st.integers(0, 4), st.booleans()),
    min_size=1,
    max_size=6,
)


@st.composite
def some_replays(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows of a rank with captured graphs: their nodes, and replays of them that lack, rename or turn round some of their activities, or
    run on two devices."""
    graphs = draw(st.lists(_captured, min_size=1, max_size=3))
    rows: list[dict[str, Any]] = []
    for number, captured in enumerate(graphs):
        for ordinal, (kind, name, told, (module, module_class), facts) in enumerate(captured):
            row = {
                "kind": "node",
                "name": name if told and kind == "kernel" else kind,
                "pid": 1,
                "start_ns": 0,
                "dur_ns": 0,
            }
            where = {
                "graph_id": number,
                "node": ordinal,
                "node_type": kind,
                "module": module,
                "module_class": module_class,
            }
            rows.append({**row, **where, **(facts if "Reduce" in name else {})})
    for number, (which, change, tells, begin, step, known) in enumerate(draw(_replays)):
        graph = which % len(graphs)
        shown = [(i, kind, name) for i, (kind, name, *_) in enumerate(graphs[graph]) if kind != "event_record"]
        if change == "lost":
            shown = shown[1:]
        elif change == "cut":
            shown = shown[:-1]
        elif change == "turned":
            shown = shown[::-1]
        if known:
            rows.append(traces.launch("cudaGraphLaunch", begin, 100 + number))
        for place, (ordinal, kind, name) in enumerate(shown):
            start = begin + 2 + step * place
            ids = {"graph_id": graph if tells in ("graph", "ids") else 7} if tells != "order" else {}
            ids |= {"node": ordinal} if tells == "ids" else {}
            name = "another" if change == "renamed" and not place else name
            row = traces.kernel(name, start, start + 3, 100 + number, stream=7 + place % 2, kind=kind, **ids)
            rows.append({**row, "device": place // 2 % 2 if change == "devices" else 0})
    return rows
