"""Reads a server's Python sources with ``ast``: nothing of the server is imported.

``scripts/fetch_server_sources.sh FOLDER`` puts them at hand; SPECANALYZE_SERVER_SOURCES=FOLDER says where.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

from speccollect.hooks.points import HookPoint

NEEDS_SOURCES = (
    "no server sources: run scripts/fetch_server_sources.sh FOLDER and set SPECANALYZE_SERVER_SOURCES=FOLDER"
)


class ServerSources:
    """All fetched releases of one server."""

    def __init__(self, engine: str, folder: str | Path | None = None) -> None:
        named = os.environ.get("SPECANALYZE_SERVER_SOURCES", "") if folder is None else str(folder)
        self.folder = Path(named) / engine if named else None
        self._body = functools.lru_cache(maxsize=64)(self._read)

    def releases(self) -> list[str]:
        """Fetched releases, oldest first; empty where nothing is at hand."""
        if self.folder is None or not self.folder.is_dir():
            return []
        return sorted((entry.name for entry in self.folder.iterdir() if (entry / ".complete").exists()), key=Version)

    def _read(self, version: str, module: str) -> tuple[ast.stmt, ...] | None:
        assert self.folder is not None
        path = self.folder / version / (module.replace(".", "/") + ".py")
        return tuple(ast.parse(path.read_text()).body) if path.exists() else None

    def body(self, version: str, module: str) -> tuple[ast.stmt, ...] | None:
        """Statements of a module; None where the release has no such module."""
        return self._body(version, module)

    def definition(self, version: str, module: str, qualname: str) -> Any:
        """The class or function; None where the release lacks it."""
        scope: Any = self.body(version, module) or ()
        node = None
        for name in qualname.split("."):
            node = definition(scope, name)
            if node is None:
                return None
            scope = node.body
        return node

    def moved(self, version: str, point: HookPoint) -> str | None:
        """What of the point this release lacks, in words; None when all is there."""
        if self.body(version, point.module) is None:
            return f"no module {point.module}"
        node = self.definition(version, point.module, point.qualname)
        if node is None:
            return f"{point.module} has no {point.qualname}"
        arguments = node.args
        known = {a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
        lacking = [name for name in point.parameters if name not in known]
        return f"{point.name} has no parameter {', '.join(lacking)}" if lacking else None


def definition(body: tuple[ast.stmt, ...] | list[ast.stmt], name: str) -> Any:
    """The class or function ``name`` of a body; also inside ``if`` and ``try`` blocks at its top."""
    for statement in body:
        if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and statement.name == name:
            return statement
        for block in ("body", "orelse"):
            if isinstance(statement, (ast.If, ast.Try)):
                found = definition(getattr(statement, block), name)
                if found is not None:
                    return found
    return None


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Names that a class defines: methods, fields, and attributes that its methods set."""
    for statement in ast.walk(node):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Attribute) and isinstance(statement.ctx, ast.Store):
            yield statement.attr
