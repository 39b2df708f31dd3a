"""Every hook target of every vLLM release exists, with the parameters and attributes that the wrappers use.

A failure names what moved. See tests/support/server_sources.py.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from server_sources import NEEDS_SOURCES, ServerSources, attributes

from speccollect.engines.vllm_cycle import CycleHooks
from speccollect.engines.vllm_points import OLDEST, READS, V2_SINCE, points

POINTS = points(CycleHooks(recorder=None))  # type: ignore[arg-type]  # only the table is looked at
SOURCES = ServerSources("vllm")
VERSIONS = [version for version in SOURCES.releases() if Version(version) >= Version(OLDEST)]
V1 = "vllm.v1.worker.gpu_model_runner"
V2 = "vllm.v1.worker.gpu.model_runner"
V2_VERSIONS = [version for version in VERSIONS if SpecifierSet(V2_SINCE).contains(version)]

needs_sources = pytest.mark.skipif(not VERSIONS, reason=NEEDS_SOURCES)
every_release = pytest.mark.parametrize("version", VERSIONS)


@needs_sources
@every_release
def test_every_hook_target_of_the_release_exists(version: str) -> None:
    assert [what for point in POINTS if point.covers(version) and (what := SOURCES.moved(version, point))] == []


@needs_sources
@every_release
def test_what_the_wrappers_read_exists(version: str) -> None:
    missing = []
    for read in READS:
        if SpecifierSet(read.versions).contains(version):
            node = SOURCES.definition(version, read.module, read.owner)
            known = set(attributes(node)) if node is not None else set()
            missing += [f"{read.module}.{read.owner}.{name}" for name in read.attributes if name not in known]
    assert missing == []


@needs_sources
@every_release
def test_no_hooked_method_is_left_out_where_the_release_has_it(version: str) -> None:
    """A target that exists in a release outside its stated range would silently go unrecorded there."""
    covered = {point.name for point in POINTS if point.covers(version)}
    # these releases have the V2 runner as an experiment
    unused = {point.name for point in POINTS if point.versions == V2_SINCE and not point.covers(version)}
    # later releases say by on_prefill_end, which is hooked, that the re-extend is over
    unused |= {point.name for point in POINTS if point.qualname == "prepare_decode_inputs"}
    unused |= {point.name for point in POINTS if "EagleSpeculator" in point.name or "prepare_eagle" in point.name}
    assert {point.name for point in POINTS if SOURCES.moved(version, point) is None} - covered - unused == set()


def _calls(node: ast.AST, name: str) -> list[ast.Call]:
    """Calls of ``name`` or ``something.name`` inside a function, in the order of its lines."""
    found = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
    named = [call for call in found if getattr(call.func, "attr", getattr(call.func, "id", None)) == name]
    return sorted(named, key=lambda call: call.lineno)


@needs_sources
@every_release
def test_the_drafter_asks_what_its_model_returns_right_after_the_re_extend(version: str) -> None:
    module = "vllm.v1.spec_decode." + ("eagle" if Version(version) < Version("0.20") else "llm_base_proposer")
    node = SOURCES.definition(version, module, "SpecDecodeBaseProposer.propose")
    forwards, asks = _calls(node, "model"), _calls(node, "model_returns_tuple")
    assert (
        forwards[0].lineno
        < asks[0].lineno
        < min(call.lineno for call in _calls(node, "_sample_draft_tokens") + forwards[1:])
    )


@needs_sources
@every_release
def test_the_targets_forward_runs_in_the_context_that_names_its_graph(version: str) -> None:
    node = SOURCES.definition(version, V1, "GPUModelRunner.execute_model")
    [forward] = _calls(node, "_model_forward")
    around = [
        item.context_expr
        for block in ast.walk(node)
        if isinstance(block, ast.With) and any(call is forward for call in ast.walk(block))
        for item in block.items
    ]
    [context] = [
        call for call in around if isinstance(call, ast.Call) and ast.unparse(call.func) == "set_forward_context"
    ]
    assert {"cudagraph_runtime_mode", "batch_descriptor"} <= {keyword.arg for keyword in context.keywords}
    assert SOURCES.definition(version, "vllm.forward_context", "get_forward_context") is not None


@needs_sources
@pytest.mark.parametrize("version", V2_VERSIONS)
def test_the_first_graph_that_a_v2_step_chooses_is_the_targets(version: str) -> None:
    node = SOURCES.definition(version, V2, "GPUModelRunner.execute_model")
    chosen = _calls(node, "dispatch_cg_and_sync_dp")
    assert len(chosen) == 1
    assert chosen[0].lineno < _calls(node, "run_fullgraph")[0].lineno
    assert _calls(node, "propose") == []


@needs_sources
@every_release
def test_graphs_are_captured_and_replayed_through_torchs_own_class(version: str) -> None:
    """The node map wraps CUDAGraph.capture_begin and capture_end, the stamps of a window its replay."""
    modules = ["vllm.compilation.cuda_graph", "vllm.v1.worker.gpu_ubatch_wrapper"]
    modules += ["vllm.v1.worker.gpu.cudagraph_utils"] if version in V2_VERSIONS else []
    if Version(version) >= Version("0.22"):
        modules.append("vllm.compilation.breakable_cudagraph")
    for module in modules:
        calls = [ast.unparse(node.func) for node in ast.walk(_tree(version, module)) if isinstance(node, ast.Call)]
        assert "torch.cuda.CUDAGraph" in calls, module
        methods = {call.rpartition(".")[2] for call in calls}
        assert "torch.cuda.graph" in calls or {"capture_begin", "capture_end"} <= methods, module
        assert [call for call in calls if call.endswith(".replay")] or "breakable" in module, module


@needs_sources
@every_release
def test_collectives_of_compiled_code_come_by_the_groups_methods(version: str) -> None:
    module = "vllm.distributed.parallel_state"
    for name in ("all_reduce", "all_gather", "reduce_scatter"):
        operator = SOURCES.definition(version, module, name)
        assert len(_calls(operator, f"_{name}_out_place")) == 1
        method = SOURCES.definition(version, module, f"GroupCoordinator._{name}_out_place")
        assert "input_" in [argument.arg for argument in method.args.args]


def _tree(version: str, module: str) -> ast.Module:
    return ast.Module(list(SOURCES.body(version, module) or ()), [])


@needs_sources
@every_release
def test_a_step_samples_then_drafts_and_a_cycle_fits_on_its_result(version: str) -> None:
    node = SOURCES.definition(version, V1, "GPUModelRunner.sample_tokens")
    assert [len(_calls(node, name)) for name in ("_sample", "_bookkeeping_sync", "AsyncGPUModelRunnerOutput")] == [
        1,
        1,
        1,
    ]
    for module, name in ((V1, "AsyncGPUModelRunnerOutput"), ("vllm.v1.worker.gpu.async_utils", "AsyncOutput")):
        result = SOURCES.definition(version, module, name)
        assert result.decorator_list == []  # neither slots nor frozen
        assert not [s for s in result.body if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "__slots__"]


@needs_sources
@pytest.mark.parametrize("version", V2_VERSIONS)
def test_a_v2_step_samples_before_it_drafts(version: str) -> None:
    node = SOURCES.definition(version, V2, "GPUModelRunner.sample_tokens")
    [sampled], [proposed] = _calls(node, "sample"), _calls(node, "propose")
    assert sampled.lineno < _calls(node, "AsyncOutput")[0].lineno < proposed.lineno


@needs_sources
@every_release
def test_cpu_workers_inherit_what_is_hooked(version: str) -> None:
    """CPUWorker may have a warm-up of its own: it runs dummy batches only."""
    hooked = {
        "execute_model",
        "sample_tokens",
        "_sample",
        "_model_forward",
        "_bookkeeping_sync",
        "propose_draft_token_ids",
    }
    runner = SOURCES.definition(version, "vllm.v1.worker.cpu_model_runner", "CPUModelRunner")
    assert hooked & set(attributes(runner)) == set()
    worker = SOURCES.definition(version, "vllm.v1.worker.cpu_worker", "CPUWorker")
    assert {"load_model", "execute_dummy_batch"} & set(attributes(worker)) == set()


def test_a_release_has_each_point_once() -> None:
    for version in ("0.15.1", "0.20.2", "0.22.1", "0.23.0", "0.28.0", "0.31.0", "0.32.0", "0.33.0"):
        names = [point.name for point in POINTS if point.covers(version)]
        assert len(names) == len(set(names))


def test_the_table_notices_what_moved(tmp_path: Path) -> None:
    source = tmp_path / "vllm" / "9.9" / "vllm" / "v1" / "worker"
    source.mkdir(parents=True)
    (source / "gpu_model_runner.py").write_text(
        "class GPUModelRunner:\n    def execute_model(self, plan): ...\n    def _sample(self, logits): ...\n"
    )
    sources = ServerSources("vllm", tmp_path)
    named = ("execute_model", "_sample", "sample_tokens")
    found = {
        point.qualname: sources.moved("9.9", point)
        for point in POINTS
        if point.module == V1 and point.qualname.split(".")[1] in named
    }
    assert found == {
        "GPUModelRunner.execute_model": f"{V1}.GPUModelRunner.execute_model has no parameter scheduler_output",
        "GPUModelRunner._sample": None,
        "GPUModelRunner.sample_tokens": f"{V1} has no GPUModelRunner.sample_tokens",
    }
