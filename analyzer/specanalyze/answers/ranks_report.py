"""``ranks``: skew and stragglers: waiting and transfer, collective by collective (rules D4, D7), and kernels slower on some ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from specanalyze.answers.breakdown import Breakdown, assemble
from specanalyze.answers.collective_speed import collective_speeds, limit_of
from specanalyze.answers.instance_kernels import InstanceKernels, rank_instances
from specanalyze.answers.uneven_kernels import slower_ns, uneven_kernels
from specanalyze.attribution.collective_columns import NAMED
from specanalyze.attribution.collective_match import match
from specanalyze.attribution.ranges import PHASE_CODE
from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.attribution.rank_result import read_rank
from specanalyze.attribution.wait_table import last_to_arrive, wait_json
from specanalyze.attribution.wait_warnings import absent_ranks, wait_warnings
from specanalyze.attribution.waits import Talk, Waits
from specanalyze.engines.engine import each_rank
from specanalyze.trace import RankSource, Trace
from specschema.figures import counted


@dataclass
class RanksReport:
    """All ranks side by side.

    Attributes:
        breakdown: each rank's own partition.
        waits: matched collectives; None with one rank, where waiting is unknown.
        hosts: rank key -> host as the recording says it, None where nothing does.
        world_size: ranks the recording says it had; None where it does not.
        warnings: one line each.
        speeds: how fast collectives of each size moved (``collective_speed.collective_speeds``).
        uneven: kernels that take longer on some ranks than on others (``uneven_kernels.uneven_kernels``).
    """

    breakdown: Breakdown
    waits: Waits | None
    hosts: dict[str, str | None]
    world_size: int | None
    warnings: list[str]
    speeds: pl.DataFrame
    uneven: pl.DataFrame


def compare_ranks(trace: Trace, phase_map: Mapping[str, str] | None = None) -> RanksReport:
    """Match the ranks' collectives and split their durations into waiting and transfer; compare their other kernels.

    Raises:
        TraceError: as ``breakdown.break_down``.
    """
    broken_down: list[RankBreakdown] = []
    talk: list[Talk] = []
    hosts: dict[str, str | None] = {}
    world = None
    instances: dict[str, InstanceKernels] = {}
    for rank, spoken, kernels, host, size in each_rank(trace, _rank, phase_map):
        broken_down.append(rank)
        instances[rank.key] = kernels
        talk.append(spoken)
        hosts[rank.key] = host
        world = max(world or 0, size or 0) or None
    result = assemble(trace, broken_down)
    absent = absent_ranks([spoken.rank for spoken in talk], world)
    waits = match(talk, absent)
    warnings = list(result.warnings)
    if waits is None:
        warnings.append(
            "one rank only: waiting for other ranks is unknown, not zero; import all ranks of the recording"
        )
    else:
        warnings += wait_warnings(waits, absent)
    limit = limit_of(trace.metadata.get("environment") or {}, len(set(hosts.values())))
    collectives = _with_transfer(waits, talk)
    unsized = collectives.filter(pl.col("replay").is_not_null(), pl.col("elements").is_null())
    if unsized.height and unsized.height < collectives.height:
        warnings.append(
            f"size of {counted(unsized.get_column('collective').n_unique(), 'collective')} unknown: the replays fit captured graphs of several "
            "batch sizes, or the map does not tell it"
        )
    uneven = uneven_kernels(instances, result)
    return RanksReport(result, waits, hosts, world, warnings, collective_speeds(collectives, limit), uneven)


def _rank(
    source: RankSource, trace: Trace, phase_map: Mapping[str, str] | None
) -> tuple[RankBreakdown, Talk, InstanceKernels, str | None, int | None]:
    """One rank's breakdown, communication kernels and other kernels; its host, and the number of ranks that its file tells."""
    read = read_rank(source, trace, phase_map, talks=True, look=InstanceKernels.of)
    assert read.communication is not None
    return read.breakdown, read.communication, rank_instances(read.looked), read.rank.host, read.rank.world_size


def _with_transfer(waits: Waits | None, talk: list[Talk]) -> pl.DataFrame:
    """Collectives for ``collective_speeds``: the matched ones; of a single rank all, whose transfer is unknown."""
    if waits is not None:
        return waits.table(*_UNMATCHED.columns, of=~pl.col("voided"))
    phases = {code: phase for phase, code in PHASE_CODE.items()}
    kernels = [
        r.kernels.with_row_index("collective").select(
            pl.col("collective").cast(pl.Int64),
            pl.col("phase").replace_strict(phases, default=None, return_dtype=pl.String),
            "op",
            "dtype",
            "elements",
            pl.col("group_ranks").list.len().cast(pl.Int64).alias("group_size"),
            *NAMED,
            pl.when(pl.col("replay") >= 0).then(pl.col("replay")).alias("replay"),
            pl.lit(None, dtype=pl.Int64).alias("transfer_ns"),
        )
        for r in talk
    ]
    return pl.concat([_UNMATCHED, *kernels])


