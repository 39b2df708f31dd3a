"""The event table: one row is one event, each column stated once with its unit, meaning and the kinds that fill it."""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

KINDS: Final = {
    "cycle": "one decode cycle (draft, verify, re-extend) or one plain decode step",
    "phase": "a stretch of the worker's own thread: draft, verify, draft_extend, prefill, decode, idle, or a sub-phase",
    "request": "one served request",
    "launch": "a host call that puts work on a device (cudaLaunchKernel, cudaGraphLaunch, cudaMemcpyAsync, ...)",
    "kernel": "a kernel that ran on a device",
    "memcpy": "a copy that ran on a device",
    "memset": "a fill that ran on a device",
    "node": "one node of a captured CUDA graph",
    "collective": "one collective as the framework called it",
    "op": "a CPU operator",
    "mark": "an instantaneous mark",
}
"""Event kind -> meaning."""

DEVICE_KINDS: Final = ("kernel", "memcpy", "memset")
"""Kinds that are device activities (RULES R1)."""

ALL: Final = tuple(KINDS)
_STRING = pa.dictionary(pa.int32(), pa.string())


class Column(NamedTuple):
    """One column of the event table."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    kinds: tuple[str, ...]


COLUMNS: Final = (
    Column("kind", _STRING, "", "what the event is; see the list of kinds", ALL),
    Column("rank", pa.int32(), "", "global rank of the process that recorded the event", ALL),
    Column("pid", pa.int64(), "", "process id on the rank's host", ALL),
    Column("name", _STRING, "", "kernel, call, operator or phase name as the profiler or the collector wrote it", ALL),
    Column(
        "start_ns",
        pa.int64(),
        "ns",
        "start, nanoseconds since the Unix epoch by the rank's host clock; 0 for a node",
        ALL,
    ),
    Column("dur_ns", pa.int64(), "ns", "duration; null or negative when the profiler had none (invalid row)", ALL),
    Column("tid", pa.int64(), "", "host thread id", ("phase", "cycle", "launch", "op", "mark", "collective")),
    Column("cycle", pa.int64(), "", "number of the decode cycle within the recording, from 0", ("cycle", "phase")),
    Column("mode", _STRING, "", "speculative, decode, prefill, idle or mixed", ("cycle",)),
    Column("batch_size", pa.int32(), "requests", "requests in the batch", ("cycle",)),
    Column(
        "draft_tokens",
        pa.int32(),
        "tokens per request",
        "tokens the draft model proposed to verify for each request; verify scores one more (the token already committed)",
        ("cycle",),
    ),
    Column("request_ids", pa.list_(pa.string()), "", "the batch's requests, in batch order", ("cycle", "request")),
    Column(
        "accept_lengths",
        pa.list_(pa.int32()),
        "tokens",
        "tokens committed for each request in this cycle, the bonus token included, tokens after a stop token excluded; "
        "an element is null where it never reached the host",
        ("cycle",),
    ),
    Column(
        "accepted_draft_tokens",
        pa.list_(pa.int32()),
        "tokens",
        "draft tokens the verifier accepted for each request, as the verifier counts them",
        ("cycle",),
    ),
    Column(
        "graph_batch_size",
        pa.int32(),
        "requests",
        "batch size the verify (or decode) CUDA graph was captured for; null when eager",
        ("cycle",),
    ),
    Column("context_tokens", pa.int64(), "tokens", "sum of the requests' context lengths before the cycle", ("cycle",)),
    Column("window", pa.int32(), "", "profiler window the event lies in, from 0; null where no profiler ran", ALL),
    Column("prompt_tokens", pa.int64(), "tokens", "tokens of the prompt", ("request",)),
    Column("completion_tokens", pa.int64(), "tokens", "tokens the server reported as generated", ("request",)),
    Column("first_token_ns", pa.int64(), "ns", "time from sending the request to its first token", ("request",)),
    Column(
        "correlation",
        pa.int64(),
        "",
        "id that ties device work to its launch call, unique within a process",
        ("launch", "kernel", "memcpy", "memset"),
    ),
    Column("device", pa.int32(), "", "device ordinal within the process", ("kernel", "memcpy", "memset")),
    Column("stream", pa.int64(), "", "stream id as CUPTI reports it", ("kernel", "memcpy", "memset")),
    Column("bytes", pa.int64(), "bytes", "size of the copy or fill", ("memcpy", "memset")),
    Column("graph_id", pa.int64(), "", "captured CUDA graph", ("kernel", "memcpy", "memset", "node")),
    Column(
        "node",
        pa.int64(),
        "",
        "ordinal of the node in its graph, in creation order",
        ("kernel", "memcpy", "memset", "node"),
    ),
    Column("node_type", _STRING, "", "kernel, memcpy, memset, event_record, event_wait, host, ...", ("node",)),
    Column("grid", _STRING, "", "grid dimensions as XxYxZ", ("kernel",)),
    Column("block", _STRING, "", "block dimensions as XxYxZ", ("kernel",)),
    Column("module", _STRING, "", "dotted path of the module that added the node", ("node", "kernel", "phase")),
    Column("module_class", _STRING, "", "class name of that module", ("node", "kernel", "phase")),
    Column(
        "op",
        _STRING,
        "",
        "collective operation: allreduce, allgather, reducescatter, ...",
        ("collective", "kernel", "node"),
    ),
    Column("dtype", _STRING, "", "element type of the collective", ("collective", "kernel", "node")),
    Column("elements", pa.int64(), "elements", "elements this rank puts in", ("collective", "kernel", "node")),
    Column("group", _STRING, "", "name of the process group", ("collective", "kernel", "node")),
    Column("group_ranks", pa.list_(pa.int32()), "", "global ranks of the group", ("collective", "kernel", "node")),
    Column("seq", pa.int64(), "", "sequence number of the collective within its group", ("collective", "kernel")),
)
"""Every column, in file order."""

COLUMN_NAMES: Final = tuple(c.name for c in COLUMNS)

EVENT_SCHEMA: Final = pa.schema(
    [
        pa.field(
            c.name,
            c.type,
            metadata={"unit": c.unit, "meaning": c.meaning, "kinds": ",".join(c.kinds)},
        )
        for c in COLUMNS
    ]
)
"""Arrow schema of the event table. Field metadata: ``unit``, ``meaning``, ``kinds`` (comma-separated)."""
