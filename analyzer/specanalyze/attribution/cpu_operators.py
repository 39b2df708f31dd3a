"""CPU operators standing in for device work, in a trace marked ``device=cpu`` (design rule D11)."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from specanalyze.attribution.activities import (
    BUCKET_CODE,
    Activities,
    Launches,
    compute_code,
    mapped_bucket,
    mapped_subclass,
)
from specanalyze.attribution.eager_modules import with_eager_modules
from specanalyze.attribution.ranges import PHASE_CODE, Ranges
from specanalyze.attribution.replay_nodes import Placement
from specanalyze.columns import Ints, factorize, integers, of_kind
from specanalyze.intervals import EMPTY, by_priority
from specschema.phases import OUTSIDE

OPERATOR_CLASSES: Final[tuple[tuple[str, str, str], ...]] = (
    (r"all_?reduce", "allreduce", "c10d::allreduce_, gloo:all_reduce, vllm::all_reduce"),
    (r"^(c10d|gloo|nccl|_c10d_functional)\b", "other_comm", "torch.distributed's other operations"),
    (
        r"scaled_dot_product|attention",
        "attention",
        "aten::scaled_dot_product_*, vllm::unified_attention*, _C::*attention*",
    ),
    (r"moe|expert|topk_softmax|grouped_(mm|topk)", "moe", "vllm::moe_forward, aten::_grouped_mm"),
    (r"^aten::(addmm|mm|bmm|baddbmm|addbmm|linear|matmul|mv|addmv|einsum)\b", "gemm", "aten's matrix products"),
    (r"^(mkldnn|onednn)::.*(linear|matmul)|^_C::onednn_mm", "gemm", "oneDNN's matrix products"),
    (r"^aten::(copy_|_to_copy|clone|contiguous|_copy_from)\b", "memcpy", "aten's copies"),
    (
        r"^(aten|prims|torchvision|vllm|_C|_C_cache_ops|quantized)::",
        "other_compute",
        "any other operator of a known library",
    ),
)
"""(pattern, bucket, what it is). First match wins; an operator that none knows is unclassified."""


def join_cpu_operators(events: pl.DataFrame, ranges: Ranges) -> Activities:
    """Activities made of the operators of the threads that have phase ranges: the innermost operator has the instant.

    There are no launch calls, so no graph gap and no launch time; what the worker's thread does outside operators is
    host time. Operators of other threads (intra-op workers, gloo's own threads) are not counted.

    Args:
        events: one rank's events, ``op`` rows recorded with CPU activity.
        ranges: the rank's recognised ranges.
    """
    rows = of_kind(events, ("op",))
    pid, tid = integers(rows, "pid", 0), integers(rows, "tid", 0)
    start, duration = integers(rows, "start_ns", 0), integers(rows, "dur_ns", -1)
    thread = np.full(rows.height, -1, dtype=np.int64)
    for number, (p, t) in enumerate(ranges.threads):
        thread[(pid == p) & (tid == t)] = number
    parts = []
    for which in range(len(ranges.threads)):  # one turn a thread
        mine = np.flatnonzero((thread == which) & (duration >= 0))
        s, e = start[mine], start[mine] + duration[mine]
        inner_first = np.lexsort((-mine, e - s, -s))
        priority = np.empty(len(mine), dtype=np.int64)
        priority[inner_first] = np.arange(len(mine))
        own = by_priority(s, e, priority)
        parts.append((own.start, own.end, mine[own.owner], np.full(len(own.start), which)))
    columns = [np.concatenate(c) for c in zip(*parts, strict=True)] if parts else [EMPTY] * 4
    begin, end, row, thread_of = (c.astype(np.int64) for c in columns)
    name, names = factorize(rows, "name")
    classes = [next((b for pattern, b, _ in OPERATOR_CLASSES if re.search(pattern, n)), None) for n in names]
    bucket_of_name = np.array([BUCKET_CODE[b or "other_compute"] for b in classes] + [0], dtype=np.int64)
    known = np.array([b is not None for b in classes] + [False])
    of_range = ranges.innermost(thread_of, begin)
    phase = np.append(ranges.phase, PHASE_CODE[OUTSIDE])[of_range]
    bucket = bucket_of_name[name[row]]
    subclass, subclasses = np.zeros(len(begin), dtype=np.int64), ["operator"]
    placement, by_map = _modules(events, begin, pid[row], tid[row]), np.zeros(len(begin), dtype=bool)
    if placement is not None:
        bucket, by_map = mapped_bucket(bucket, placement)
        subclass, subclasses = mapped_subclass(subclass, subclasses, bucket, by_map & compute_code(bucket), placement)
    nobody = np.full(len(begin), -1, dtype=np.int64)
    none = Launches(EMPTY, EMPTY, EMPTY, EMPTY, EMPTY, np.empty(0, dtype=bool))
    return Activities(
        start=begin,
        end=end,
        stream=thread_of,
        bucket=bucket,
        phase=phase,
        launch=nobody,
        range=of_range,
        name=name[row],
        names=tuple(names),
        subclass=subclass,
        subclasses=tuple(subclasses),
        by_map=by_map,
        classified=known[name[row]] | by_map,
        row=row,
        rows=rows,
        launches=none,
        graph_call_start=EMPTY,
        graph_call_range=EMPTY,
        invalid=int((duration < 0).sum()),
        cut=0,
        placement=placement,
    )


def _modules(events: pl.DataFrame, at: Ints, pid: Ints, tid: Ints) -> Placement | None:
    """Module of each stretch of an operator, where module ranges were recorded."""
    nodes = of_kind(events, ("node",)).clear()
    nothing = Placement(np.full(len(at), -1, dtype=np.int64), nodes, [], one_of_several=np.zeros(len(at), dtype=bool))
    found = with_eager_modules(nothing, events, pid, tid, at)
    return found if found.nodes.height else None
