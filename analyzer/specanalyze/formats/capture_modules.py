"""Paths of the modules that a profiler saw called: ``Qwen3Model.layers.3.Qwen3Attention.QKVParallelLinear``."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import polars as pl

from specanalyze.columns import Ints, integers
from specanalyze.formats.capture_rows import MODULE_ROW
from specanalyze.intervals import by_priority

LAYER_CLASS: Final = re.compile(r"(?:Decoder|Encoder|Transformer|Hybrid)(?:Layer|Block)$")
"""Classes of a model's layers; their place among the layers of their parent, in order of first call, is their number."""
_INSTANCE: Final = re.compile(r"(.+)_(\d+)")


def with_paths(modules: pl.DataFrame) -> pl.DataFrame:
    """Module calls with the path of the module that was called.

    A profiler knows a module's class and its instance, not the name that its parent gave it. So a path holds class names; several
    instances of a class under one parent are numbered in order of first call, and layers are ``layers.N``.

    Args:
        modules: rows ``module`` of capture_rows, in order of start, outer before inner.

    Returns:
        The rows with the columns module and module_class.
    """
    pid, tid = integers(modules, "pid", -1), integers(modules, "tid", -1)
    end = integers(modules, "end_ns", 0)
    names = [name.removeprefix(MODULE_ROW) for name in modules.get_column("name").to_list()]
    stacks: dict[tuple[int, int], list[tuple[int, tuple[str, ...]]]] = {}
    instances: list[tuple[str, ...]] = []
    under: dict[tuple[str, ...], list[str]] = {}
    # one turn a module call of a capture, not an event of a recording
    for name, process, thread, stop in zip(names, pid.tolist(), tid.tolist(), end.tolist(), strict=True):
        stack = stacks.setdefault((process, thread), [])
        while stack and stack[-1][0] < stop:  # one that ended before has an earlier end, too
            stack.pop()
        above = stack[-1][1] if stack else ()
        children = under.setdefault(above, [])
        if name not in children:
            children.append(name)
        stack.append((stop, (*above, name)))
        instances.append((*above, name))
    part = {(above, name): text for above, children in under.items() for name, text in _parts(children).items()}
    paths = {chain: ".".join(part[chain[:i], chain[i]] for i in range(len(chain))) for chain in {*instances}}
    return modules.with_columns(
        pl.Series("module", [paths[chain] for chain in instances], dtype=pl.String),
        pl.Series("module_class", [_class(name) for name in names], dtype=pl.String),
    )


def _class(instance: str) -> str:
    found = _INSTANCE.fullmatch(instance)
    return found.group(1) if found else instance


def _parts(children: list[str]) -> dict[str, str]:
    """Instances under one parent, in order of first call -> their parts of the path."""
    classes = [_class(name) for name in children]
    layers = [name for name, kind in zip(children, classes, strict=True) if LAYER_CLASS.search(kind)]
    parts = {name: f"layers.{number}" for number, name in enumerate(layers)}
    for kind in dict.fromkeys(classes):
        alike = [name for name, own in zip(children, classes, strict=True) if own == kind and name not in parts]
        plain = kind.replace(".", "_")
        parts |= {name: plain if len(alike) == 1 else f"{plain}_{n}" for n, name in enumerate(alike)}
    return parts


def around(ranges: pl.DataFrame, at: Ints, *, outermost: bool = False) -> Ints:
    """Index of the range that encloses each instant, the innermost or the outermost; -1 where none does.

    Args:
        ranges: of one thread, properly nested.
        at: instants, ns.
    """
    start, end = integers(ranges, "start_ns", 0), integers(ranges, "end_ns", 0)
    inner_first = np.lexsort((-np.arange(len(start)), end - start, -start))
    priority = np.empty(len(start), dtype=np.int64)
    priority[inner_first] = np.arange(len(start))
    segments = by_priority(start, end, -priority if outermost else priority)
    found = np.full(len(at), -1, dtype=np.int64)
    if len(segments.start):
        place = np.searchsorted(segments.start, at, side="right") - 1
        inside = (place >= 0) & (at < segments.end[place])
        found[inside] = segments.owner[place[inside]]
    return found
