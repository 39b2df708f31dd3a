"""Capture traces beside a trace of replays: torch.profiler's view of the server capturing its CUDA graphs, as nodes of the recording.

vLLM >= 0.26 writes ``<torch_profiler_dir>/capture_traces/graph_capture_rank_0.<time>.pt.trace.json.gz`` with
``--profiler-config.capture_torch_profiler``; SGLang >= 0.5.13 with ``--enable-profile-cuda-graph`` writes
``<SGLANG_TORCH_PROFILER_DIR>/graph_capture_profile/<Runner>_bs_<bs>_rank<r>.json.gz`` (SGLANG_GRAPH_BATCH_CAPTURE=1) or
``cuda_graph_capture-<Runner>-TP-<r>.json.gz`` (SGLANG_ENABLE_CUDA_GRAPH_CAPTURE_TRACE=1). TraceLens (``--capture_folder``) calls the
folder ``capture_traces`` and puts an ``execution_details.json`` into it, which is not needed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from specanalyze.formats import kineto
from specanalyze.formats.captured_graphs import captured_graphs
from specanalyze.formats.event_frame import DTYPES, main_thread, table
from specanalyze.formats.event_text import NotATraceError
from specanalyze.trace import RankSource, RankTrace, Trace
from specschema.errors import TraceError, UsageError

FOLDERS: Final = ("capture_traces", "graph_capture_profile")
"""What servers call the folder of capture traces, below the folder of the profiler's traces."""
_ENDINGS: Final = (".json", ".json.gz")
_INDEX: Final = "execution_details.json"
"""TraceLens' list of the files, their batch sizes and modes."""
_IDS: Final = ("graph_id", "node")


def with_captures(trace: Trace, path: Path, *, salvage: bool = False) -> Trace:
    """The same recording with the nodes of its captured graphs, read from capture traces.

    A rank takes the files of its own rank; a rank without any those of the lowest rank that has some (vLLM captures under a profiler
    on rank 0 alone), which is said in the recording's warnings. Ids of graphs and nodes that the recording carries are dropped: they
    count graphs in another way.

    Args:
        trace: the recording of the replays.
        path: a capture trace, a folder of them, or the folder that holds one of FOLDERS.
        salvage: read what is whole of damaged capture traces.

    Raises:
        UsageError: no such file, or no trace in the folder.
    """
    files = _by_rank(_files(path), path)
    nodes = _Nodes(files, salvage, trace.warnings)

    def named(source: RankSource) -> RankSource:
        return replace(source, read=lambda: _with_nodes(source.read(), nodes), compact=None, near=None)

    recording = dict(trace.metadata.get("recording") or {})
    if "unknown" in recording:
        recording["unknown"] = [fact for fact in recording["unknown"] if fact != "node map"]
    metadata = dict(trace.metadata) | ({"recording": recording} if recording else {})
    return replace(trace, sources=tuple(named(source) for source in trace.sources), metadata=metadata)


def beside(paths: Sequence[Path]) -> Path | None:
    """A folder of capture traces next to, or within, what was opened; None where there is none."""
    homes = [path if path.is_dir() else path.parent for path in paths]
    found = (home / name for home in homes for name in FOLDERS)
    return next((folder for folder in found if folder.is_dir() and _traces_in(folder)), None)


def _traces_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.name.endswith(_ENDINGS) and p.name != _INDEX)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file or folder")
    inside = [path / name for name in FOLDERS if (path / name).is_dir()]
    return [file for folder in inside or [path] for file in _traces_in(folder)]


def _by_rank(paths: Sequence[Path], given: Path) -> dict[int, list[Path]]:
    """Rank -> its capture traces; files that name no rank are rank 0's."""
    files: dict[int, list[Path]] = {}
    for path in paths:
        try:
            rank = kineto.identify(path).file.rank
        except NotATraceError:
            if len(paths) == 1:
                raise
            continue
        files.setdefault(rank or 0, []).append(path)
    if not files:
        raise UsageError(
            f"{given} holds no capture trace: torch.profiler's JSON of the server capturing its CUDA graphs is needed"
        )
    return files


