"""The event table: one row is one event, each column stated once with its unit, meaning and the kinds that fill it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

    EVENT_SCHEMA: pa.Schema

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


class Column(NamedTuple):
    """One column of the event table; ``type`` is a name of TYPES."""

    name: str
    type: str
    unit: str
    meaning: str
    kinds: tuple[str, ...]


COLUMNS: Final = (
    Column("kind", "string", "", "what the event is; see the list of kinds", ALL),
    Column("rank", "int32", "", "global rank of the process that recorded the event", ALL),
    Column("pid", "int64", "", "process id on the rank's host", ALL),
    Column("name", "string", "", "kernel, call, operator or phase name as the profiler or the collector wrote it", ALL),
    Column(
        "start_ns",
        "int64",
        "ns",
        "start, nanoseconds since the Unix epoch by the rank's host clock; 0 for a node",
        ALL,
    ),
    Column("dur_ns", "int64", "ns", "duration; null or negative when the profiler had none (invalid row)", ALL),
    Column("tid", "int64", "", "host thread id", ("phase", "cycle", "launch", "op", "mark", "collective")),
    Column("cycle", "int64", "", "number of the decode cycle within the recording, from 0", ("cycle", "phase")),
    Column("mode", "string", "", "speculative, decode, prefill, idle or mixed", ("cycle",)),
    Column("batch_size", "int32", "requests", "requests in the batch", ("cycle",)),
    Column(
        "draft_tokens",
        "int32",
        "tokens per request",
        "tokens the draft model proposed to verify for each request; verify scores one more (the token already committed)",
        ("cycle",),
    ),
    Column("request_ids", "list of string", "", "the batch's requests, in batch order", ("cycle", "request")),
    Column(
        "accept_lengths",
        "list of int32",
        "tokens",
        "tokens committed for each request in this cycle, the bonus token included, tokens after a stop token excluded; "
        "an element is null where it never reached the host",
        ("cycle",),
    ),
    Column(
        "accepted_draft_tokens",
        "list of int32",
        "tokens",
        "draft tokens the verifier accepted for each request, as the verifier counts them",
        ("cycle",),
    ),
    Column(
        "graph_batch_size",
        "int32",
        "requests",
        "batch size the verify (or decode) CUDA graph was captured for; null when eager",
        ("cycle",),
    ),
    Column("context_tokens", "int64", "tokens", "sum of the requests' context lengths before the cycle", ("cycle",)),
    Column("window", "int32", "", "profiler window the event lies in, from 0; null where no profiler ran", ALL),
    Column("prompt_tokens", "int64", "tokens", "tokens of the prompt", ("request",)),
    Column("completion_tokens", "int64", "tokens", "tokens the server reported as generated", ("request",)),
    Column("first_token_ns", "int64", "ns", "time from sending the request to its first token", ("request",)),
    Column(
        "correlation",
        "int64",
        "",
        "id that ties device work to its launch call, unique within a process",
        ("launch", "kernel", "memcpy", "memset"),
    ),
    Column("device", "int32", "", "device ordinal within the process", ("kernel", "memcpy", "memset")),
    Column("stream", "int64", "", "stream id as CUPTI reports it", ("kernel", "memcpy", "memset")),
    Column(
        "bytes",
        "int64",
        "bytes",
        "size of the copy or fill, or of the message where NCCL itself told it",
        ("memcpy", "memset", "collective"),
    ),
    Column("graph_id", "int64", "", "captured CUDA graph", ("kernel", "memcpy", "memset", "node")),
    Column(
        "node",
        "int64",
        "",
        "ordinal of the node in its graph, in creation order",
        ("kernel", "memcpy", "memset", "node"),
    ),
    Column("node_type", "string", "", "kernel, memcpy, memset, event_record, event_wait, host, ...", ("node",)),
    Column("grid", "string", "", "grid dimensions as XxYxZ", ("kernel",)),
    Column("block", "string", "", "block dimensions as XxYxZ", ("kernel",)),
    Column(
        "module",
        "string",
        "",
        "dotted path of the module that added the node, or that the range spec.module is a call of",
        ("node", "kernel", "phase"),
    ),
    Column("module_class", "string", "", "class name of that module", ("node", "kernel", "phase")),
    Column(
        "op",
        "string",
        "",
        "collective operation: allreduce, allgather, reducescatter, ...",
        ("collective", "kernel", "node"),
    ),
    Column("dtype", "string", "", "element type of the collective", ("collective", "kernel", "node")),
    Column("elements", "int64", "elements", "elements this rank puts in", ("collective", "kernel", "node")),
    Column("group", "string", "", "name of the process group", ("collective", "kernel", "node")),
    Column("group_ranks", "list of int32", "", "global ranks of the group", ("collective", "kernel", "node")),
    Column("seq", "int64", "", "sequence number of the collective within its group", ("collective", "kernel")),
)
"""Every column, in file order."""

COLUMN_NAMES: Final = tuple(c.name for c in COLUMNS)

TYPES: Final = ("string", "int32", "int64", "list of string", "list of int32")
"""Types of columns. In Arrow, a ``string`` is a dictionary with int32 indexes."""


def _event_schema() -> pa.Schema:
    import pyarrow as pa

    lists = {"list of string": pa.list_(pa.string()), "list of int32": pa.list_(pa.int32())}
    types = {"string": pa.dictionary(pa.int32(), pa.string()), "int32": pa.int32(), "int64": pa.int64(), **lists}
    return pa.schema(
        [
            pa.field(
                c.name,
                types[c.type],
                metadata={"unit": c.unit, "meaning": c.meaning, "kinds": ",".join(c.kinds)},
            )
            for c in COLUMNS
        ]
    )


def __getattr__(name: str) -> Any:
    """``EVENT_SCHEMA``: Arrow schema of the event table. Field metadata: ``unit``, ``meaning``, ``kinds`` (comma-separated).

    Made when it is first asked for, so that who reads other forms than Arrow does not load pyarrow.
    """
    if name != "EVENT_SCHEMA":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    schema = globals()[name] = _event_schema()
    return schema
