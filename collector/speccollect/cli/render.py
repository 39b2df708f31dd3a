"""What `speccollect` prints: tables and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from speccollect.control.status import RankStatus, alive, nobody, unreadable
from speccollect.control.word import Command
from speccollect.request.session import Session
from speccollect.trace.merge import Merged
from speccollect.trace.phase_table import PhaseTable, phase_table
from specschema.figures import counted, percent, rounded

_WIDEST_TABLE: Final = 100
"""Columns that each table here fits into."""


def _table(*columns: tuple[str, str]) -> Table:
    """A table of (header, ``left`` or ``right``) columns whose cells are never broken nor cut."""
    view = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for header, side in columns:
        view.add_column(header, justify="right" if side == "right" else "left", no_wrap=True)
    return view


def _print_whole(console: Console, view: Table) -> None:
    """Print a table; a narrower terminal breaks its lines, where rich would cut figures."""
    width = console.width
    console.width = max(width, _WIDEST_TABLE)
    try:
        console.print(view)
    finally:
        console.width = width


class _Rate(ProgressColumn):
    """Tokens per second so far."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} tok/s")


@contextmanager
def progress(total: int, console: Console | None = None) -> Iterator[Callable[[int], None]]:
    """A bar of generated tokens; yields the function that adds to it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} tokens"),
        _Rate(),
        TimeElapsedColumn(),
    )
    console = console or Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("recording", total=total)
        yield lambda tokens: bar.advance(task, tokens)


def _number(value: float | int | None, unit: str = "", digits: int = 1) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.{digits}f}{unit}" if isinstance(value, float) else f"{value:,}{unit}"


def _spread(values: dict[str, float] | None, unit: str) -> str:
    if values is None:
        return "unknown"
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items()) + f" {unit}"


def phases(table: PhaseTable) -> Table:
    """The phase table."""
    device_columns = [("device\nbusy ms", "right")] if table.device_ms else []
    view = _table(("phase", "left"), ("host ms", "right"), ("of cycle", "right"), *device_columns)
    rest = table.cycle_ms - sum(table.host_ms.values())
    for name, value in {**table.host_ms, "other": rest}.items():
        device = table.device_ms.get(name)
        cells = [name, rounded(value, 3), percent(value / table.cycle_ms)]
        view.add_row(*cells, *(["" if device is None else f"{device:.3f}"] if table.device_ms else []))
    total = [f"{sum(table.device_ms.values()):.3f}"] if table.device_ms else []
    view.add_row("cycle", f"{table.cycle_ms:.3f}", percent(1.0), *total)
    return view


def _totals(recording: dict[str, Any]) -> Iterator[str]:
    for rank, totals in recording.get("totals", {}).items():
        if totals["equal"] is None:
            continue
        if totals["equal"]:
            yield f"rank {rank}: accept lengths add up to the {totals['told_by']}'s {totals['completion_tokens']} tokens"
        else:
            yield (
                f"rank {rank}: accept lengths differ from the {totals['told_by']}'s {totals['completion_tokens']} "
                f"tokens by {totals['difference']} ({counted(totals['cycles_without_lengths'], 'cycle')} without lengths)"
            )


def show_merged(merged: Merged, console: Console | None = None) -> None:
    """What was written, and what is wrong with it."""
    console = console or Console()
    _show_problems(merged.problems, console)
    for line in _totals(merged.recording):
        console.print(line, markup=False, soft_wrap=True)
    ranks = ", ".join(map(str, merged.ranks))
    windows = sorted({w["window"] for w in merged.recording.get("windows", [])})
    console.print(
        f"{merged.path}: {merged.rows:,} {'event' if merged.rows == 1 else 'events'}, {'rank' if len(merged.ranks) == 1 else 'ranks'} {ranks}, "
        f"{counted(len(windows), 'profiler window')}",
        markup=False,
        soft_wrap=True,
    )


def _show_problems(problems: Sequence[str], console: Console) -> None:
    for problem in dict.fromkeys(problems):
        console.print(f"[yellow]warning[/yellow] {escape(problem)}", soft_wrap=True)


def show_trace(path: Path, console: Console | None = None) -> None:
    """The phase table of a trace and what to do next."""
    console = console or Console()
    table = phase_table(path)
    if table is None:
        console.print("no decode cycle was recorded", markup=False, soft_wrap=True)
    else:
        where = "inside profiler windows: slower than the server is" if table.traced else "untraced"
        console.print(
            f"rank {table.rank}: {counted(table.cycles, f'{table.mode} cycle')} ({where})", markup=False, soft_wrap=True
        )
        _print_whole(console, phases(table))
        if table.device_ms:
            console.print(
                "host: how long the phase's code ran; device: how long its kernels ran, in profiled cycles",
                markup=False,
                soft_wrap=True,
            )
        if table.accept_length is not None:
            console.print(
                f"accept length {table.accept_length:.3f} tokens a step, bonus included", markup=False, soft_wrap=True
            )
    console.print(f"next: specanalyze breakdown {path}", markup=False, soft_wrap=True)


def show_session(session: Session, console: Console | None = None) -> None:
    """Usage, speed and the phase table of a recorded run."""
    console = console or Console()
    summary = session.summary
    console.print(
        f"{counted(summary['requests'], 'request')} ({summary['failed']} failed), {_number(summary['prompt_tokens'])} prompt tokens, "
        f"{_number(summary['completion_tokens'])} completion tokens",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"{_number(summary['tokens_per_second'])} tok/s over all, {_number(summary['decode_tokens_per_second'])} tok/s "
        "while decoding",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"time to first token: {_spread(summary['first_token_ms'], 'ms')}", markup=False, soft_wrap=True)
    console.print(
        f"between chunks: {_spread(summary['chunk_gap_ms'], 'ms')} "
        f"({_number(summary['tokens_per_chunk'], digits=2)} tokens a chunk)",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"per token: {_spread(summary['token_gap_ms'], 'ms')}", markup=False, soft_wrap=True)
    if session.merged.recording["windows"]:
        console.print(
            "speeds and times of the whole run, its profiler windows and the pauses after them included: slower than the server is; specanalyze phases "
            "tells untraced cycles apart",
            markup=False,
            soft_wrap=True,
        )
    _show_problems(session.problems, console)
    show_merged(
        Merged(session.merged.path, session.merged.rows, session.merged.ranks, [], session.merged.recording), console
    )
    show_trace(session.merged.path, console)


def show_status(folder: Path, command: Command, statuses: Sequence[RankStatus], console: Console | None = None) -> None:
    """The ranks of a folder."""
    console = console or Console()
    state = f"recording {command.recording} is armed" if command.armed else "disarmed"
    console.print(f"{folder}: {state}", markup=False, soft_wrap=True)
    if damaged := unreadable(folder):
        _show_problems(
            [
                f"{', '.join(damaged[:3])}{', ...' if len(damaged) > 3 else ''} can't be read: damaged, or not written by a rank"
            ],
            console,
        )
    if not statuses:
        console.print(nobody(folder), markup=False, soft_wrap=True)
        return
    named = ("process", "recording", "cycles", "windows", "lost")
    view = _table(("rank", "right"), ("state", "left"), *((name, "right") for name in named))
    for status in statuses:
        state = status.state if alive(status) is not False else f"{status.state}, process gone"
        figures = (status.pid, status.recording, status.cycles, status.windows, status.lost)
        view.add_row(str(status.rank), state, *map(str, figures))
    _print_whole(console, view)
    for status in statuses:
        if status.message:
            console.print(f"rank {status.rank}: {status.message}", markup=False, soft_wrap=True)
