"""Writes big trace.parquet files of a speculative server, the same bytes for the same seed.

    python -m benchmarks.event_table FILE --million 10 --ranks 8 --node-map order

The cycles are those of ``kineto_text``: a draft, a verify and a draft_extend, each one CUDA graph replay, with eager kernels and
their launch calls between, and all-reduces on a stream of their own, partly behind computation. 72 % of the rows are kernels of
replays, as in a trace of a server without CPU operators.

With ``--node-map`` every rank begins with the nodes of nine captured graphs, three batch sizes a phase, as the collector writes them, and the
kernels of a replay say which graph they are of (``order``), and which node of it (``ids``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from benchmarks.kineto_text import BASE_NS, COMMUNICATION_STREAM, COMPUTE_STREAM, EAGER, FIRST_NS, LAYER, PHASES, PID

from specanalyze.formats.event_frame import DTYPES
from specanalyze.formats.trace_files import write_trace
from specanalyze.trace import RankSource, RankTrace, Trace

EAGER_CALLS: Final = 90
"""Eager launches of a phase."""
_ALLREDUCE: Final = "ncclDevKernel_AllReduce"
BATCH_SIZES: Final = 3
"""Batch sizes for which a phase's graph is captured; the largest is replayed."""
_ATTENTION: Final = (".self_attn.attn", "RadixAttention")
_MOE: Final = (".mlp", "SparseMoeBlock")
_MODULES: Final = (
    (".input_layernorm", "RMSNorm"),
    (".self_attn.qkv_proj", "QKVParallelLinear"),
    (".self_attn.rotary_emb", "RotaryEmbedding"),
    *[_ATTENTION] * 3,
    (".self_attn.o_proj", "RowParallelLinear"),
    ("", "DecoderLayer"),
    (".post_attention_layernorm", "RMSNorm"),
    (".mlp.gate", "ReplicatedLinear"),
    (".mlp.topk", "TopK"),
    *[(".mlp.experts", "FusedMoE")] * 5,
    *[_MOE] * 2,
    ("", "DecoderLayer"),
)
"""Module, within its layer, of each kernel of ``LAYER``, and its class."""


def _phase(layers: int) -> list[tuple[str, str, int]]:
    """(kind, name, stream) of a phase's rows, after its range, in file order."""
    rows = []
    for i in range(EAGER_CALLS):
        rows += [("launch", "cudaLaunchKernel", -1), ("kernel", EAGER[i % len(EAGER)], COMPUTE_STREAM)]
    rows.append(("launch", "cudaGraphLaunch", -1))
    for name in LAYER * layers:
        rows.append(("kernel", name, COMMUNICATION_STREAM if name.startswith(_ALLREDUCE) else COMPUTE_STREAM))
    return rows


def _cycle() -> list[tuple[str, str, int]]:
    """(kind, name, stream) of a cycle's rows, in file order."""
    template: list[tuple[str, str, int]] = [("cycle", "spec.cycle", -1)]
    for phase, layers in PHASES:
        template += [("phase", f"spec.{phase}", -1), *_phase(layers)]
    return template


def events_a_cycle() -> int:
    """Rows of one rank's cycle."""
    return len(_cycle())


def node_rows(rank: int, ranks: int) -> pl.DataFrame:
    """The nodes of the captured graphs of one rank: graph 3 i + k is of the i-th phase and the k-th batch size."""
    rows: list[dict[str, Any]] = []
    for graph in range(len(PHASES) * BATCH_SIZES):
        phase, layers = PHASES[graph // BATCH_SIZES]
        for node in range(layers * len(LAYER)):
            layer, place = divmod(node, len(LAYER))
            name, (module, kind) = LAYER[place], _MODULES[place]
            talk = {"op": "allreduce", "dtype": "bfloat16", "elements": 4096 << graph % BATCH_SIZES, "group": "tp:0"}
            rows.append(
                {
                    "name": name,
                    "graph_id": graph,
                    "node": node,
                    "node_type": "kernel",
                    "module": f"{phase}.layers.{layer}{module}",
                    "module_class": kind,
                    **(talk | {"group_ranks": list(range(ranks))} if name.startswith(_ALLREDUCE) else {}),
                }
            )
    fixed = {"kind": "node", "rank": rank, "pid": PID + rank, "start_ns": 0, "dur_ns": 0}
    table = pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.lit(v).alias(k) for k, v in fixed.items())
    return table.select(pl.col(name).cast(dtype) for name, dtype in DTYPES.items() if name in table.columns)


def rank_events(rank: int, events: int, seed: int, *, ranks: int = 1, node_map: str | None = None) -> pl.DataFrame:
    """About ``events`` rows of one rank, after the nodes of its captured graphs where ``node_map`` says how rows tell theirs."""
    rows = timed_rows(rank, events, seed, node_map)
    return rows if node_map is None else pl.concat([node_rows(rank, ranks), rows], how="diagonal_relaxed")


