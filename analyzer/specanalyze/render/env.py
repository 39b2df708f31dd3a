"""What ran, as a person reads it: one table a section, units beside figures, long lists cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from specanalyze.render.recording_name import short_name
from specanalyze.render.terminal import console, notes, table
from specschema.figures import counted

LONGEST: Final = 240
"""Characters of a value in the terminal; ``--all``, ``--json`` and ``--output`` have all of it."""
_WHOLE: Final = re.compile(r"(?:^|\.)command_line")
"""What was typed to start the server is never cut."""
_ITEMS: Final = re.compile(r"[, ]+")
_FEW_ITEMS: Final = 4


def _unit(unit: str) -> Callable[[list[int]], str]:
    return lambda figures: f"{figures[0]} {unit}"


def _mode(figures: list[int]) -> str:
    """NVML tells a mode by two switches: the current one and what it will be after the next reset (``nvmlDeviceGetEccMode``)."""
    words = ["on" if figure else "off" for figure in figures]
    return words[0] if len(set(words)) == 1 else f"{words[0]}, {words[-1]} after the next reset"


def _gpus(figures: list[int]) -> str:
    return " and ".join(f"GPU {figure}" for figure in figures)


def _row_groups(figures: list[int]) -> str:
    return f"{counted(figures[-1], 'row group')} from number {figures[0]}"


def _span(figures: list[int]) -> str:
    return f"from {figures[0]} to {figures[-1]}"


def _cuda(figures: list[int]) -> str:
    """``CUDA_VERSION`` is 1000 times the major version and 10 times the minor one."""
    return f"{figures[0]}, CUDA {figures[0] // 1000}.{figures[0] % 1000 // 10}"


def _hip(figures: list[int]) -> str:
    """``HIP_VERSION`` is 10**7 times the major version, 10**5 times the minor one and the patch."""
    return f"{figures[0]}, HIP {figures[0] // 10**7}.{figures[0] % 10**7 // 10**5}.{figures[0] % 10**5}"


_MEANINGS: Final[tuple[tuple[re.Pattern[str], Callable[[list[int]], str]], ...]] = (
    (re.compile(r"gpus\[\d+\]\.memory$"), _unit("bytes")),
    (re.compile(r"gpus\[\d+\]\.power_limit$"), _unit("mW")),
    (re.compile(r"gpus\[\d+\]\.clock_\w+$"), _unit("MHz")),
    (re.compile(r"gpus\[\d+\]\.nvlinks$"), lambda figures: f"{counted(figures[0], 'active link')}"),
    (re.compile(r"gpus\[\d+\]\.(?:ecc|mig)$"), _mode),
    (re.compile(r"links\[\d+\]\.gpus$"), _gpus),
    (re.compile(r"cuda_(?:driver|runtime)$"), _cuda),
    (re.compile(r"hip_(?:driver|runtime)$"), _hip),
    (re.compile(r"settings\.(?:skip|warmup|record|gap)$"), lambda figures: counted(figures[0], "cycle")),
    (re.compile(r"settings\.repeat$"), lambda figures: counted(figures[0], "window")),
    (re.compile(r"\[\d+\]\.row_groups$"), _row_groups),
    (re.compile(r"windows\[\d+\]\.read_ns$"), _span),
    (re.compile(r"warmups\[\d+\]\.warmup$"), lambda figures: f"cycles {figures[0]} to {figures[-1] - 1}"),
    (re.compile(r"clock_offset_ns$"), lambda figures: f"{figures[0]} at its begin, {figures[-1]} at its end"),
)
"""Figures whose names do not say what they mean: NVML's as ``speccollect.environment.gpu_facts`` writes them, Kineto's versions, the places of
``specschema.metadata``."""
_FIGURES: Final = re.compile(r"-?\d{1,20}(?: -?\d{1,20})*")
_NUMBERED: Final = (
    (re.compile(r"environment\.(?:gpus|links)\["), "gpus[N] and GPU N: as NVML numbers them"),
    (re.compile(r"(?:recording\.(?:lost|totals)|clock\.ranks)\.\d+\."), "lost.N, totals.N and ranks.N: of rank N"),
)
"""Numbers inside names, and what is said below the tables where they occur."""

_FOLDED: Final = (
    ("resolved server argument", re.compile(r"environment\.server_args\.")),
    ("figure of the profiler's windows", re.compile(r"recording\.(?:windows|warmups)\[")),
    ("fact of process groups", re.compile(r"ranks\[\d+\]\.process_groups\[")),
)
"""What a person does not look for here: a server resolves hundreds of arguments (what was typed is the command line), the costs
of each window belong to ``overhead``, and a profiler lists every process group."""


def draw(
    name: str,
    sections: Mapping[str, Any],
    pairs: Sequence[tuple[str, str]],
    remarks: Sequence[str] = (),
    *,
    everything: bool,
) -> None:
    """Print the metadata.

    Args:
        name: the recording.
        sections: name -> value; sections without one are left out.
        pairs: (dotted name, text) of everything in them.
        remarks: what figures among them cover, one line each.
        everything: nothing is folded or cut.
    """
    out = console()
    kept, said = (list(pairs), []) if everything else shown(pairs)
    out.print(Text(f"{short_name(name)}: what ran", style="bold"))
    for section in sorted((n for n, value in sections.items() if value), key=lambda n: n != "environment"):
        own = [(n.removeprefix(section).removeprefix("."), v) for n, v in kept if _belongs(n, section)]
        out.print(
            table(section, [("name", "left"), ("value", "left")], [(n, in_words(n, v) or "none") for n, v in own])
        )
    if not sections.get("environment"):
        said.append("the trace does not say what it ran on; the collector records it")
    said += [meaning for pattern, meaning in _NUMBERED if any(pattern.match(n) for n, _ in kept)]
    said += remarks
    said.append("read from metadata alone: whether the events behind it are whole, `specanalyze validate` tells")
    notes(out, said)


def _belongs(name: str, section: str) -> bool:
    return name == section or name.startswith((f"{section}.", f"{section}["))


def in_words(name: str, value: str) -> str:
    """``gpus[0].power_limit``, ``700000`` -> ``700000 mW``; ``gpus[0].ecc``, ``1 1`` -> ``on``; other values as they are."""
    meaning = next((meaning for pattern, meaning in _MEANINGS if pattern.search(name)), None)
    if meaning is None or not _FIGURES.fullmatch(value):
        return value
    return meaning([int(word) for word in value.split(" ")])


def shown(pairs: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs that a person looks for, cut to LONGEST, and what was left out."""
    typed = any(name.startswith("environment.command_line") and value for name, value in pairs)
    folded: dict[str, int] = {}
    kept = []
    for name, value in pairs:
        noun = next((noun for noun, pattern in _FOLDED if pattern.match(name)), None)
        if noun is not None and (typed or not name.startswith("environment.")):
            folded[noun] = folded.get(noun, 0) + 1
        else:
            kept.append((name, value if _WHOLE.search(name) else cut(value)))
    listed = ", ".join(_counted(n, noun) for noun, n in folded.items())
    return kept, [f"not shown: {listed}; --all, --json and --output have them"] if listed else []


def _counted(n: int, noun: str) -> str:
    """The noun before ``of`` is the one that is counted."""
    head, of, rest = noun.partition(" of ")
    return counted(n, head) + of + rest


def cut(value: str) -> str:
    """A long value by its beginning; a list between two of its items."""
    if len(value) <= LONGEST:
        return value
    ends = [match.start() for match in _ITEMS.finditer(value)]
    fitting = [end for end in ends if end <= LONGEST]
    if len(fitting) >= _FEW_ITEMS:
        return f"{value[: fitting[-1]]} … and {counted(len(ends) - len(fitting) + 1, 'more item')} (--all)"
    return f"{value[:LONGEST]}… ({counted(len(value), 'character')}; --all)"
