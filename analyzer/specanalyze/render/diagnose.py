"""A diagnosis as a person reads it: findings in order, each with all it stands on."""

from __future__ import annotations

import polars as pl
from rich.padding import Padding
from rich.text import Text

from specanalyze.answers.cycle_account import PHASES, TRACED, UNTRACED
from specanalyze.diagnosis.diagnose import Diagnosis
from specanalyze.render.recording_name import short_name
from specanalyze.render.terminal import Prose, console, milliseconds, notes
from specschema.figures import percent

_CYCLE = {UNTRACED: "untraced cycle", TRACED: "traced cycle", PHASES: "phases of a traced cycle"}
_WHY = "; they can come to more than the cycle, which is a median and not always of the same cycles"


def draw(result: Diagnosis) -> None:
    """Print the diagnosis."""
    out = console()
    speed = "" if result.tokens_per_second is None else f", {result.tokens_per_second:.1f} tok/s"
    cycle = f"{_CYCLE[result.clock]} {milliseconds(result.cycle_ns)} ms{speed}"
    out.print(Text(f"{short_name(result.name)}: {cycle}", style="bold"))
    out.print()
    if not result.findings.height:
        out.print("no finding")
        out.print()
    for number, row in enumerate(result.findings.iter_rows(named=True), 1):
        out.print(Prose(f"{number}. {row['title']}", "bold"))
        out.print(Padding(Prose(f"{_win(row)}; confidence {row['confidence']}", "green"), (0, 0, 0, 3)))
        for line in row["evidence"]:
            out.print(Padding(Prose(f"· {line}"), (0, 0, 0, 3)))
        if row["withheld"] is not None:
            out.print(Padding(Prose(f"advice {row['withheld']}", "yellow"), (0, 0, 0, 3)))
        else:
            out.print(Padding(Prose(f"turn: {row['knob']}"), (0, 0, 0, 3)))
        out.print(Padding(Prose(f"wrong if: {row['disproof']}", "dim"), (0, 0, 0, 3)))
        out.print()
    said = []
    wins = result.findings.filter(pl.col("win_ns_per_cycle") > 0)
    if wins.height:
        together = float(wins["beyond_ns_per_cycle"].sum())
        said.append(
            f"wins are upper bounds and overlap; together they are no more than {milliseconds(together)} ms a cycle"
        )
    if result.window_cycle_ns != result.cycle_ns:
        said.append(
            f"findings are about the cycle at the place of the windows ({milliseconds(result.window_cycle_ns)} ms untraced); over the "
            f"whole recording it is {milliseconds(result.cycle_ns)} ms (untraced, too)"
        )
    said.append(f"cycle and tok/s: {result.covers['cycle_ns']}")
    said.append(f"phases, buckets and wins: {result.covers['phases, buckets and wins']}{_WHY}")
    if result.clean:
        said.append("looked and found nothing: " + ", ".join(result.clean))
    said += [f"not checked, {name}: {reason}" for name, reason in result.not_checked.items()]
    if wins.height:
        said.append("next: change one thing, record again, and see what moved: specanalyze compare BEFORE AFTER")
    notes(out, said)


def _win(row: dict[str, object]) -> str:
    if row["withheld"] is not None:
        return "win withheld"
    per_token, per_cycle = row["win_ms_per_token"], row["win_ns_per_cycle"]
    if not isinstance(per_cycle, float):
        return "win not to be told from this recording"
    own = row["beyond_ns_per_cycle"]
    share = own / per_cycle if isinstance(own, float) and per_cycle else 1.0
    overlap = "" if share > 0.995 else f", {percent(share, 0)} of it beyond the findings above"
    if share < 0.005:
        overlap = ", all of it in the findings above"
    if isinstance(per_token, float):
        return f"up to {per_token:.3f} ms a token{overlap}"
    return f"up to {milliseconds(per_cycle)} ms a cycle (tokens are not recorded){overlap}"
