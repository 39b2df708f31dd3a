"""Ranks side by side in the terminal."""

from __future__ import annotations

import polars as pl

from specanalyze.answers.ranks_report import RanksReport, ranks_frame
from specanalyze.answers.uneven_kernels import short_name, sides, span_us
from specanalyze.render.table_fit import BAR
from specanalyze.render.terminal import console, milliseconds, notes, share_bar, table
from specschema.figures import percent


def draw(report: RanksReport) -> None:
    """Print wait against transfer by rank and phase, the collectives that were waited for longest, and kernels slower on some ranks."""
    out = console()
    frame = ranks_frame(report)
    columns = [
        ("phase", "left"),
        ("rank", "left"),
        ("total", "right"),
        ("GPU\nbusy", "right"),
        ("allreduce\nexposed", "right"),
        ("hidden", "right"),
        ("waiting", "right"),
        ("transfer", "right"),
        ("last, of\ncollectives", "right"),
        ("waiting / total", BAR),
    ]
    order = {p: i for i, p in enumerate(frame.get_column("phase").unique(maintain_order=True).to_list())}
    rows = [
        [
            r["phase"],
            r["rank"],
            milliseconds(r["total_ns"]),
            milliseconds(r["gpu_busy_ns"]),
            milliseconds(r["allreduce_ns"]),
            milliseconds(r["hidden_comm_ns"]),
            milliseconds(r["wait_ns"]),
            milliseconds(r["transfer_ns"]),
            "–" if r["late"] is None else percent(r["late"] / r["collectives"] if r["collectives"] else None),
            share_bar(None if r["wait_ns"] is None or not r["total_ns"] else r["wait_ns"] / r["total_ns"], 12),
        ]
        for r in sorted(frame.iter_rows(named=True), key=lambda r: order[r["phase"]])
    ]
    out.print(
        table(
            "ranks side by side, ms over the whole window",
            columns,
            rows,
            spare=("hidden", "waiting / total", "GPU\nbusy"),
        )
    )
    if report.waits is not None and report.waits.matched:
        _draw_positions(report)
    _draw_uneven(report)
    _draw_speeds(report)
    notes(out, _facts(report))


def _draw_positions(report: RanksReport) -> None:
    """Where in a replay the waiting sits: by position of the collective, the largest first."""
    assert report.waits is not None
    wanted = ("phase", "position", "wait_ns", "transfer_ns", "collective")
    used = report.waits.table(*wanted, of=~pl.col("voided") & ~pl.col("by_seq"))
    if not used.height:
        return
    where = (
        used.group_by("phase", "position")
        .agg(
            pl.col("wait_ns").sum(),
            pl.col("transfer_ns").median().alias("transfer_ns"),
            (pl.col("wait_ns").max()).alias("worst_ns"),
            pl.col("collective").n_unique().alias("collectives"),
        )
        .sort("wait_ns", "phase", "position", descending=[True, False, False])
    )
    whole = where.get_column("wait_ns").sum()
    columns = [
        ("phase", "left"),
        ("n-th in\nits replay", "right"),
        ("collectives", "right"),
        ("waiting,\nall ranks", "right"),
        ("worst", "right"),
        ("median\ntransfer us", "right"),
        ("share of\nwaiting", BAR),
    ]
    rows = [
        [
            r["phase"],
            str(r["position"]),
            str(r["collectives"]),
            milliseconds(r["wait_ns"]),
            milliseconds(r["worst_ns"]),
            f"{r['transfer_ns'] / 1e3:.1f}",
            share_bar(r["wait_ns"] / whole if whole else None, 12),
        ]
        for r in where.head(6).iter_rows(named=True)
    ]
    console().print()
    console().print(table("where the ranks wait, ms", columns, rows, spare=("worst",)))


def _draw_uneven(report: RanksReport) -> None:
    """Kernels that take longer on some ranks than on others, the costliest first; those of all layers in one row."""
    if not report.uneven.height:
        return
    columns = [
        ("phase", "left"),
        ("kernel", "left"),
        ("in module", "left"),
        ("calls", "right"),
        ("us a call,\nslower ranks", "left"),
        ("us a call,\nfaster ranks", "left"),
        ("ms a phase,\nmost / least", "right"),
        ("difference,\nms a phase", "right"),
        ("of the\nphase", "right"),
    ]
    rows = []
    for r in report.uneven.head(10).iter_rows(named=True):
        call = dict(zip(r["ranks"], r["call_ns"], strict=True))
        slower, faster = (f"{', '.join(ranks)}: {span_us(call, ranks)}" for ranks in sides(r))
        least, most = min(r["instance_ns"]), max(r["instance_ns"])
        times = (f"{milliseconds(most)} / {milliseconds(least)}", milliseconds(r["difference_ns"]))
        module = (r["module"] or "–").removeprefix((r["module"] or "").split("layers.N")[0])
        name = short_name(r["name"])
        rows.append([r["phase"], name, module, str(r["calls"]), slower, faster, *times, percent(r["share"])])
    spare = ("ms a phase,\nmost / least", "calls", "in module")
    out = console()
    out.print()
    out.print(table("same kernel, other time", columns, rows, spare=spare))


def _draw_speeds(report: RanksReport) -> None:
    """How fast collectives of each size moved, the costliest first."""
    if not report.speeds.height:
        return
    columns = [
        ("phase", "left"),
        ("operation", "left"),
        ("ranks", "right"),
        ("times", "right"),
        ("transfer\nmedian us", "right"),
        ("bus\nGB/s", "right"),
        ("of the\nlink", "right"),
        ("in words", "left"),
    ]
    rows = [
        [
            r["phase"],
            r["op"] or "–",
            "–" if r["group_size"] is None else str(r["group_size"]),
            str(r["collectives"]),
            "–" if r["transfer_ns"] is None else f"{r['transfer_ns'] / 1e3:.1f}",
            "–" if r["bus_gb_s"] is None else f"{r['bus_gb_s']:.3g}",
            percent(r["link_share"]),
            r["words"],
        ]
        for r in report.speeds.head(10).iter_rows(named=True)
    ]
    out = console()
    out.print()
    out.print(table("collectives by size", columns, rows, spare=("times", "ranks")))
    first = report.speeds.row(0, named=True)
    if first["limit_gb_s"] is not None:
        out.print(
            f"bus: bytes on the busiest link over the median transfer; the link: {first['link']}, {first['limit_gb_s']:.0f} GB/s one way"
        )


def _facts(report: RanksReport) -> list[str]:
    if report.waits is None:
        return ["one rank: waiting is unknown"]
    said = []
    if report.waits.matched:
        said = [
            "last in N % of collectives: how often the rank came last, however long the others waited for it; who cost the waiting time is "
            "in `waiting` (the rank that waits least) and in `diagnose`",
            "waiting = a rank's duration minus the shortest one of the same collective; transfer = the shortest",
        ]
    if report.uneven.height:
        said.append(
            "same kernel, other time: called equally often on all its ranks, medians over the phase's instances; what it costs is in `diagnose`"
        )
    for key, offset in report.waits.offsets.items():
        spread = report.waits.offset_spread[key]
        said.append(
            f"rank {key}: host clock {offset} ns ahead of the first rank's, ± {spread} ns (from collective ends)"
        )
    return said