class _Nodes:
    """Node rows of each rank, read when they are asked for, once for all ranks that share them."""

    def __init__(self, files: dict[int, list[Path]], salvage: bool, warnings: list[str]) -> None:
        self._files = files
        self._salvage = salvage
        self._warnings = warnings
        self._read: dict[int, pl.DataFrame] = {}

    def of(self, rank: int, key: str) -> pl.DataFrame:
        """Columns of the event table, without rank and pid."""
        lender = rank if rank in self._files else min(self._files)
        if lender != rank:
            self._warn(f"rank {key} has no capture trace of its own: its graphs are taken to be those of rank {lender}")
        if lender not in self._read:
            self._read[lender] = self._rows(self._files[lender])
        return self._read[lender]

    def _warn(self, line: str) -> None:
        if line not in self._warnings:
            self._warnings.append(line)

    def _rows(self, paths: Sequence[Path]) -> pl.DataFrame:
        graphs: list[pl.DataFrame] = []
        for path in paths:
            found = captured_graphs(path, salvage=self._salvage)
            graphs += found.graphs
            for line in found.said:
                self._warn(line)
            if found.unfinished:
                self._warn(f"{path.name}: {found.unfinished} captures begin or end outside the trace: left out")
            if found.child_graphs:
                self._warn(
                    f"{path.name}: {found.child_graphs} captures launch other graphs, whose nodes are unknown: left out"
                )
            if not found.graphs:
                self._warn(
                    f"{path.name} captures no graph: no launch call lies between StreamBeginCapture and StreamEndCapture"
                )
        if not graphs:
            raise TraceError(
                f"{paths[0].name}{' and others' if len(paths) > 1 else ''}: no captured graph in it; give the trace that the profiler "
                "recorded while the server captured its CUDA graphs, with CPU and CUDA activity"
            )
        numbered = [graph.with_columns(pl.lit(number).alias("graph_id")) for number, graph in enumerate(graphs)]
        rows, unsure = settled(pl.concat(numbered))
        if unsure:
            self._warn(
                f"{unsure} nodes of captured graphs that can't be told apart lie in different modules from graph to graph: their modules "
                "are left unknown"
            )
        return rows.with_columns(
            pl.lit("node").alias("kind"),
            pl.coalesce("name", "node_type").alias("name"),
            pl.lit(0).alias("start_ns"),
            pl.lit(0).alias("dur_ns"),
        )


def settled(nodes: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Nodes whose modules don't depend on which of several like graphs they are in.

    A replay shows the types and names of its kernels. Where these fit several captured graphs (those of one model for several batch
    sizes; pieces of a model), what the graphs tell of a node must be the same in all of them to be known.

    Args:
        nodes: graph_id, node, node_type, name, module, module_class of all graphs.

    Returns:
        The nodes, module and module_class null where like graphs differ in them; and the number of those nodes.
    """
    activity = pl.concat_str("node_type", pl.col("name").fill_null(""), separator="\t")
    look = nodes.group_by("graph_id").agg(activity.sort_by("node").str.join("\n").alias("look"))
    known = nodes.join(look, on="graph_id", how="left", maintain_order="left")
    chosen = pl.struct("module", "module_class")
    differs = (chosen.n_unique() > 1).over("look", "node")
    known = known.with_columns(differs.alias("differs"))
    unsure = int(known.get_column("differs").sum())
    plain = known.with_columns(
        pl.when(~pl.col("differs")).then(pl.col(name)).alias(name) for name in ("module", "module_class")
    )
    return plain.drop("look", "differs"), unsure


def _with_nodes(rank: RankTrace, nodes: _Nodes) -> RankTrace:
    events = rank.events
    rows = nodes.of(rank.rank, rank.key).with_columns(
        pl.lit(rank.rank).alias("rank"), pl.lit(main_thread(events)[0], dtype=pl.Int64).alias("pid")
    )
    rows = rows.select(pl.col(name).cast(DTYPES[name]) for name in DTYPES if name in rows.columns)
    kept = events.filter(pl.col("kind").cast(pl.String) != "node").drop(_IDS, strict=False)
    return replace(rank, events=table(pl.concat([kept, rows], how="diagonal")))
