"""What a reader of the phase table must know: which clock it is, and why device and host differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from specanalyze.answers.device_growth import grown_part, too_near
from specanalyze.attribution.cycles import DECODING
from specschema.figures import change, counted

if TYPE_CHECKING:
    from specanalyze.answers.phases_report import PhaseReport

DIFFERS: Final = 0.10
"""Device and host time of a phase that differ by more than this share of the larger are explained."""

SHOWN: Final = 3
"""Growing parts that are named."""


def remarks(report: PhaseReport, views: pl.DataFrame) -> list[str]:
    """Notes under the phase table.

    Args:
        report: the report.
        views: of ``phases_report.phases_frame`` by rank.
    """
    return [*_clock(report), *_asynchronous(report, views), *_overlapped(report)]


def _clock(report: PhaseReport) -> list[str]:
    traced, untraced = report.traced, report.untraced
    if not untraced.cycles and not traced.cycles:
        return [_no_pace(report)]
    if not untraced.cycles:
        return [
            "every cycle was traced: tok/s, inter-token latency and all host times are distorted by observing; record a longer "
            "answer, so that cycles stay outside the windows, or give those of another run of the same server with --cycles FILE"
        ]
    said = []
    if report.another_run:
        said.append("the untraced cycles are those of another run, given beside the trace")
    control = report.control
    if control is not None and control.traced_ns is not None:
        inside, outside = control.traced_ns, control.untraced_ns.value
        where = "outside" if control.place is None else f"in {control.words}"
        said.append(
            f"observing: a cycle takes {inside / 1e6:.2f} ms inside the windows and {outside / 1e6:.2f} ms {where} "
            f"({change(inside / outside - 1)}); device-busy times hold, launches, gaps and host times of the windows do not"
        )
    if report.growth is not None:
        parts = "; ".join(grown_part(row, report.growth.kind) for row in report.grown.head(SHOWN).to_dicts())
        said.append(report.growth.sentence("the untraced cycle"))
        if parts:  # a note of its own: these are times of traced cycles
            unknown = too_near(report.grown, report.growth.kind)
            said.append(f"on the device, over the windows: {parts}" + (f"; {unknown}" if unknown else ""))
    if untraced.tok_s_request is None:
        said.append("no tok/s: the recording does not say how many tokens its untraced cycles committed")
    return said


def _no_pace(report: PhaseReport) -> str:
    """Why there is no speed, and what would give one."""
    mine = report.cycles.filter(pl.col("rank").is_in(report.counted))
    decode = mine.filter(pl.col("mode").is_in(DECODING)).height
    if decode == 0:
        why = f"none of the {counted(mine.height, 'cycle')} on record decodes: record while a request is answered"
    elif decode == 1:
        why = "one decode cycle is on record, and a step lasts until the next one begins: record several in a row (--windows record=40)"
    else:
        why = f"no two of the {decode} decode cycles on record follow each other: record several in a row (--windows record=40)"
    return f"speed is unknown (tok/s, inter-token latency): {why}, or give a log of cycles with --cycles FILE"


def _asynchronous(report: PhaseReport, views: pl.DataFrame) -> list[str]:
    """Per phase, on the first rank that has both views: why the two differ."""
    if all(r.device == "cpu" for r in report.breakdown.values()):
        return [
            "device view: CPU operators of the worker's thread stand in for device work, so it shows no launches and no gaps"
        ]
    said = []
    for phase in report.phases:
        mine = views.filter(pl.col("phase") == phase)
        device, host = (mine.filter(pl.col("view") == v) for v in ("device", "host"))
        both = device.join(host, on="rank", suffix="_host", maintain_order="left")
        if not both.height or both["median_ns"][0] is None or both["median_ns_host"][0] is None:
            continue
        d, h, rank = both["median_ns"][0] / 1e6, both["median_ns_host"][0] / 1e6, both["rank"][0]
        if abs(d - h) <= DIFFERS * max(d, h):
            continue
        if d > h:
            said.append(
                f"{phase}, rank {rank}: the device timeline gives it {d:.2f} ms a cycle, the host is in it {h:.2f} (medians of traced cycles): launches are asynchronous, "
                "the host moves on while the device works; where time goes is the device view"
            )
        else:
            said.append(
                f"{phase}, rank {rank}: the host is in it {h:.2f} ms a cycle, the device timeline gives it {d:.2f} (medians of traced cycles): the host waits in it for "
                "earlier device work, or prepares launches while the device is still in another phase"
            )
    return said


def _overlapped(report: PhaseReport) -> list[str]:
    known = report.cycles.filter(pl.col("runs_over").is_not_null())
    over = int(known.get_column("runs_over").sum())
    if not over:
        return []
    return [
        f"in {over} of {known.height} traced cycles the device still worked when the host began the next one (overlap "
        "scheduling): phases of neighbouring cycles overlap in the host view, never in the device view"
    ]
