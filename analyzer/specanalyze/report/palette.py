"""Colours of buckets, phases and recordings: always the same, told apart by the colour-blind, on paper and in the dark.

Device work is blue, green and violet, communication orange, memory yellow, idle time grey; the hues are those of Okabe and Ito
(2008) with lighter and darker steps. Plots name a colour by a CSS variable, so that dark mode and printing need no redrawing.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Colour(NamedTuple):
    """A colour on white paper and on a dark screen."""

    light: str
    dark: str


COLOURS: Final[dict[str, Colour]] = {
    "attention": Colour("#0072b2", "#2b95d6"),
    "moe": Colour("#007f5b", "#18b58a"),
    "gemm": Colour("#56b4e9", "#8accf2"),
    "other_compute": Colour("#7a4fb0", "#8559c9"),
    "graph_unresolved": Colour("#7a5c2e", "#b08d57"),
    "allreduce": Colour("#d55e00", "#f07a1f"),
    "other_comm": Colour("#f0a500", "#f5b93d"),
    "memcpy": Colour("#e6d800", "#f0e442"),
    "graph_gap": Colour("#595959", "#a6a6a6"),
    "graph_launch": Colour("#8c8c8c", "#808080"),
    "launch": Colour("#b3b3b3", "#5c5c5c"),
    "host": Colour("#dcdcdc", "#3d3d3d"),
    "draft": Colour("#cc79a7", "#e08fbd"),
    "verify": Colour("#26356f", "#6f8cf0"),
    "draft_extend": Colour("#8f3f71", "#c46ba2"),
    "prefill": Colour("#2f7f7a", "#56b3ad"),
    "decode": Colour("#26356f", "#6f8cf0"),
    "idle": Colour("#a0a0a0", "#707070"),
    "cycle": Colour("#c9c2b4", "#57524a"),
    "inner": Colour("#9db2c9", "#4d6278"),
    "wait": Colour("#a63c06", "#ff9a57"),
    "transfer": Colour("#f0a500", "#f5b93d"),
    "traced": Colour("#d55e00", "#f07a1f"),
    "untraced": Colour("#0072b2", "#2b95d6"),
    "disturbed": Colour("#8c8c8c", "#808080"),
    "slower": Colour("#d55e00", "#f07a1f"),
    "faster": Colour("#0072b2", "#2b95d6"),
    "undecided": Colour("#8c8c8c", "#808080"),
    "recording-0": Colour("#0072b2", "#2b95d6"),
    "recording-1": Colour("#d55e00", "#f07a1f"),
    "recording-2": Colour("#007f5b", "#18b58a"),
    "recording-3": Colour("#cc79a7", "#e08fbd"),
    "recording-4": Colour("#f0a500", "#f5b93d"),
    "recording-5": Colour("#56b4e9", "#8accf2"),
}
"""Key -> colour."""


NAMES: Final[dict[str, str]] = {
    "attention": "attention",
    "moe": "MoE",
    "gemm": "GEMM",
    "other_compute": "other compute",
    "graph_unresolved": "whole replay, kernels unknown",
    "allreduce": "allreduce",
    "other_comm": "other communication",
    "memcpy": "copies and fills",
    "graph_gap": "gaps inside replays",
    "graph_launch": "graph launch",
    "launch": "launch call",
    "draft_extend": "draft extend",
    "inner": "range inside a phase",
}
"""Key -> what a reader is shown; every other key is shown as it is."""


def shown_as(key: str) -> str:
    """What a reader is shown for a bucket or phase: ``moe`` -> ``MoE``."""
    return NAMES.get(key, key.replace("_", " "))


def variable(key: str) -> str:
    """The CSS value that stands for a colour: ``moe`` -> ``var(--c-moe)``."""
    return f"var(--c-{key.replace('_', '-')})"


def recording(place: int) -> str:
    """Colour of the n-th recording, from 0."""
    return variable(f"recording-{place % 6}")


def definitions(dark: bool) -> str:
    """The CSS variables of one theme."""
    return "".join(f"--c-{k.replace('_', '-')}:{c.dark if dark else c.light};" for k, c in COLOURS.items())
