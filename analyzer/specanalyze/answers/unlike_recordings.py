"""What two recordings differ in beside their environments: ranks, devices, batches, and whose untraced cycles they have."""

from __future__ import annotations

from typing import Final

from specanalyze.answers.environment import argument_section, environment_of
from specanalyze.answers.measured import Measured
from specanalyze.attribution.cycles import control_is_another_run
from specschema.figures import about, counted

BATCH_APART: Final = 1.05
"""Mean batch sizes further apart than this are said to differ."""


def unlike_recordings(a: Measured, b: Measured, *, batches: bool = True, ranks: bool = True) -> list[str]:
    """What makes figures of the two unlike though no fact of the environment says it, one line each.

    Args:
        a, b: the recordings.
        batches, ranks: whether batch sizes and the number of ranks should be the same.
    """
    said = []
    if a.trace.name == b.trace.name:
        said.append(f"{a.trace.name} is given twice: nothing differs, and bounds are the noise of its own cycles")
    said += [
        f"{m.trace.name}: the untraced cycles are those of another run, given beside the trace"
        for m in (a, b)
        if m.controlled and control_is_another_run(m.cycles)
    ]
    sizes = a.batch_size, b.batch_size
    if batches and max(sizes) > BATCH_APART * min(sizes):
        said.append(f"batch sizes differ: {about(sizes[0])} in {a.trace.name}, {about(sizes[1])} in {b.trace.name}")
    there = len(a.breakdown.ranks), len(b.breakdown.ranks)
    if ranks and there[0] != there[1]:
        said.append(
            f"{counted(there[0], 'rank')} in {a.trace.name}, {there[1]} in {b.trace.name}: figures are means over those at hand"
        )
    devices = [{r.device for r in m.breakdown.ranks} for m in (a, b)]
    if devices[0] != devices[1]:
        said.append(
            f"{a.trace.name} ran on {' and '.join(sorted(devices[0]))}, {b.trace.name} on {' and '.join(sorted(devices[1]))}: their times "
            "are of different things"
        )
    servers = [environment_of(m.trace).get("server") or {} for m in (a, b)]
    names = [s.get("name") for s in servers]
    if all(names) and names[0] != names[1] and all(argument_section(environment_of(m.trace)) for m in (a, b)):
        said.append(
            f"{names[0]} and {names[1]} have arguments of their own: those that only one of them has are not compared"
        )
    return said
