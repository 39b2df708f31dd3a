"""Every hook target of every release exists, with the parameters and attributes that the wrappers use.

A failure names what moved. See tests/support/server_sources.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from server_sources import NEEDS_SOURCES, ServerSources, attributes

from speccollect.engines.sglang_cycle import CycleHooks
from speccollect.engines.sglang_points import OLDEST, READS, points

POINTS = points(CycleHooks(recorder=None))  # type: ignore[arg-type]  # only the table is looked at
SOURCES = ServerSources("sglang")
VERSIONS = SOURCES.releases()


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_hook_target_of_the_release_exists(version: str) -> None:
    assert Version(version) >= Version(OLDEST)
    assert [what for point in POINTS if point.covers(version) and (what := SOURCES.moved(version, point))] == []


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_wrappers_read_exists(version: str) -> None:
    missing = []
    for read in READS:
        if not SpecifierSet(read.versions).contains(version, prereleases=True):
            continue
        node = SOURCES.definition(version, read.module, read.owner)
        known = set(attributes(node)) if node is not None else set()
        missing += [f"{read.module}.{read.owner}.{name}" for name in read.attributes if name not in known]
    assert missing == []


@pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_cycle_number_fits_on_the_result_object(version: str) -> None:
    module = "sglang.srt.managers." + ("utils" if Version(version) >= Version("0.5.4") else "scheduler")
    [decorator] = SOURCES.definition(version, module, "GenerationBatchResult").decorator_list
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
    left_out = {point.name for point in POINTS if SOURCES.moved(version, point) is None} - covered - unused
    assert left_out == set()


def test_a_release_has_each_point_once() -> None:
    for version in ("0.4.6", "0.5.3", "0.5.9", "0.5.12.post1", "0.5.17", "0.5.23"):
        names = [point.name for point in POINTS if point.covers(version)]
        assert len(names) == len(set(names))


def test_the_table_notices_what_moved(tmp_path: Path) -> None:
    source = tmp_path / "sglang" / "9.9" / "sglang" / "srt" / "managers"
    source.mkdir(parents=True)
    (source / "scheduler.py").write_text(
        "class Scheduler:\n    def run_batch(self, work): ...\n    def process_batch_result(self, batch, result): ...\n"
    )
    sources = ServerSources("sglang", tmp_path)
    of_scheduler = [point for point in POINTS if point.module.endswith("managers.scheduler")]
    found = {point.qualname: sources.moved("9.9", point) for point in of_scheduler}
    assert found == {
        "Scheduler.recv_requests": "sglang.srt.managers.scheduler has no Scheduler.recv_requests",
        "Scheduler.__init__": "sglang.srt.managers.scheduler has no Scheduler.__init__",
        "Scheduler.run_batch": "sglang.srt.managers.scheduler.Scheduler.run_batch has no parameter batch",
        "Scheduler.process_batch_result": None,
        "Scheduler.launch_batch_sample_if_needed": "sglang.srt.managers.scheduler has no "
        "Scheduler.launch_batch_sample_if_needed",
    }
