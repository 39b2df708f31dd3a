"""The mean cycle by phase and bucket as it is without observing (rule D6), and what lies outside its phases."""

from __future__ import annotations

from dataclasses import dataclass

from specanalyze.answers.measured import Measured
from specanalyze.answers.neighbours import FEW
from specschema.phases import IDLE_BUCKETS


@dataclass(frozen=True)
class CalibratedCycle:
    """The typical cycle, as it is without observing.

    Attributes:
        cells: phase -> bucket -> ns a cycle: busy time as measured, idle time scaled to the untraced cycle of the windows.
        rest_ns: what of that cycle lies outside the phases.
        elsewhere_ns: what the typical cycle of the whole recording takes more than that at the place of the windows: its context is
            another one; 0 where cycles do not depend on their place.
        warnings: where there is no untraced control (then nothing is scaled), and where there is time elsewhere.
    """

    cells: dict[str, dict[str, float]]
    rest_ns: float
    elsewhere_ns: float
    warnings: list[str]


def calibrated_cycle(m: Measured) -> CalibratedCycle:
    """Busy time as measured, idle time scaled to the untraced cycle."""
    cells = m.mean_ns()
    warnings = []
    factor = m.idle_factor
    if factor is None:
        warnings.append(
            f"fewer than {FEW} untraced control cycles: launch, gap and host times and the cycle are those of an observed run, too long; "
            "a prediction that removes them is no ground for a decision"
        )
    else:
        cells = {
            p: {b: ns * (factor if b in IDLE_BUCKETS else 1.0) for b, ns in row.items()} for p, row in cells.items()
        }
    elsewhere = m.step_ns - m.window_step_ns
    if elsewhere:
        warnings.append(
            f"{m.trace.name}: a cycle takes {m.window_step_ns / 1e6:.3f} ms at the place of the windows and {m.step_ns / 1e6:.3f} over the whole "
            "recording: parts of the cycle are those of the windows, the difference stays as it is"
        )
    rest = m.window_step_ns - sum(sum(row.values()) for row in cells.values())
    return CalibratedCycle(cells, rest, elsewhere, warnings)
