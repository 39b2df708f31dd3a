"""Whether recordings whose figures are set side by side ran on the same environment."""

from __future__ import annotations

from collections.abc import Callable

from specanalyze.answers.advice import SETTINGS, advice, collected
from specanalyze.answers.environment import differences, environment_of, shown, unknown
from specanalyze.trace import Trace
from specschema.errors import TraceError


def check_baseline(baseline: Trace, trace: Trace, *, accept: bool = False, what: str = "") -> list[str]:
    """Refuse a baseline that ran on something else.

    Args:
        baseline: the recording to measure against.
        trace: the recording to judge.
        accept: True lets the differences pass; they are still said.
        what: figure of the baseline that would be misleading, such as ``90.1 tok/s``.

    Returns:
        Warnings: accepted differences, and facts that could not be checked.

    Raises:
        TraceError: the environments differ in what matters; the message names every such fact.
    """
    figure = f" its {what} would mislead;" if what else ""
    return check_environment(baseline, trace, accept=accept, role="baseline", refusal="stale baseline: ", figure=figure)


def check_environment(
    first: Trace,
    trace: Trace,
    *,
    accept: bool = False,
    role: str = "recording",
    refusal: str = "",
    figure: str = "",
    varied: Callable[[str], bool] = lambda name: False,
) -> list[str]:
    """Refuse two recordings that ran on something else where their figures are to be set side by side.

    Args:
        first: the recording that the other is set beside.
        trace: the other.
        accept: True lets the differences pass; they are still said.
        role: what the first is.
        refusal: how the message begins.
        figure: clause about what would mislead.
        varied: whether a fact differs on purpose.

    Returns, raises:
        As ``check_baseline``.
    """
    before, after = environment_of(first), environment_of(trace)
    matter = [d for d in differences(before, after) if d.matters and not varied(d.name)]
    each = ", ".join(f"{d.name} ({shown(d.before)} there, {shown(d.after)} here)" for d in matter)
    if matter and not accept:
        raise TraceError(
            f"{refusal}{first.short} ran on another environment than {trace.short}:{figure} {each}; "
            "record it again as the server runs now, or give --accept-differences"
        )
    said = [f"{role} {first.short} differs from {trace.short} in what matters, accepted: {each}"] if matter else []
    if missing := [name for name in unknown(before, after) if not varied(name)]:
        said.append(
            f"whether {first.short} ran on the same environment cannot be checked: {listed(missing)} not recorded in both; "
            + advice(trace if collected(first) else first, SETTINGS)
        )
    return said


def listed(names: list[str], most: int = 6) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
