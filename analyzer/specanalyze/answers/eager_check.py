"""``layers --against``: whether a graph replay's kernels have the modules that launch the same kernels eagerly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from specanalyze.answers.alignment import aligned
from specanalyze.answers.environment import GRAPH_SWITCHES
from specanalyze.answers.environment_check import check_environment
from specanalyze.answers.kernel_sequence import KernelSequence, kernel_sequence
from specanalyze.answers.recording_warnings import recording_warnings
from specanalyze.engines.engine import each_rank
from specanalyze.trace import Trace
from specschema.errors import TraceError, UsageError
from specschema.figures import counted, were
from specschema.phases import PHASE_KEYS

SAME, MODULE, CLASS, UNKNOWN = "same", "module", "class", "unknown"
ONLY_GRAPH, ONLY_EAGER = "only in graph", "only in eager"
VERDICTS: Final = (SAME, MODULE, CLASS, ONLY_GRAPH, ONLY_EAGER, UNKNOWN)
"""What is said of a row: a pair whose module, or only its class, is another one, or not known on both sides; a kernel without its like."""

_SIDES: Final = ("graph", "eager")
_OF_SIDE: Final = {
    "known": pl.Boolean,
    "module": pl.String,
    "module_class": pl.String,
    "bucket": pl.String,
    "subclass": pl.String,
}
SCHEMA: Final = {
    "rank": pl.String,
    "kernel": pl.String,
    "verdict": pl.String,
    "in_replay": pl.Boolean,
    **{f"{side}_{name}": kind for side in _SIDES for name, kind in ({"place": pl.Int64} | _OF_SIDE).items()},
}
"""Columns of the pairs. place: from 0, among the instance's kernels; known: whether the module is known, which is null outside of modules;
in_replay: in the recording with graphs, null for a kernel only in eager."""
_GRAPHS: Final = {f"server.args.{name}" for name in GRAPH_SWITCHES}
"""What makes a recording an eager one."""
_REFUSAL: Final = "not the same forward: "
_NUMBER: Final = re.compile(r"(?:^|\.)\d+(?:\.|$)")


@dataclass(frozen=True)
class EagerCheck:
    """A recording with graph replays beside an eager one of the same forward, one instance of a phase of each.

    Attributes:
        pairs: columns of SCHEMA, in the order of the kernels.
        ranks: one row a rank: rank, graph_kernels, in_replay (of these, in graph replays), eager_kernels, pairs (of equal kernels
            in the same order), in_replay_pairs, compared (pairs whose module is known on both sides), same_module, same_class,
            and per side instances (with device work) and alike (those with the very same kernels and modules), replays,
            placed (those of which every activity has its node).
        prefixes: (graph, eager) outer parts of module paths that stand for each other where no path is the same otherwise.
        faults: why this is no check of a node map by an eager recording, whatever the counts say; one line each.
        remarks: one line each: what could not be compared, and why.
    """

    pairs: pl.DataFrame
    ranks: pl.DataFrame
    phase: str
    prefixes: list[tuple[str, str]]
    faults: list[str]
    remarks: list[str]
    warnings: list[str]


def check_against(
    graph: Trace,
    eager: Trace,
    phase: str = "verify",
    phase_map: Mapping[str, str] | None = None,
    *,
    accept_differences: bool = False,
) -> EagerCheck:
    """Compare kernel by kernel.

    Args:
        graph: recording whose replays are placed by a node map.
        eager: the same forward without graphs, recorded with module ranges.
        phase, phase_map: as for ``layers``.
        accept_differences: let it pass where the eager one ran on another server, model or machine.

    Raises:
        UsageError: no such phase.
        TraceError: no rank is in both, one of them has no device work in the phase, or they ran on different environments.
    """
    if phase not in PHASE_KEYS:
        raise UsageError(f"no phase {phase!r}; use one of {', '.join(PHASE_KEYS)}")
    alike = check_environment(
        eager, graph, accept=accept_differences, role="eager recording", refusal=_REFUSAL, varied=_GRAPHS.__contains__
    )
    sequences = [
        {one.rank: one for one in each_rank(trace, kernel_sequence, phase, phase_map)} for trace in (graph, eager)
    ]
    both = [rank for rank in sequences[0] if rank in sequences[1]]
    if not both:
        raise TraceError(f"{graph.name} and {eager.name} have no rank in common: give recordings of the same ranks")
    for trace, of_rank in zip((graph, eager), sequences, strict=True):
        empty = [rank for rank in both if not of_rank[rank].kernels.height]
        if empty:
            raise TraceError(
                f"{trace.name} has no device work in {phase} on rank {empty[0]}; name a phase that has some with --phase"
            )
    pairs = pl.concat([_pairs(sequences[0][rank], sequences[1][rank]) for rank in both])
    pairs, prefixes = _judged(pairs)
    ranks = _counts(pairs, [(sequences[0][rank], sequences[1][rank]) for rank in both])
    captured, plain = ([of_rank[rank] for rank in both] for of_rank in sequences)
    faults = []
    if not any(one.replays for one in captured):
        faults.append(f"{graph.name} replays no graph in {phase}: no node map was checked")
    if any(one.replays for one in plain):
        faults.append(f"{eager.name} replays graphs in {phase}: it is no eager recording")
    remarks = _remarks(graph, eager, captured, plain)
    if prefixes:
        listed = ", ".join(f"{one} is {other}" for one, other in prefixes)
        remarks.append(f"modules are compared below their outermost parts, which differ: {listed}")
    return EagerCheck(pairs, ranks, phase, prefixes, faults, remarks, [*recording_warnings((graph, eager)), *alike])


def verdict(result: EagerCheck) -> list[str]:
    """Why the check fails, one line each; nothing where every pair that was compared has one module."""
    if result.faults:
        return result.faults
    compared, same = (int(result.ranks[name].sum()) for name in ("compared", "same_module"))
    if not compared:
        return ["no kernel was checked: no pair of equal kernels has a known module on both sides"]
    other = compared - same
    if not other:
        return []
    return [f"{counted(other, 'kernel')} of {compared} {were(other)} launched by another module than the node map says"]


def differences(result: EagerCheck) -> pl.DataFrame:
    """Rows that are not the same, summed over ranks and layers.

    Returns:
        verdict, kernel, graph_module, eager_module (layer numbers as N; null where unknown, or no kernel is there), graph_class and eager_class (bucket and finer class; only
        where the verdict is about them), count, graph_place, eager_place and rank of the first one; in order of VERDICTS, most
        first.
    """
    named = {
        f"{side}_module": pl.when(f"{side}_known").then(
            pl.col(f"{side}_module").str.replace_all(r"\.\d+(\.|$)", ".N$1").fill_null("(no module)")
        )
        for side in _SIDES
    }
    judged = pl.col("verdict").is_in([MODULE, CLASS])
    apart = {
        f"{side}_class": pl.when(judged).then(pl.concat_str(f"{side}_bucket", f"{side}_subclass", separator="."))
        for side in _SIDES
    }
    rows = result.pairs.filter(pl.col("verdict") != SAME).with_columns(**named, **apart)
    keys = ["verdict", "kernel", "graph_module", "eager_module", "graph_class", "eager_class"]
    rank = {name: place for place, name in enumerate(VERDICTS)}
    return (
        rows.group_by(keys, maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            *(pl.col(name).first() for name in ("graph_place", "eager_place", "rank")),
        )
        .sort(
            pl.col("verdict").replace_strict(rank, return_dtype=pl.Int64),
            "count",
            descending=[False, True],
            maintain_order=True,
        )
    )


def _pairs(graph: KernelSequence, eager: KernelSequence) -> pl.DataFrame:
    """Kernels of both, paired where equal; of those between two pairs, the graph's stand first. No verdict yet."""
    names = pl.concat([graph.kernels["kernel"], eager.kernels["kernel"]]).rank("dense").cast(pl.Int64).to_numpy()
    of_graph, of_eager = aligned(names[: graph.kernels.height], names[graph.kernels.height :])
    paired = np.full(eager.kernels.height, -1, dtype=np.int64)
    paired[of_eager] = of_graph
    # a kernel only in eager stands behind what the graph has before the next pair
    before = np.minimum.accumulate(np.where(paired >= 0, paired, graph.kernels.height)[::-1])[::-1]
    left, right = (_side(one.kernels, name) for one, name in zip((graph, eager), _SIDES, strict=True))
    right = right.with_columns(pl.Series("graph_place", paired).replace(-1, None), pl.Series("at", before))
    joined = left.join(right, on="graph_place", how="full", coalesce=True)
    order = joined.with_columns(pl.coalesce("graph_place", pl.col("at") - 0.5).alias("order"))
    order = order.sort("order", "eager_place", nulls_last=True)
    kernel = pl.coalesce("graph_kernel", "eager_kernel")
    return order.with_columns(
        pl.lit(graph.rank).alias("rank"), kernel.alias("kernel"), pl.col("graph_in_replay").alias("in_replay")
    )