_UNMATCHED: Final = pl.DataFrame(
    schema={
        "collective": pl.Int64,
        "phase": pl.String,
        "op": pl.String,
        "dtype": pl.String,
        "elements": pl.Int64,
        "group_size": pl.Int64,
        **dict.fromkeys(NAMED, pl.String),
        "replay": pl.Int64,
        "transfer_ns": pl.Int64,
    }
)


def ranks_frame(report: RanksReport) -> pl.DataFrame:
    """One row a rank and phase.

    Returns:
        rank, phase, total_ns, gpu_busy_ns, allreduce_ns and other_comm_ns (exposed), hidden_comm_ns, wait_ns,
        transfer_ns (over matched collectives, null where none matched or only one rank), collectives (matched),
        late (collectives this rank arrived last at), message_bytes, bus_gb_s, link_share, bound, message (of the kind of collective
        with the most transfer time: bytes one rank puts in, bus bandwidth at the median, its share of the link's limit, what
        bounds it, and all of it in words; null where unknown), slower_ns (what its kernels of ``RanksReport.uneven`` take more in an
        instance of the phase than on the fastest rank; 0 where there are none, null with one rank).
    """
    rows = []
    slower = {
        (r, p): ns
        for r, p, ns in slower_ns(report.uneven).group_by("rank", "phase").agg(pl.col("slower_ns").sum()).iter_rows()
    }
    several = len(report.breakdown.ranks) > 1
    waits = report.waits
    for r in report.breakdown.ranks:
        for phase, buckets in r.buckets_ns.items():
            row: dict[str, Any] = {
                "rank": r.key,
                "phase": phase,
                "total_ns": r.total_ns(phase),
                "gpu_busy_ns": r.gpu_busy_ns[phase],
                "allreduce_ns": buckets.get("allreduce", 0),
                "other_comm_ns": buckets.get("other_comm", 0),
                "hidden_comm_ns": r.hidden_comm_ns[phase],
            }
            row |= dict.fromkeys(("wait_ns", "transfer_ns", "collectives", "late"))
            row |= _costliest(report.speeds, phase)
            row["slower_ns"] = slower.get((r.key, phase), 0.0) if several else None
            if waits is not None and waits.matched:
                used = waits.table(
                    *("collective", "rank", "dur_ns", "wait_ns", "transfer_ns", "voided"),
                    of=~pl.col("voided") & waits.in_phase(phase),
                )
                mine = used.filter(pl.col("rank") == r.key)
                if mine.height:
                    row["wait_ns"] = int(mine["wait_ns"].sum())
                    row["transfer_ns"] = int(mine["transfer_ns"].sum())
                    row["collectives"] = mine.height
                    row["late"] = last_to_arrive(used).count(r.key)
            rows.append(row)
    schema: dict[str, type[pl.DataType]] = {"rank": pl.String, "phase": pl.String}
    schema |= dict.fromkeys(
        (
            "total_ns",
            "gpu_busy_ns",
            "allreduce_ns",
            "other_comm_ns",
            "hidden_comm_ns",
            "wait_ns",
            "transfer_ns",
            "collectives",
            "late",
        ),
        pl.Int64,
    )
    schema |= {
        "message_bytes": pl.Int64,
        "bus_gb_s": pl.Float64,
        "link_share": pl.Float64,
        "bound": pl.String,
        "message": pl.String,
        "slower_ns": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema)


def _costliest(speeds: pl.DataFrame, phase: str) -> dict[str, Any]:
    """The kind of collective that moved longest in a phase."""
    found = speeds.filter(pl.col("phase") == phase).head(1).to_dicts()
    first = found[0] if found else {}
    named = {"message_bytes": "bytes", "message": "words"} | {k: k for k in ("bus_gb_s", "link_share", "bound")}
    return {column: first.get(source) for column, source in named.items()}


def ranks_json(report: RanksReport) -> dict[str, Any]:
    """``ranks --json``: wait, hosts, clock offsets, one row a rank and phase, and the kernels that are slower on some ranks."""
    document: dict[str, Any] = {
        "trace": report.breakdown.name,
        "wait": wait_json(report.waits),
        "hosts": {k: h for k, h in report.hosts.items() if h is not None},
        "world_size": report.world_size,
        "ranks": ranks_frame(report).to_dicts(),
        "collectives_by_size": report.speeds.to_dicts(),
        "uneven_kernels": report.uneven.to_dicts(),
        "warnings": report.warnings,
    }
    if report.waits is not None and report.waits.offsets:
        document["clock_offset_estimate_ns"] = report.waits.offsets
        document["clock_offset_spread_ns"] = report.waits.offset_spread
        document["clock_offset_from"] = "median of the differences of collective end times"
    return document
