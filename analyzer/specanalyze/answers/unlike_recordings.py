"""What two recordings differ in beside their environments: ranks, devices, batches, and whose untraced cycles they have."""

from __future__ import annotations

from typing import Final

from specanalyze.answers.environment import argument_section, environment_of
from specanalyze.answers.measured import Measured
from specanalyze.attribution.cycles import control_is_another_run
from specschema.errors import TraceError
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
        said.append(f"{a.trace.short} is given twice: nothing differs, and bounds are the noise of its own cycles")
    said += [
        f"{m.trace.short}: the untraced cycles are those of another run, given beside the trace"
        for m in (a, b)
        if m.controlled and control_is_another_run(m.cycles)
    ]
    sizes = a.batch_size, b.batch_size
    if batches and max(sizes) > BATCH_APART * min(sizes):
        said.append(f"batch sizes differ: {about(sizes[0])} in {a.trace.short}, {about(sizes[1])} in {b.trace.short}")
    there = len(a.breakdown.ranks), len(b.breakdown.ranks)
    if ranks and there[0] != there[1]:
        said.append(
            f"{counted(there[0], 'rank')} in {a.trace.short}, {there[1]} in {b.trace.short}: figures are means over those at hand"
        )
    if (other := _other_devices(a, b)) is not None:
        said.append(f"{other}, accepted")
    servers = [environment_of(m.trace).get("server") or {} for m in (a, b)]
    names = [s.get("name") for s in servers]
    if all(names) and names[0] != names[1] and all(argument_section(environment_of(m.trace)) for m in (a, b)):
        said.append(
            f"{names[0]} and {names[1]} have arguments of their own: those that only one of them has are not compared"
        )
    return said


def refuse_other_devices(a: Measured, b: Measured, *, accept: bool) -> None:
    """CPU operators beside GPU kernels are no comparison, whatever the environments say.

    Raises:
        TraceError: one ran on another kind of device than the other, and ``accept`` is false.
    """
    if not accept and (other := _other_devices(a, b)) is not None:
        raise TraceError(f"{other}; give recordings of one kind, or --accept-differences")


def _other_devices(a: Measured, b: Measured) -> str | None:
    there, here = (" and ".join(sorted({r.device for r in m.breakdown.ranks})) for m in (a, b))
    return (
        None
        if there == here
        else f"{a.trace.short} ran on {there}, {b.trace.short} on {here}: their times are of different things"
    )
