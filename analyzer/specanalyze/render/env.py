"""What ran, as a person reads it: one table a section, units beside figures, long lists cut."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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

_UNITS: Final = (
    (re.compile(r"gpus\[\d+\]\.memory$"), "bytes"),
    (re.compile(r"gpus\[\d+\]\.power_limit$"), "mW"),
    (re.compile(r"gpus\[\d+\]\.clock_\w+$"), "MHz"),
)
"""Figures whose names do not say their unit (NVML's, as ``speccollect.gpu_facts`` writes them)."""

_FOLDED: Final = (
    ("resolved server argument", re.compile(r"environment\.server_args\.")),
    ("figure of the profiler's windows", re.compile(r"recording\.(?:windows|warmups)\[")),
    ("fact of process groups", re.compile(r"ranks\[\d+\]\.process_groups\[")),
)
"""What a person does not look for here: a server resolves hundreds of arguments (what was typed is the command line), the costs
of each window belong to ``overhead``, and a profiler lists every process group."""


def draw(name: str, sections: Mapping[str, Any], pairs: Sequence[tuple[str, str]], *, everything: bool) -> None:
    """Print the metadata.

    Args:
        name: the recording.
        sections: name -> value; sections without one are left out.
        pairs: (dotted name, text) of everything in them.
        everything: nothing is folded or cut.
    """
    out = console()
    kept, said = (list(pairs), []) if everything else shown(pairs)
    out.print(Text(f"{short_name(name)}: what ran", style="bold"))
    for section in sorted((n for n, value in sections.items() if value), key=lambda n: n != "environment"):
        own = [(n.removeprefix(section).removeprefix("."), v) for n, v in kept if _belongs(n, section)]
        out.print(
            table(section, [("name", "left"), ("value", "left")], [(n, with_unit(n, v) or "none") for n, v in own])
        )
    if not sections.get("environment"):
        said.append("the trace does not say what it ran on; the collector records it")
    said.append("read from metadata alone: whether the events behind it are whole, `specanalyze validate` tells")
    notes(out, said)


def _belongs(name: str, section: str) -> bool:
    return name == section or name.startswith((f"{section}.", f"{section}["))


def with_unit(name: str, value: str) -> str:
    """``power_limit``, ``700000`` -> ``700000 mW``."""
    unit = next((unit for pattern, unit in _UNITS if pattern.search(name)), None)
    return f"{value} {unit}" if unit is not None and value.isdecimal() else value


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