def _replayed() -> tuple[list[int], list[int]]:
    """Captured graph and node of each row of a cycle, -1 where it is in no replay."""
    graph, node = [-1], [-1]
    for number, (_, layers) in enumerate(PHASES):
        before, count = 2 * EAGER_CALLS + 2, layers * len(LAYER)
        graph += [-1] * before + [number * BATCH_SIZES + BATCH_SIZES - 1] * count
        node += [*[-1] * before, *range(count)]
    return graph, node


def timed_rows(rank: int, events: int, seed: int, node_map: str | None) -> pl.DataFrame:
    """The same without the nodes."""
    template = _cycle()
    kind, name, stream = zip(*template, strict=True)
    count, width = max(1, events // len(template)), len(template)
    dice = np.random.default_rng([seed, rank])

    is_kernel, is_launch = np.array([k == "kernel" for k in kind]), np.array([k == "launch" for k in kind])
    is_range, talks = ~(is_kernel | is_launch), np.array([s == COMMUNICATION_STREAM for s in stream])
    busy = np.where(is_kernel, 700 + dice.exponential(4000, (count, width)).astype(np.int64), 0)
    gap = np.where(is_kernel, dice.integers(0, 900, (count, width)), 0)
    step = np.where(talks, busy // 2, busy) + gap  # an all-reduce lets the next kernel start half-way
    offset = np.cumsum(step, axis=1) - step + gap
    call = np.where(is_launch, 3000, 0).cumsum()  # host calls come one after another, ahead of the device
    length = np.maximum(step.sum(axis=1), int(call[-1])) + 60_000
    begin = FIRST_NS + BASE_NS + np.cumsum(length) - length
    start = begin[:, None] + np.where(is_kernel, np.maximum(offset, call) + 9000, call)
    duration = np.where(is_launch, 2500, busy)

    first = np.flatnonzero(is_range)[1:]
    bounds = [*(int(call[f]) for f in first), int(call[-1]) + 4000]
    for row, low, high in zip(first, bounds[:-1], bounds[1:], strict=True):
        start[:, row], duration[:, row] = begin + low, high - low - 200
    start[:, 0], duration[:, 0] = begin, length - 30_000
    ordinal = np.where(is_launch, 1, 0).cumsum()
    correlation = 100_000 + ordinal[None, :] + int(ordinal[-1]) * np.arange(count)[:, None]
    blocks = dice.integers(0, 6, (count, width))

    def tiled(values: Any, dtype: Any) -> pl.Series:
        return pl.concat([pl.Series(values, dtype=dtype)] * count, rechunk=True)

    def where(mask: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> pl.Series:
        column = pl.Series(values.reshape(-1))
        return column if mask.all() else column.set(pl.Series(np.tile(~mask, count)), None)

    placed: dict[str, pl.Series] = {}
    if node_map is not None:
        for column, values in zip(("graph_id", "node"), map(np.array, _replayed()), strict=True):
            if column == "graph_id" or node_map == "ids":
                placed[column] = where(values >= 0, np.tile(values, (count, 1)))
    grids = pl.Series([f"{n}x1x1" for n in (1, 6, 66, 132, 192, 528)], dtype=pl.Categorical)
    return pl.DataFrame(
        {
            "kind": tiled(kind, pl.Categorical),
            "rank": pl.repeat(rank, count * width, dtype=pl.Int32, eager=True),
            "pid": pl.repeat(PID + rank, count * width, dtype=pl.Int64, eager=True),
            "name": tiled(name, pl.Categorical),
            "start_ns": start.reshape(-1),
            "dur_ns": duration.reshape(-1),
            "tid": where(~is_kernel, np.full((count, width), PID + rank)),
            "window": pl.repeat(0, count * width, dtype=pl.Int32, eager=True),
            "correlation": where(~is_range, correlation),
            "device": where(is_kernel, np.zeros((count, width), dtype=np.int32)),
            "stream": where(is_kernel, np.tile(np.array(stream), (count, 1))),
            "grid": grids.gather(where(is_kernel, blocks)),
            "block": tiled(["128x1x1" if k else None for k in is_kernel], pl.Categorical),
            **placed,
        }
    )


def write_table(path: Path, *, million: float, ranks: int = 1, seed: int = 1, node_map: str | None = None) -> None:
    """Write ``million`` 10**6 events of ``ranks`` ranks, as ``specanalyze import`` writes them."""

    def reads(rank: int) -> Callable[[], RankTrace]:
        count = int(million * 1e6 / ranks)

        def read() -> RankTrace:
            events = rank_events(rank, count, seed, ranks=ranks, node_map=node_map)
            return RankTrace(str(rank), rank, path.name, events, world_size=ranks)

        return read

    sources = tuple(RankSource(str(rank), path.name, reads(rank)) for rank in range(ranks))
    metadata = {"recording": {"device": "cuda", "windows": [{"window": 0}]}, "clock": {"unit": "ns", "epoch": "unix"}}
    write_trace(Trace(path.name, sources, metadata), path, force=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--million", type=float, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--node-map", choices=("order", "ids"))
    given = parser.parse_args()
    given.file.parent.mkdir(parents=True, exist_ok=True)
    if not given.file.exists():
        options = {"million": given.million, "ranks": given.ranks, "seed": given.seed, "node_map": given.node_map}
        write_table(given.file, **options)


if __name__ == "__main__":
    main()
