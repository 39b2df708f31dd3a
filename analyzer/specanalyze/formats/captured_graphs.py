"""The graphs that a trace of CUDA graph capture shows being made: their nodes, and the module or operator that added each.

While a graph is captured nothing runs, so its kernels are in no device row; but each launch call between StreamBeginCapture and
StreamEndCapture on the capturing thread adds one node, in this order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from specanalyze.columns import Ints, integers
from specanalyze.formats.capture_modules import around, with_paths
from specanalyze.formats.capture_rows import read_rows
from specschema.module_classes import OPERATOR

_BEGINS: Final = "StreamBeginCapture"
_ENDS: Final = "StreamEndCapture"
_ADDS_NODE: Final = r"Launch|Memcpy|Memset"
_ADDS_NO_ACTIVITY: Final = r"GraphLaunch|LaunchHostFunc"
"""A child graph's nodes are not in the calls; a host function shows no activity."""
_TYPES: Final = (("Memcpy", "memcpy"), ("Memset", "memset"))
_COMPILED: Final = "GraphModule"
"""torch.compile runs a model as modules of this class, which say nothing about what they hold: the operator says it."""
_COLLECTIVE: Final = ("op", "dtype", "elements", "group", "group_ranks")


class CapturedGraphs(NamedTuple):
    """Graphs of one file, in order of capture.

    Attributes:
        graphs: node (ordinal among the nodes that show activities), node_type (kernel, memcpy, memset), name (the kernel's; null
            where the profiler of the capture gave none: CUDA's), module and module_class, and op, dtype, elements, group,
            group_ranks of the collective that added the node.
        unfinished: captures whose end is not in the file.
        child_graphs: captures that launch another graph, whose nodes are unknown; their graphs are left out.
        said: one line for each thing that was repaired or lost.
    """

    graphs: list[pl.DataFrame]
    unfinished: int
    child_graphs: int
    said: list[str]


def captured_graphs(path: Path, *, salvage: bool = False) -> CapturedGraphs:
    """Read one capture trace.

    Where no module is known, or only one that torch.compile made, the outermost operator below it stands for it: its name is the last
    part of the path (``GptOssForCausalLM.GraphModule.vllm::moe_forward``), its class is OPERATOR.

    Raises:
        TraceError: see EventText.
    """
    rows, said = read_rows(path, salvage=salvage)
    calls = rows.filter(pl.col("what") == "call")
    edges = calls.filter(pl.col("name").str.contains(f"{_BEGINS}|{_ENDS}"))
    ran = rows.filter(pl.col("what") == "device").get_column("correlation").drop_nulls().unique()
    launches = calls.filter(pl.col("name").str.contains(_ADDS_NODE)).filter(
        ~pl.col("correlation").is_in(ran.implode()).fill_null(False)  # work that ran was not captured
    )
    graphs: list[tuple[int, pl.DataFrame]] = []
    unfinished = child_graphs = 0
    for key, of_thread in edges.group_by("pid", "tid", maintain_order=True):  # one turn a thread that captured
        here = (pl.col("pid") == key[0]) & (pl.col("tid") == key[1])
        begin, end, lost = _pairs(of_thread)
        unfinished += lost
        inside = _alone(launches.filter(here))
        capture = np.searchsorted(begin, integers(inside, "start_ns", 0), side="right") - 1
        held = (capture >= 0) & (integers(inside, "start_ns", 0) < end[capture]) if len(begin) else capture >= 0
        nodes = _named(inside.filter(pl.Series(held)), rows.filter(here))
        capture = capture[held]
        for number in range(len(begin)):
            graph = nodes.filter(pl.Series(capture == number))
            if graph.get_column("call").str.contains("GraphLaunch").any():
                child_graphs += 1
                continue
            graph = graph.filter(~pl.col("call").str.contains(_ADDS_NO_ACTIVITY)).drop("call")
            if graph.height:
                graphs.append((int(begin[number]), graph.with_row_index("node").cast({"node": pl.Int64})))
    graphs.sort(key=lambda pair: pair[0])
    return CapturedGraphs([graph for _, graph in graphs], unfinished, child_graphs, said)


def _pairs(edges: pl.DataFrame) -> tuple[Ints, Ints, int]:
    """Ends of the StreamBeginCapture calls and starts of the StreamEndCapture calls that belong together, and those left alone."""
    begins = edges.get_column("name").str.contains(_BEGINS).to_numpy()
    paired = begins[:-1] & ~begins[1:]
    at = np.flatnonzero(paired)
    lost = len(begins) - 2 * len(at)
    return integers(edges, "end_ns", 0)[at], integers(edges, "start_ns", 0)[at + 1], lost


def _alone(launches: pl.DataFrame) -> pl.DataFrame:
    """Launch calls that are not made by another launch call (a driver call within one of the runtime)."""
    end = integers(launches, "end_ns", 0)
    reached = np.maximum.accumulate(end) if len(end) else end
    outer = np.append(np.ones(min(1, len(end)), dtype=bool), integers(launches, "start_ns", 0)[1:] >= reached[:-1])
    return launches.filter(pl.Series(outer))


def _named(launches: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Nodes that launch calls add, with the name, module and collective of each, in order."""
    at = integers(launches, "start_ns", 0)
    modules = with_paths(rows.filter(pl.col("what") == "module"))
    ops = rows.filter(pl.col("what") == "op")
    told = ops.filter(pl.col("op").is_not_null())
    module, module_class = _modules(modules, ops, at)
    call = launches.get_column("name")
    node_type = pl.lit("kernel")
    for word, kind in _TYPES:
        node_type = pl.when(call.str.contains(word)).then(pl.lit(kind)).otherwise(node_type)
    collective = _taken(told.select(_COLLECTIVE), around(told, at))
    return launches.select(
        pl.col("name").alias("call"), node_type.alias("node_type"), pl.col("kernel").alias("name")
    ).with_columns(module, module_class, *collective.get_columns())


def _modules(modules: pl.DataFrame, ops: pl.DataFrame, at: Ints) -> tuple[pl.Series, pl.Series]:
    """module and module_class of each instant."""
    inner, outer = around(modules, at), around(ops, at, outermost=True)
    found = _taken(modules.select("module", "module_class", "start_ns"), inner)
    operator = _taken(ops.select("name", "start_ns"), outer)
    opaque = found.get_column("module_class").fill_null(_COMPILED) == _COMPILED
    below = operator.get_column("start_ns") >= found.get_column("start_ns").fill_null(0)
    asked: NDArray[np.bool_] = (opaque & below.fill_null(False)).to_numpy()
    name = operator.get_column("name").str.replace_all(".", "_", literal=True)
    part = pl.when(pl.Series(asked)).then(name)
    chosen = found.with_columns(part.alias("part"))
    return (
        chosen.select(pl.concat_str("module", "part", separator=".", ignore_nulls=True).alias("module"))
        .to_series()
        .replace("", None),
        chosen.select(
            pl.when(pl.col("part").is_not_null()).then(pl.lit(OPERATOR)).otherwise("module_class").alias("module_class")
        ).to_series(),
    )


def _taken(frame: pl.DataFrame, index: Ints) -> pl.DataFrame:
    """Rows by index; null where it is -1."""
    return frame.select(pl.all().gather(pl.Series(index).set(pl.Series(index < 0), None)))
