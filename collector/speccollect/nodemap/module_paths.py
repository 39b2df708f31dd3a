"""Dotted paths of modules that run: below their outermost module, which gives the first part by its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Paths = Mapping[int, Mapping[int, str]]
"""``id`` of an outermost module -> ``id`` of each module below it -> its path."""


def paths_below(roots: Sequence[Any]) -> dict[int, dict[int, str]]:
    """Path of every module below each of the outermost ones, beginning with the root's class.

    A model may hold another one's modules (a draft model with its target's lm_head): each root has its own paths.
    """
    paths: dict[int, dict[int, str]] = {}
    for root in roots:
        if id(root) in paths:
            continue
        own = paths[id(root)] = {}
        for name, module in root.named_modules():
            own.setdefault(id(module), f"{type(root).__name__}.{name}" if name else type(root).__name__)
    return paths


def path_of(running: Sequence[Any], paths: Paths) -> str | None:
    """Path of the innermost of the running modules, outermost first.

    A module that several layers share (one rotary embedding for all of them) has the path of the first; where it runs
    inside another one of the same model, its path is that one's and its own name.
    """
    path: str | None = None
    for module in running:
        own = _own(module, running[0], paths)
        above, path = path, own
        if above is not None and own is not None and not own.startswith(f"{above}."):
            shared = own.partition(".")[0] == above.partition(".")[0]
            path = f"{above}.{own.rpartition('.')[2]}" if shared else own
    return path


def _own(module: Any, root: Any, paths: Paths) -> str | None:
    """A module's path below the outermost running one; below another root where it is none of its own."""
    found = paths.get(id(root), {}).get(id(module))
    return found or next((p[id(module)] for p in paths.values() if id(module) in p), None)
