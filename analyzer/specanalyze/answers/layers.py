"""``layers``: a phase's time by layer and module, where the nodes of its captured graphs are known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from specanalyze.answers.advice import NODE_MAP, advice
from specanalyze.attribution.activities import BUCKET_CODE
from specanalyze.attribution.analysis import WindowAnalysis, analyse_rank
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.columns import Ints, integers, texts
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
        warnings: one line each.
    """

    table: pl.DataFrame
    phase: str
    placed: int
    replays: int
    unplaced_ns: int
    warnings: list[str]


def layers(trace: Trace, phase: str = "verify", phase_map: Mapping[str, str] | None = None) -> Layers:
    """A phase's time by layer and module.

    Raises:
        UsageError: no such phase.
        TraceError: the recording has no node map, or none of the phase's replays fits it.
    """
    if phase not in PHASE_KEYS:
        raise UsageError(f"no phase {phase!r}; use one of {', '.join(PHASE_KEYS)}")
    ranks = list(each_rank(trace, _rank, phase, phase_map))
    placed, replays, unplaced_ns = (sum(rank.counts[i] for rank in ranks) for i in range(3))
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
    return Layers(table.sort("rank", maintain_order=True), phase, placed, replays, unplaced_ns, list(trace.warnings))


@dataclass(frozen=True)
class _Rank:
    """A rank's own rows of the table; replays placed, replays in all and ns without a node."""

    table: pl.DataFrame
    counts: tuple[int, int, int]
    nodes_known: bool


def _rank(source: RankSource, trace: Trace, phase: str, phase_map: Mapping[str, str] | None) -> _Rank:
    analysis = analyse_rank(source.read(), phase_map)
    parts = [_window_rows(window, phase) for window in analysis.windows]
    stretches = pl.concat([rows for rows, *_ in parts]).with_columns(pl.lit(source.key).alias("rank"))
    placed, replays, unplaced_ns = (sum(numbers) for numbers in zip(*(counts for _, *counts in parts), strict=True))
    known = any(window.activities.placement is not None for window in analysis.windows)
    return _Rank(_summed(stretches, phase), (placed, replays, unplaced_ns), known)


def _window_rows(window: WindowAnalysis, phase: str) -> tuple[pl.DataFrame, int, int, int]:
    """Stretches of the phase that belong to a node, replays placed, replays in all, and time without a node."""
    acts, part = window.activities, window.partition
    empty = pl.DataFrame(
        schema=dict.fromkeys(("instance", "order", "ns", "gap_ns", "activity", "layer"), pl.Int64)
        | dict.fromkeys(("module", "module_class", "bucket", "subclass"), pl.String)
    )
    if part is None:
        return empty, 0, 0, 0
    code = PHASE_CODE[phase]
    node_row = acts.placement.node_row if acts.placement is not None else np.full(len(acts), -1, dtype=np.int64)
    in_replay = (acts.launch >= 0) & (acts.phase == code)
    in_replay &= np.append(acts.launches.graph, False)[acts.launch]
    of_launch = pl.DataFrame({"launch": acts.launch[in_replay], "known": node_row[in_replay] >= 0})
    per_replay = of_launch.group_by("launch").agg(pl.col("known").all())
    length = part.end - part.start
    running = (part.activity >= 0) & (part.phase == code)
    known = running.copy()
    known[running] = node_row[part.activity[running]] >= 0
    unplaced = int(length[running & ~known].sum())
    if acts.placement is None or not known.any():
        return empty, 0, per_replay.height, unplaced
    # A gap inside a replay is the time its next activity had to wait for: it is shown before that activity's module.
    gap = np.flatnonzero((part.bucket == BUCKET_CODE["graph_gap"]) & (part.phase == code))
    following = np.minimum(gap + 1, len(part.start) - 1)
    after = part.activity[following]
    fits = (after >= 0) & (node_row[after] >= 0)
    gap, after = gap[fits], after[fits]
    index = np.concatenate([np.flatnonzero(known), gap])
    activity = np.concatenate([part.activity[known], after])
    is_gap = np.arange(len(index)) >= int(known.sum())
    nodes = acts.placement.nodes
    modules, classes = texts(nodes, "module"), texts(nodes, "module_class")
    table = pl.DataFrame(
        {
            "instance": part.range[index],
            "order": node_row[activity],
            "ns": np.where(is_gap, 0, length[index]),
            "gap_ns": np.where(is_gap, length[index], 0),
            "activity": np.where(is_gap, -1, activity),
            "bucket_code": acts.bucket[activity],
            "subclass_code": acts.subclass[activity],
        }
    )
    named = pl.DataFrame(
        {
            "order": range(nodes.height),
            "module": modules,
            "module_class": classes,
            "layer": _layer_of_nodes(modules, integers(nodes, "graph_id", -1)),
        },
        schema={"order": pl.Int64, "module": pl.String, "module_class": pl.String, "layer": pl.Int64},
    )
    buckets = pl.DataFrame({"bucket_code": range(len(BUCKETS)), "bucket": list(BUCKETS)}).cast(
        {"bucket_code": pl.Int64}
    )
    finer = pl.DataFrame({"subclass_code": range(len(acts.subclasses)), "subclass": list(acts.subclasses)})
    rows = (
        table.join(named, on="order", how="left")
        .join(buckets, on="bucket_code", how="left")
        .join(finer.cast({"subclass_code": pl.Int64}), on="subclass_code", how="left")
        .with_columns(  # instances and activities are numbered within a window
            pl.col("instance") + window.window * WINDOW_STRIDE,
            pl.when(pl.col("activity") >= 0)
            .then(pl.col("activity") + window.window * WINDOW_STRIDE)
            .otherwise(-1)
            .alias("activity"),
        )
        .select(empty.columns)
    )
    return rows, per_replay.filter(pl.col("known")).height, per_replay.height, unplaced


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


def _summed(stretches: pl.DataFrame, phase: str) -> pl.DataFrame:
    """One row a rank, module and bucket, in model order; medians over the phase's instances (0 where it did not run)."""
    keys = ["rank", "layer", "module", "module_class", "bucket", "subclass"]
    instances = stretches.group_by("rank").agg(pl.col("instance").n_unique().alias("instances"))
    per_instance = stretches.group_by([*keys, "instance"]).agg(pl.col("ns").sum(), pl.col("gap_ns").sum())
    spread = per_instance.group_by(keys).agg(
        pl.col("ns").median().alias("median_ns"), pl.col("gap_ns").median().alias("median_gap_ns")
    )
    sums = stretches.group_by(keys).agg(
        pl.col("order").min(),
        pl.col("activity").filter(pl.col("activity") >= 0).n_unique().cast(pl.Int64).alias("activities"),
        pl.col("ns").sum().alias("exposed_ns"),
        pl.col("gap_ns").sum().alias("gap_before_ns"),
    )
    return (
        sums.join(spread, on=keys, nulls_equal=True)
        .join(instances, on="rank")
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


def by_module(result: Layers) -> pl.DataFrame:
    """Modules over all layers.

    Returns:
        rank, module (layer numbers as ``N``), module_class, bucket, subclass, activities, exposed_ns, gap_before_ns,
        share (of the phase's placed time), largest first.
    """
    general = pl.col("module").str.replace_all(r"\.\d+(\.|$)", ".N$1").alias("module")
    sums = (
        result.table.with_columns(general)
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
