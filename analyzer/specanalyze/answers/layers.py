"""``layers``: a phase's time by layer and module, where the nodes of its captured graphs are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import polars as pl

from specanalyze.answers.advice import NODE_MAP, advice
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.rank_result import read_rank
from specanalyze.attribution.window_work import WindowWork
from specanalyze.columns import Ints, distinct, integers, texts
from specanalyze.engines.engine import each_rank
from specanalyze.trace import RankSource, Trace
from specschema.errors import TraceError, UsageError
from specschema.figures import counted
from specschema.phases import BUCKETS, COMMUNICATION_BUCKETS, PHASE_KEYS

LAYER: Final = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks)\.(\d+)(?:\.|$)")
"""The layer number in a module path: ``model.layers.17.mlp.experts`` -> 17."""

OUTLIER_DEVIATIONS: Final = 5.0
OUTLIER_SHARE: Final = 0.05
"""A layer stands out when it lies more than five median absolute deviations and five per cent off the median layer."""

WINDOW_STRIDE: Final = 1 << 40
"""Keeps numbers of different windows apart; no window holds so many activities."""

SCHEMA: Final = {
    "rank": pl.String,
    "phase": pl.String,
    "layer": pl.Int64,
    "module": pl.String,
    "module_class": pl.String,
    "bucket": pl.String,
    "subclass": pl.String,
    "activities": pl.Int64,
    "exposed_ns": pl.Int64,
    "gap_before_ns": pl.Int64,
    "instances": pl.Int64,
    "median_ns": pl.Float64,
    "median_gap_ns": pl.Float64,
}


@dataclass(frozen=True)
class Layers:
    """Time by layer and module.

    Attributes:
        table: columns of SCHEMA, one row a rank, module and bucket, in model order. exposed_ns: the instants the
            partition gave to the module's activities; gap_before_ns: graph gap that ends with one of them; medians are
            over phase instances. A null module: nodes that no module added; a null layer: outside the layers.
        placed: replays whose every activity has its node, and all replays with activities, of the phase.
        unplaced_ns: exposed time of the phase's activities without a node (eager work, unplaced replays).
        left_out_ns: exposed time of instances that were recorded in part; they are not in the table.
        warnings: one line each.
    """

    table: pl.DataFrame
    phase: str
    placed: int
    replays: int
    unplaced_ns: int
    warnings: list[str]
    left_out_ns: int = 0


def layers(trace: Trace, phase: str = "verify", phase_map: Mapping[str, str] | None = None) -> Layers:
    """A phase's time by layer and module.

    Raises:
        UsageError: no such phase.
        TraceError: the recording has no node map, or none of the phase's replays fits it.
    """
    if phase not in PHASE_KEYS:
        raise UsageError(f"no phase {phase!r}; use one of {', '.join(PHASE_KEYS)}")
    return layers_of(trace, list(each_rank(trace, _rank, phase, phase_map)), phase)


def layers_of(trace: Trace, ranks: Sequence[RankLayers], phase: str) -> Layers:
    """``layers`` of ranks that are read already.

    Raises:
        TraceError: as ``layers``.
    """
    placed, replays, unplaced_ns, left_out_ns = (sum(rank.counts[i] for rank in ranks) for i in range(4))
    if not any(rank.nodes_known for rank in ranks):
        raise TraceError(
            f"{trace.name} has no node map, so the modules inside its graph replays are unknown; "
            f"{advice(trace, NODE_MAP, 'give --node-map FILE')}"
        )
    table = pl.concat([rank.table for rank in ranks])
    if not replays and not table.height:
        other = "decode" if phase != "decode" else "verify"
        raise TraceError(
            f"{trace.name} replays no graph in {phase} and has no module ranges there; name a phase that does, such as --phase "
            f"{other}, or record eager work with --windows modules"
        )
    if not table.height:
        raise TraceError(
            f"no {phase} replay of {trace.name} fits its node map ({counted(replays, 'replay')} looked at)"
        )
    table = table.sort("rank", maintain_order=True)
    return Layers(table, phase, placed, replays, unplaced_ns, list(trace.warnings), left_out_ns)


@dataclass(frozen=True)
class RankLayers:
    """A rank's own rows of the table; replays placed, replays in all, ns without a node and ns left out."""

    table: pl.DataFrame
    counts: tuple[int, int, int, int]
    nodes_known: bool


def _rank(source: RankSource, trace: Trace, phase: str, phase_map: Mapping[str, str] | None) -> RankLayers:
    read = read_rank(source, trace, phase_map, look=partial(window_layers, phase=phase))
    return rank_layers(source.key, read.looked, phase)


def rank_layers(key: str, windows: Sequence[WindowLayers], phase: str) -> RankLayers:
    """A phase of one rank, from its windows."""
    times = pl.concat([window.times for window in windows]).with_columns(pl.lit(key).alias("rank"))
    counts = [(w.placed, w.replays, w.unplaced_ns, w.left_out_ns) for w in windows]
    placed, replays, unplaced_ns, left_out_ns = (sum(numbers) for numbers in zip(*counts, strict=True))
    known = any(window.nodes_known for window in windows)
    return RankLayers(_summed(times, phase), (placed, replays, unplaced_ns, left_out_ns), known)


