"""Every hook target of every release exists, with the parameters and attributes that the wrappers use.

Reads sources that ``scripts/fetch_server_sources.sh FOLDER`` has put at hand (SPECANALYZE_SERVER_SOURCES=FOLDER), with
``ast`` alone: nothing of the server is imported. A failure names what moved.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from speccollect.engines.sglang_cycle import CycleHooks
from speccollect.engines.sglang_points import OLDEST, READS, points
from speccollect.hooking import HookPoint

POINTS = points(CycleHooks(recorder=None))  # type: ignore[arg-type]  # only the table is looked at
FOLDER = os.environ.get("SPECANALYZE_SERVER_SOURCES", "")


def releases() -> list[str]:
    folder = Path(FOLDER) / "sglang"
    if not FOLDER or not folder.is_dir():
        return []
    return sorted((entry.name for entry in folder.iterdir() if (entry / ".complete").exists()), key=Version)


@functools.lru_cache(maxsize=64)
def module_body(version: str, module: str) -> tuple[ast.stmt, ...] | None:
    path = Path(FOLDER) / "sglang" / version / (module.replace(".", "/") + ".py")
    return tuple(ast.parse(path.read_text()).body) if path.exists() else None


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


def moved(version: str, point: HookPoint) -> str | None:
    """What of the point this release lacks, in words; None when all is there."""
    body = module_body(version, point.module)
    if body is None:
        return f"no module {point.module}"
    node: Any = None
    scope: Any = body
    for name in point.qualname.split("."):
        node = definition(scope, name)
        if node is None:
            return f"{point.module} has no {point.qualname}"
        scope = node.body
    arguments = node.args
    known = {a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
    lacking = [name for name in point.parameters if name not in known]
    return f"{point.name} has no parameter {', '.join(lacking)}" if lacking else None


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Names that a class defines: methods, fields, and attributes that its methods set."""
    for statement in ast.walk(node):
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield statement.name
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id
        elif isinstance(statement, ast.Attribute) and isinstance(statement.ctx, ast.Store):
            yield statement.attr


VERSIONS = releases()
NEEDS_SOURCES = (
    "no server sources: run scripts/fetch_server_sources.sh FOLDER and set SPECANALYZE_SERVER_SOURCES=FOLDER"
)


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_hook_target_of_the_release_exists(version: str) -> None:
    assert Version(version) >= Version(OLDEST)
    assert [what for point in POINTS if point.covers(version) and (what := moved(version, point))] == []


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_wrappers_read_exists(version: str) -> None:
    missing = []
    for read in READS:
        if not SpecifierSet(read.versions).contains(version, prereleases=True):
            continue
        body = module_body(version, read.module)
        node = definition(body, read.owner) if body is not None else None
        known = set(attributes(node)) if node is not None else set()
        missing += [f"{read.module}.{read.owner}.{name}" for name in read.attributes if name not in known]
    assert missing == []


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_cycle_number_fits_on_the_result_object(version: str) -> None:
    module = "sglang.srt.managers." + ("utils" if Version(version) >= Version("0.5.4") else "scheduler")
    body = module_body(version, module)
    assert body is not None
    [decorator] = definition(body, "GenerationBatchResult").decorator_list
    assert ast.unparse(decorator) in ("dataclass", "dataclasses.dataclass")  # neither slots nor frozen


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_no_hooked_method_is_left_out_where_the_release_has_it(version: str) -> None:
    """A target that exists in a release outside its stated range would silently go unrecorded there."""
    covered = {point.name for point in POINTS if point.covers(version)}
    unused = {"sglang.srt.model_executor.cuda_graph_runner.CudaGraphRunner.replay"}  # later results say it themselves
    # from 0.5.16 on the tree is built inside build_eagle_verify_input, which is hooked
    unused |= (
        {"sglang.srt.speculative.eagle_utils.build_tree_kernel_efficient"}
        if Version(version) >= Version("0.5.16")
        else set()
    )
    left_out = {point.name for point in POINTS if moved(version, point) is None} - covered - unused
    assert left_out == set()


def test_a_release_has_each_point_once() -> None:
    for version in ("0.4.6", "0.5.3", "0.5.9", "0.5.12.post1", "0.5.17", "0.5.23"):
        names = [point.name for point in POINTS if point.covers(version)]
        assert len(names) == len(set(names))


def test_the_table_notices_what_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "sglang" / "9.9" / "sglang" / "srt" / "managers"
    source.mkdir(parents=True)
    (source / "scheduler.py").write_text(
        "class Scheduler:\n    def run_batch(self, work): ...\n    def process_batch_result(self, batch, result): ...\n"
    )
    monkeypatch.setitem(globals(), "FOLDER", str(tmp_path))
    module_body.cache_clear()
    found = {point.qualname: moved("9.9", point) for point in POINTS if point.module.endswith("managers.scheduler")}
    module_body.cache_clear()
    assert found == {
        "Scheduler.recv_requests": "sglang.srt.managers.scheduler has no Scheduler.recv_requests",
        "Scheduler.__init__": "sglang.srt.managers.scheduler has no Scheduler.__init__",
        "Scheduler.run_batch": "sglang.srt.managers.scheduler.Scheduler.run_batch has no parameter batch",
        "Scheduler.process_batch_result": None,
        "Scheduler.launch_batch_sample_if_needed": "sglang.srt.managers.scheduler has no "
        "Scheduler.launch_batch_sample_if_needed",
    }
