"""A diagnosis as a person reads it: findings in order, each with all it stands on."""

from __future__ import annotations

from rich.padding import Padding
from rich.text import Text

from specanalyze.diagnose import Diagnosis
from specanalyze.render.terminal import console, milliseconds, notes


def draw(result: Diagnosis) -> None:
    """Print the diagnosis."""
    out = console()
    speed = "" if result.tokens_per_second is None else f", {result.tokens_per_second:.1f} tok/s"
    out.print(Text(f"{result.name}: cycle {milliseconds(result.cycle_ns)} ms{speed}", style="bold"))
    out.print()
    if not result.findings.height:
        out.print("no finding")
        out.print()
    for number, row in enumerate(result.findings.iter_rows(named=True), 1):
        out.print(Text(f"{number}. {row['title']}", style="bold"))
        out.print(Padding(Text(f"{_win(row)}; confidence {row['confidence']}", style="green"), (0, 0, 0, 3)))
        for line in row["evidence"]:
            out.print(Padding(Text(f"· {line}"), (0, 0, 0, 3)))
        if row["withheld"] is not None:
            out.print(Padding(Text(f"advice {row['withheld']}", style="yellow"), (0, 0, 0, 3)))
        else:
            out.print(Padding(Text(f"turn: {row['knob']}"), (0, 0, 0, 3)))
        out.print(Padding(Text(f"wrong if: {row['disproof']}", style="dim"), (0, 0, 0, 3)))
        out.print()
    said = ["wins are upper bounds and overlap: they do not add up"] if result.findings.height else []
    if result.clean:
        said.append("looked and found nothing: " + ", ".join(result.clean))
    said += [f"not checked, {name}: {reason}" for name, reason in result.not_checked.items()]
    notes(out, said)


def _win(row: dict[str, object]) -> str:
    if row["withheld"] is not None:
        return "win withheld"
    per_token, per_cycle = row["win_ms_per_token"], row["win_ns_per_cycle"]
    if isinstance(per_token, float):
        return f"up to {per_token:.3f} ms a token"
    if isinstance(per_cycle, float):
        return f"up to {milliseconds(per_cycle)} ms a cycle (tokens are not recorded)"
    return "win not to be told from this recording"
