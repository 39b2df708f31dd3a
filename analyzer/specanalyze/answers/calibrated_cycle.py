"""The mean cycle by phase and bucket as it is without observing (rule D6), and what lies outside its phases."""

from __future__ import annotations

from specanalyze.answers.calibration import FEW
from specanalyze.answers.measured import Measured
from specschema.phases import IDLE_BUCKETS


def calibrated_cycle(m: Measured) -> tuple[dict[str, dict[str, float]], float, list[str]]:
    """Busy time as measured, idle time scaled to the untraced cycle.

    Returns:
        Phase -> bucket -> ns a cycle; what of the cycle lies outside the phases, ns; a warning where there is no untraced control
        (then nothing is scaled).
    """
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
    rest = m.step_ns - sum(sum(row.values()) for row in cells.values())
    return cells, rest, warnings
