"""``breakeven`` in the terminal: the verdict in one sentence, then the figures."""

from __future__ import annotations

from typing import Any

from specanalyze.answers.bootstrap import Interval
from specanalyze.answers.breakeven import BreakEven, Clock
from specanalyze.render.recording_name import distinct_names
from specanalyze.render.terminal import console, milliseconds, notes, table
from specschema.figures import percent, rounded, signed


def draw(result: BreakEven) -> None:
    """Print the result."""
    out = console()
    out.print(_verdict(result), style="bold")
    rows = [
        [
            "speculative cycle, ms",
            milliseconds(result.cycle.median_ns.value),
            _bounds(result.cycle.median_ns, 1e6),
            _of(result.cycle),
        ],
        [
            "plain decode step, ms",
            milliseconds(result.step.median_ns.value),
            _bounds(result.step.median_ns, 1e6),
            _of(result.step),
        ],
        ["accept length that pays", f"{result.pays_at.value:.2f}", _bounds(result.pays_at, 1), "cycle / step"],
        ["accept length", rounded(result.accept_length, 2), "", "all verify steps, bonus token included"],
        ["plain decoding, tok/s a request", f"{result.baseline_tok_s:.1f}", "", "1 / step"],
        ["speculation, tok/s a request", rounded(result.tok_s), "", "accept length / cycle"],
        ["won, tok/s a request", signed(result.won_tok_s, 1), "", ""],
    ]
    columns = [("figure", "left"), ("value", "right"), ("95 % bounds", "right"), ("of", "left")]
    out.print(table(" against ".join(distinct_names((result.name, result.baseline))), columns, rows))
    if result.along.height:
        out.print()
        out.print(_along(result))
    if result.by_steps.height:
        steps = [
            [
                str(row["steps"]),
                f"{row['accept_length']:.2f}",
                milliseconds(row["budget_ns"]),
                f"{row['tok_s_at_least']:.1f}",
                "yes" if row["pays"] else "below that cycle",
            ]
            for row in result.by_steps.to_dicts()
        ]
        out.print()
        headers = [
            ("draft steps", "right"),
            ("accept\nlength", "right"),
            ("pays below a\ncycle of, ms", "right"),
            ("tok/s\nat least", "right"),
            ("pays", "left"),
        ]
        out.print(table("Per number of draft steps, from acceptance by position", headers, steps))
        notes(
            out,
            [
                "tok/s at least: with today's cycle; fewer drafts make a cycle shorter, never longer (see sweep and whatif)"
            ],
        )
    if result.won_tok_s is not None and result.won_tok_s < 0:
        notes(
            out,
            ["next: what to change first, from the same two recordings: specanalyze diagnose TRACE --baseline PLAIN"],
        )


def _verdict(result: BreakEven) -> str:
    return f"{_sentence(result)}{_unlike(result)}"


def _unlike(result: BreakEven) -> str:
    """What makes the verdict one of observed cycles."""
    cycle, step = result.cycle.traced, result.step.traced
    if cycle and step:
        return " Both times are of traced cycles, which observing makes longer."
    if cycle or step:
        return f" The {'cycle' if cycle else 'step'} is a traced one, the {'step' if cycle else 'cycle'} an untraced one: like is not weighed with like."
    return ""


def _sentence(result: BreakEven) -> str:
    pays = f"Speculation pays above an accept length of {result.pays_at.value:.2f}"
    if (
        result.accept_length is None
        or result.won_tok_s is None
        or result.tok_s is None
        or result.missing_tokens is None
    ):
        return f"{pays}; where this recording stands is not recorded."
    low, high = result.pays_at.low, result.pays_at.high
    if low is not None and high is not None and low <= result.accept_length <= high:
        return f"{pays}; at {result.accept_length:.2f} this recording is at the edge, within the noise."
    word = "loses" if result.won_tok_s < 0 else "wins"
    share = abs(result.won_tok_s) / result.baseline_tok_s
    return (
        f"{pays}; at {result.accept_length:.2f} this recording {word} {abs(result.won_tok_s):.1f} tok/s a request "
        f"({percent(share, 0)}): {result.tok_s:.1f} against {result.baseline_tok_s:.1f}."
    )


def _along(result: BreakEven) -> Any:
    rows = [
        [
            f"{row['context_tokens']:.0f}",
            milliseconds(row["cycle_ns"]),
            milliseconds(row["step_ns"]),
            f"{row['pays_at']:.2f}",
            f"{row['pays_at_low']:.2f} to {row['pays_at_high']:.2f}",
        ]
        for row in result.along.to_dicts()
    ]
    columns = [
        ("context,\ntokens", "right"),
        ("cycle ms", "right"),
        ("step ms", "right"),
        ("accept length\nthat pays", "right"),
        ("95 % bounds", "right"),
    ]
    return table("Over the context, from untraced cycles beside it", columns, rows)


def _bounds(of: Interval, unit: float) -> str:
    return "" if of.low is None or of.high is None else f"{of.low / unit:.2f} to {of.high / unit:.2f}"


def _of(clock: Clock) -> str:
    return f"median of {clock.cycles} {'TRACED' if clock.traced else 'untraced'} cycles"