_KEYS: Final = ("layer", "module", "module_class", "bucket", "subclass")
_TIMES: Final[dict[str, Any]] = {
    **dict.fromkeys(("instance", "order", "activities", "ns", "gap_ns", "layer"), pl.Int64),
    **dict.fromkeys(_KEYS[1:], pl.Categorical),
}


@dataclass(frozen=True)
class WindowLayers:
    """The phase in one window of one rank.

    Attributes:
        times: of each instance and of each place (columns _KEYS) in it: order (the first node that belongs there), activities, ns
            that they got, gap_ns.
        placed, replays, unplaced_ns, left_out_ns: as in ``Layers``.
        nodes_known: whether the window has nodes at all.
    """

    times: pl.DataFrame
    placed: int
    replays: int
    unplaced_ns: int
    nodes_known: bool
    left_out_ns: int = 0


def window_layers(work: WindowWork, phase: str) -> WindowLayers:
    """What the phase's nodes took in a window, in the instances whose records are whole (in all, where none are)."""
    code = PHASE_CODE[phase]
    empty = pl.DataFrame(schema=_TIMES)
    nodes = work.nodes
    if not len(work.ranges):
        return WindowLayers(empty, 0, 0, 0, nodes is not None)
    mine = work.phase == code
    known = work.node >= 0
    replayed, lacking = np.zeros(len(work.graph), dtype=bool), np.zeros(len(work.graph), dtype=bool)
    in_replay = mine & work.in_graph
    replayed[work.call[in_replay]] = True
    lacking[work.call[in_replay & ~known]] = True
    replays, placed = int(replayed.sum()), int((replayed & ~lacking).sum())
    running = mine & (work.exposed > 0)
    whole = work.whole if work.whole[:-1][work.ranges.phase == code].any() else np.ones_like(work.whole)
    told = whole[work.range]
    left_out = int(work.exposed[running & ~told].sum(dtype=np.int64))
    running &= told
    unplaced = int(work.exposed[running & ~known].sum(dtype=np.int64))
    runs = np.flatnonzero(running & known)
    if nodes is None or not len(runs):
        return WindowLayers(empty, 0, replays, unplaced, nodes is not None, left_out)
    # A gap inside a replay is the time its next activity had to wait for: it is shown before that activity's module.
    gaps = np.flatnonzero((work.gap > 0) & known)
    gaps = gaps[(work.gap_phase[gaps] == code) & whole[work.gap_range[gaps]]]
    of_node, places = _places(nodes)
    rows = np.concatenate([runs, gaps])
    count = len(runs)
    wide = len(work.subclasses) * len(BUCKETS)
    place = of_node[work.node[rows]].astype(np.int64) * wide
    place += work.bucket[rows].astype(np.int64) * len(work.subclasses) + work.subclass[rows]
    used, place = distinct(place)
    times = (
        pl.DataFrame(
            {
                "instance": np.concatenate([work.range[runs], work.gap_range[gaps]]).astype(np.int64),
                "place": place.astype(np.uint32),
                "order": work.node[rows].astype(np.int64),
                "activities": (np.arange(len(rows)) < count).astype(np.int64),
                "ns": np.append(work.exposed[runs].astype(np.int64), np.zeros(len(gaps), dtype=np.int64)),
                "gap_ns": np.append(np.zeros(count, dtype=np.int64), work.gap[gaps]),
            }
        )
        .group_by("instance", "place")
        .agg(pl.col("order").min(), pl.col("activities", "ns", "gap_ns").sum())
    )
    at, finer = np.divmod(used, wide)
    bucket, subclass = np.divmod(finer, len(work.subclasses))
    named = places[at].with_columns(
        pl.Series("place", np.arange(len(used)), dtype=pl.UInt32),
        pl.Series("bucket", [BUCKETS[b] for b in bucket.tolist()], dtype=pl.Categorical),
        pl.Series("subclass", [work.subclasses[s] for s in subclass.tolist()], dtype=pl.Categorical),
    )
    times = times.join(named, on="place", how="left").with_columns(  # instances are numbered within a window
        pl.col("instance") + work.window * WINDOW_STRIDE
    )
    times = times.select(pl.col(n).cast(t) for n, t in _TIMES.items())
    return WindowLayers(times, placed, replays, unplaced, True, left_out)


def _places(nodes: pl.DataFrame) -> tuple[Ints, pl.DataFrame]:
    """Number of the module that each node belongs to, by layer; and layer, module and module_class of each."""
    modules = texts(nodes, "module")
    rows = zip(
        _layer_of_nodes(modules, integers(nodes, "graph_id", -1)), modules, texts(nodes, "module_class"), strict=True
    )
    numbers: dict[tuple[int | None, str | None, str | None], int] = {}
    of_node = [numbers.setdefault(row, len(numbers)) for row in rows]  # one turn a node
    schema = {"layer": pl.Int64, "module": pl.Categorical, "module_class": pl.Categorical}
    return np.array(of_node, dtype=np.int64), pl.DataFrame(list(numbers), schema=schema, orient="row")