def _side(kernels: pl.DataFrame, side: str) -> pl.DataFrame:
    rows = kernels.select(pl.all().name.prefix(f"{side}_"))
    return rows.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(f"{side}_place"))


def _judged(pairs: pl.DataFrame) -> tuple[pl.DataFrame, list[tuple[str, str]]]:
    """The pairs with their verdicts, and outer parts of paths that had to be left out."""
    is_pair = pl.col("graph_place").is_not_null() & pl.col("eager_place").is_not_null()
    known = is_pair & pl.col("graph_known") & pl.col("eager_known")
    asked = pairs.filter(known)
    modules = asked.select("graph_module", "eager_module").unique(maintain_order=True).rows()
    prefixes = outer_parts(modules)
    same = {(one, other): one == other or _same_below(one, other, prefixes) for one, other in modules}
    told = pl.DataFrame(
        [(*pair, value) for pair, value in same.items()],
        schema={"graph_module": pl.String, "eager_module": pl.String, "same_module": pl.Boolean},
        orient="row",
    )
    joined = pairs.join(told, on=["graph_module", "eager_module"], how="left", nulls_equal=True, maintain_order="left")
    same_class = (pl.col("graph_bucket") == pl.col("eager_bucket")) & (
        pl.col("graph_subclass") == pl.col("eager_subclass")
    )
    verdicts = (
        pl.when(pl.col("eager_place").is_null())
        .then(pl.lit(ONLY_GRAPH))
        .when(pl.col("graph_place").is_null())
        .then(pl.lit(ONLY_EAGER))
        .when(~known)
        .then(pl.lit(UNKNOWN))
        .when(~pl.col("same_module"))
        .then(pl.lit(MODULE))
        .when(~same_class)
        .then(pl.lit(CLASS))
        .otherwise(pl.lit(SAME))
    )
    judged = joined.with_columns(verdicts.alias("verdict"))
    return judged.select(pl.col(name).cast(kind) for name, kind in SCHEMA.items()), sorted(
        (one, other) for one, other in prefixes.items()
    )


