"""What a reader of a breakdown must know: lost records, remainders, odd ranges and clocks, one line each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from specanalyze.attribution.rank_breakdown import RankBreakdown
from specanalyze.phase_names import resembled, resembling
from specschema.figures import are, counted, were

_NAMES: Final = 4
"""Names listed in one warning."""


NO_DEVICE_WORK: Final = (
    "no device work was recorded, for want of a profiler window: record with windows (`speccollect request` does, unless told "
    "--windows off)"
)


def overlooked(rank: str, unrecognised: Iterable[str]) -> list[str]:
    """Ranges that look like phases and are not used, with what would make them phases; nothing where there are none."""
    names = resembling(unrecognised)
    if not names:
        return []
    listed = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
    example = json.dumps({f"^{re.escape(names[0])}$": resembled(names[0])})
    return [
        f"rank {rank}: ranges that look like phases but are neither spec.* nor a known server's are not used: {listed}; "
        f"to use them, give the commands --phase-map FILE, a file that holds {example} or the like"
    ]


def breakdown_warnings(rank: RankBreakdown, phase: str) -> list[str]:
    """What a reader of this rank's figures must know."""
    said = []
    name = f"rank {rank.key}"
    said += overlooked(rank.key, rank.unrecognised)
    if not rank.activities and rank.invalid:
        said.append(
            f"{name}: none of its {counted(rank.invalid, 'device row')} has a usable time (invalid, dropped): the profiler got no times from the "
            "device, and all time shows as host, which says nothing about the device"
        )
    elif not rank.activities:
        said.append(f"{name}: {NO_DEVICE_WORK}; all its time shows as host, which says nothing about the device")
    elif rank.invalid:
        said.append(f"{name}: {counted(rank.invalid, 'invalid device row')} without a usable time dropped")
    if rank.cut:
        said.append(
            f"{name}: {counted(rank.cut, 'activity')} ran past three or more later starts of their stream; "
            "the impossible duration of each was cut at the next start"
        )
    coverage = rank.coverage(phase)
    lost = coverage["graph_launches"] - coverage["with_gpu_records"]
    if lost:
        said.append(
            f"{name}: {lost} of {coverage['graph_launches']} graph replays have no GPU records (incomplete recording); "
            "their instances are left out of means, and no idle share is given"
        )
    if cut := rank.cut_off:
        phases = ", ".join(f"{count} {one}" for one, count in cut.items())
        said.append(
            f"{name}: {counted(sum(cut.values()), 'phase instance')} ({phases}) cut off by an edge of a profiler window, so that only a part "
            "of the device work is recorded: left out of means"
        )
    if rank.outside[0]:
        count, ns = rank.outside
        said.append(
            f"{name}: {counted(count, 'device activity')} ({ns / 1e6:.3f} ms) {were(count)} launched outside every phase range: shown as outside"
        )
    if rank.unattributed[0]:
        count, ns = rank.unattributed
        said.append(
            f"{name}: {counted(count, 'device activity')} ({ns / 1e6:.3f} ms) whose launch call was not recorded; shown as unattributed"
        )
    for kernel, count in list(rank.unknown_communication.items())[:3]:
        said.append(
            f"{name}: {counted(count, 'activity')} of {kernel.partition('(')[0]} {are(count)} communication of unknown operation: shown as other "
            "communication; a recording with collective arguments (eager, CPU activity) would tell"
        )
    for reason, words in (
        ("other_count", "with another number of activities than any captured graph"),
        ("other_names", "whose kernels contradict the node map"),
    ):
        count = rank.node_map.get(reason, 0)
        if count:
            said.append(f"{name}: {counted(count, 'graph replay')} {words}: classes there are by name")
    for (earlier, later), count in rank.crossing.items():
        said.append(
            f"{name}: {counted(count, 'range')} of {earlier} and {later} crossed without nesting; an instant in both goes to {later}, "
            "which started last"
        )
    if rank.lead_ns > 0:
        said.append(
            f"{name}: device and host clocks disagree: an activity starts {rank.lead_ns} ns before its launch call"
        )
    return said