def _layer_of_nodes(modules: list[str | None], graphs: Ints) -> list[int | None]:
    """Layer of each node by its module's path.

    A module that all layers share (SGLang keeps one rotary embedding) carries the path of the first layer in older node
    maps: of a module that runs several times, a stretch between two stretches of one other layer belongs to that layer.
    """
    layer = [int(found.group(1)) if m and (found := LAYER.search(m)) else None for m in modules]
    runs: list[tuple[int, int]] = []
    for i in range(len(modules)):  # nodes of captured graphs: hundreds, not events
        if runs and modules[i] == modules[i - 1] and graphs[i] == graphs[i - 1]:
            runs[-1] = (runs[-1][0], i + 1)
        else:
            runs.append((i, i + 1))
    times = Counter((int(graphs[first]), modules[first]) for first, _ in runs)
    shared = {run for run, (first, _) in enumerate(runs) if times[int(graphs[first]), modules[first]] > 1}
    told = list(layer)
    for run, ((before, _), (first, end), (after, _)) in enumerate(zip(runs, runs[1:], runs[2:], strict=False), start=1):
        around = told[before]
        if run not in shared or around is None or around != told[after] or told[first] in (None, around):
            continue
        if graphs[before] == graphs[first] == graphs[after]:
            layer[first:end] = [around] * (end - first)
    return layer


def _summed(times: pl.DataFrame, phase: str) -> pl.DataFrame:
    """One row a rank, module and bucket, in model order; medians over the phase's instances (0 where it did not run)."""
    keys = ["rank", *_KEYS]
    instances = times.group_by("rank").agg(pl.col("instance").n_unique().alias("instances"))
    sums = times.group_by(keys).agg(
        pl.col("order").min(),
        pl.col("activities").sum(),
        pl.col("ns").sum().alias("exposed_ns"),
        pl.col("gap_ns").sum().alias("gap_before_ns"),
        pl.col("ns").median().alias("median_ns"),
        pl.col("gap_ns").median().alias("median_gap_ns"),
    )
    return (
        sums.join(instances, on="rank")
        .with_columns(pl.col(name).cast(pl.String) for name in _KEYS[1:])
        .sort("rank", "order", "bucket", "subclass")
        .with_columns(pl.lit(phase).alias("phase"))
        .select(pl.col(name).cast(kind) for name, kind in SCHEMA.items())
    )


def by_layer(result: Layers) -> pl.DataFrame:
    """Layers side by side.

    Returns:
        rank, layer, total_ns (median over instances of exposed time and gaps), communication_ns, gap_ns, outlier: True
        where a layer stands out from the others of its rank (OUTLIER_DEVIATIONS, OUTLIER_SHARE).
    """
    table = result.table.filter(pl.col("layer").is_not_null())
    comm = pl.col("bucket").is_in(list(COMMUNICATION_BUCKETS))
    sums = table.group_by("rank", "layer", maintain_order=True).agg(
        (pl.col("median_ns") + pl.col("median_gap_ns")).sum().alias("total_ns"),
        pl.col("median_ns").filter(comm).sum().alias("communication_ns"),
        pl.col("median_gap_ns").sum().alias("gap_ns"),
    )
    middle = pl.col("total_ns").median().over("rank")
    apart = (pl.col("total_ns") - middle).abs()
    return sums.sort("rank", "layer").with_columns(
        ((apart > OUTLIER_DEVIATIONS * apart.median().over("rank")) & (apart > OUTLIER_SHARE * middle)).alias("outlier")
    )


def over_layers(column: str) -> pl.Expr:
    """A column of module paths with layer numbers as ``N``: ``model.layers.17.mlp`` -> ``model.layers.N.mlp``."""
    return pl.col(column).str.replace_all(r"\.\d+(\.|$)", ".N$1").alias(column)


def by_module(result: Layers) -> pl.DataFrame:
    """Modules over all layers.

    Returns:
        rank, module (layer numbers as ``N``), module_class, bucket, subclass, activities, exposed_ns, gap_before_ns,
        share (of the phase's placed time), largest first.
    """
    sums = (
        result.table.with_columns(over_layers("module"))
        .group_by("rank", "module", "module_class", "bucket", "subclass", maintain_order=True)
        .agg(
            pl.col("activities").sum(),
            pl.col("exposed_ns").sum(),
            pl.col("gap_before_ns").sum(),
            pl.col("instances").max(),
        )
    )
    spent = pl.col("exposed_ns") + pl.col("gap_before_ns")
    return sums.with_columns((spent / spent.sum().over("rank")).alias("share")).sort(
        "rank", "exposed_ns", descending=[False, True]
    )