def outer_parts(modules: list[tuple[str | None, str | None]]) -> dict[str, str]:
    """Outer parts of paths that stand for each other: of one side -> of the other side.

    A server may call a model's inner module itself in one of the two ways: ``Model.model.layers.0.mlp`` is then
    ``Inner.layers.0.mlp``. Such parts end with the class that is outermost (the first part of a path) and what one side has
    below it, never a number; and they count only where each stands for one other throughout, and neither for itself.
    """
    found: dict[str, set[str]] = {}
    back: dict[str, set[str]] = {}
    for one, other in modules:
        parts = _outer(one, other) if one is not None and other is not None and one != other else None
        if parts is not None:
            found.setdefault(parts[0], set()).add(parts[1])
            back.setdefault(parts[1], set()).add(parts[0])
    unchanged = {one.partition(".")[0] for one, other in modules if one == other and one is not None}
    return {
        one: other
        for one, others in found.items()
        if len(others) == 1
        for other in others
        if len(back[other]) == 1 and unchanged.isdisjoint((one.partition(".")[0], other.partition(".")[0]))
    }


def _outer(one: str, other: str) -> tuple[str, str] | None:
    """The outer parts of two paths that are the same below them; None where they are not."""
    (root, _, below), (other_root, _, other_below) = one.partition("."), other.partition(".")
    if below == other_below:
        return root, other_root
    longer, shorter = (below, other_below) if len(below) > len(other_below) else (other_below, below)
    if shorter and not longer.endswith(f".{shorter}"):
        return None
    more = longer[: len(longer) - len(shorter)].removesuffix(".")
    if _NUMBER.search(more):
        return None
    return (f"{root}.{more}", other_root) if longer is below else (root, f"{other_root}.{more}")


def _same_below(one: str | None, other: str | None, prefixes: Mapping[str, str]) -> bool:
    if one is None or other is None:
        return False
    parts = _outer(one, other)
    return parts is not None and prefixes.get(parts[0]) == parts[1]


def _counts(pairs: pl.DataFrame, sequences: list[tuple[KernelSequence, KernelSequence]]) -> pl.DataFrame:
    """``EagerCheck.ranks``."""
    verdicts = pl.col("verdict")
    is_pair = ~verdicts.is_in([ONLY_GRAPH, ONLY_EAGER])

    def number(of: pl.Expr, name: str) -> pl.Expr:
        return of.sum().cast(pl.Int64).alias(name)

    sums = pairs.group_by("rank", maintain_order=True).agg(
        number(verdicts != ONLY_EAGER, "graph_kernels"),
        number(pl.col("in_replay").fill_null(False), "in_replay"),
        number(verdicts != ONLY_GRAPH, "eager_kernels"),
        number(is_pair, "pairs"),
        number(is_pair & pl.col("in_replay").fill_null(False), "in_replay_pairs"),
        number(verdicts.is_in([SAME, CLASS, MODULE]), "compared"),
        number(verdicts.is_in([SAME, CLASS]), "same_module"),
        number(
            verdicts.is_in([SAME, CLASS, MODULE])
            & (pl.col("graph_bucket") == pl.col("eager_bucket"))
            & (pl.col("graph_subclass") == pl.col("eager_subclass")),
            "same_class",
        ),
    )
    facts = pl.DataFrame(
        [
            {"rank": graph.rank}
            | {
                f"{side}_{name}": getattr(one, name)
                for side, one in zip(_SIDES, (graph, eager), strict=True)
                for name in ("instances", "alike", "replays", "placed")
            }
            for graph, eager in sequences
        ]
    )
    return sums.join(facts, on="rank", maintain_order="left")


def _remarks(graph: Trace, eager: Trace, captured: list[KernelSequence], plain: list[KernelSequence]) -> list[str]:
    """What the recordings lack for the check."""
    said = []
    replays, placed = sum(one.replays for one in captured), sum(one.placed for one in captured)
    if placed < replays:
        said.append(
            f"{placed} of {counted(replays, 'replay')} of {graph.name} {were(placed)} placed by a node map; kernels of the others have "
            "no module"
        )
    if not any(one.ranges for one in plain):
        said.append(
            f"{eager.name} has no module ranges, so its kernels have no module: record it with --windows modules"
        )
    return said
