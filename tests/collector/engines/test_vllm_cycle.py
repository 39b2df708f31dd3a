"""vLLM's hooks on a small worker with the shape of the real one: both runners, both kinds of scheduling.

The real V1 runner runs in tests/vllm; the V2 runner needs a GPU. What the hooks read is checked against the sources of
every release in test_vllm_points.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from recording_hooks import RecordedCalls

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.cycles.segment import CYCLE, END, PHASE_COLUMNS, START
from speccollect.engines import vllm
from speccollect.hooks.points import Installed
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import merge

TREE = {
    "vllm/v1/worker/gpu_worker.py": """
class Worker:
    rank = 3
    def __init__(self, config, runner): self.vllm_config, self.model_runner = config, runner
    def load_model(self): return "loaded"
    def compile_or_warm_up_model(self, plan):
        self.model_runner.execute_model(plan)
        return self.model_runner.sample_tokens(None)
    def execute_dummy_batch(self): return "dummy"
""",
    "vllm/forward_context.py": """
_forward_context = None
def get_forward_context():
    assert _forward_context is not None
    return _forward_context
""",
    "vllm/v1/worker/gpu_model_runner.py": """
from types import SimpleNamespace as Result
from vllm import forward_context

class AsyncGPUModelRunnerOutput:
    def __init__(self, output, tokens): self.output, self.tokens = output, tokens
    def get_output(self):
        self.output.sampled_token_ids = self.tokens
        return self.output

class GPUModelRunner:
    max_model_len = 1000
    graph = (Result(name="NONE"), None)
    def __init__(self, config, script, drafter=None):
        self.vllm_config, self.script, self.drafter = config, iter(script), drafter
        self.speculative_config = None if drafter is None else object()
        self.asynchronous = config.scheduler_config.async_scheduling
    def _dummy_run(self, tokens): return self._model_forward()
    def execute_model(self, scheduler_output, intermediate_tensors=None):
        if not scheduler_output.total_num_scheduled_tokens:
            return "nothing to do"
        self.plan = scheduler_output
        mode, descriptor = self.graph
        forward_context._forward_context = Result(cudagraph_runtime_mode=mode, batch_descriptor=descriptor)
        self._model_forward()
        forward_context._forward_context = None
    def _model_forward(self): pass
    def sample_tokens(self, grammar_output):
        self._sample()
        early = self.drafter is not None and hasattr(self.drafter, "model_returns_tuple")
        if early:
            self.propose_draft_token_ids()
        tokens = self._bookkeeping_sync()
        if self.drafter is not None and not early:
            self.propose_draft_token_ids()
        output = Result(req_ids=list(reversed(self.plan.num_scheduled_tokens)), sampled_token_ids=tokens)
        if not self.asynchronous:
            return output
        output.sampled_token_ids = []
        return AsyncGPUModelRunnerOutput(output, tokens)
    def _sample(self): pass
    def _bookkeeping_sync(self):
        tokens = next(self.script)
        if isinstance(tokens, Exception):
            raise tokens
        return tokens[::-1]
    def propose_draft_token_ids(self): return self.drafter.propose()
""",
    "vllm/v1/spec_decode/llm_base_proposer.py": """
class SpecDecodeBaseProposer:
    parallel_drafting = False
    def model_returns_tuple(self): return True
    def propose(self):
        for _ in range(3):
            self.model_returns_tuple()
        return "drafts"
""",
    "vllm/v1/worker/gpu/dp_utils.py": """
def dispatch_cg_and_sync_dp(manager, tokens): return manager.dispatch(tokens), None
""",
    "vllm/v1/worker/gpu/cudagraph_utils.py": """
from types import SimpleNamespace as Descriptor
class CudaGraphManager:
    def dispatch(self, tokens): return Descriptor(cg_mode=Descriptor(name="FULL"), num_tokens=8, num_reqs=2)
    def run_fullgraph(self, desc): pass
    def run_pw_graph(self, model, model_inputs): pass
class ModelCudaGraphManager(CudaGraphManager):
    def run_fullgraph(self, desc): super().run_fullgraph(desc)
""",
    "vllm/v1/worker/gpu/async_utils.py": """
class AsyncOutput:
    def __init__(self, output, tokens): self.output, self.tokens = output, tokens
    def get_output(self):
        self.output.sampled_token_ids = self.tokens
        return self.output
""",
    "vllm/v1/worker/gpu/spec_decode/target_dependent_ar/speculator.py": """
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu.dp_utils import dispatch_cg_and_sync_dp
class TargetDependentARSpeculator:
    def __init__(self): self.graphs = CudaGraphManager()
    def on_prefill_end(self, num_reqs): pass
    def propose(self, dummy_run=False):
        self.graphs.run_fullgraph(dispatch_cg_and_sync_dp(self.graphs, 4)[0])
        self.on_prefill_end(1)
        self.graphs.run_fullgraph(dispatch_cg_and_sync_dp(self.graphs, 1)[0])
""",
    "vllm/v1/worker/gpu/spec_decode/mtp/speculator.py": """
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import TargetDependentARSpeculator
class MTPSpeculator(TargetDependentARSpeculator):
    def on_prefill_end(self, num_reqs): super().on_prefill_end(num_reqs)
""",
    "vllm/v1/worker/gpu/spec_decode/ngram/speculator.py": """
class NgramGPUSpeculator:
    def propose(self): pass
""",
    "vllm/v1/worker/gpu/model_runner.py": """
from types import SimpleNamespace as Result
from vllm.v1.worker.gpu.async_utils import AsyncOutput
from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
from vllm.v1.worker.gpu.dp_utils import dispatch_cg_and_sync_dp
class GPUModelRunner:
    max_model_len = 1000
    def __init__(self, config, script, speculator):
        self.vllm_config, self.script, self.speculator = config, iter(script), speculator
        self.speculative_config, self.graphs = object(), ModelCudaGraphManager()
    def execute_model(self, scheduler_output, intermediate_tensors=None, dummy_run=False):
        self.plan = scheduler_output
        self.graphs.run_fullgraph(dispatch_cg_and_sync_dp(self.graphs, scheduler_output.total_num_scheduled_tokens)[0])
    def sample_tokens(self, grammar_output):
        self.sample()
        output = AsyncOutput(Result(req_ids=list(self.plan.num_scheduled_tokens)), next(self.script))
        self.speculator.propose()
        return output
    def sample(self): pass
""",
}
STEP = ["verify", "verify/target_forward", "verify/sample", "draft_extend", "draft", "process_result"]
V2_CYCLE = [
    "verify",
    "verify/full_graph",
    "verify/sample",
    "draft_extend",
    "draft_extend/full_graph",
    "draft",
    "draft/full_graph",
]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.relative_to(tmp_path).parents:
            (tmp_path / parent / "__init__.py").touch()
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


@pytest.fixture
def recorder() -> Iterator[RecordedCalls]:
    recorder = RecordedCalls()
    yield recorder
    stamps = np.array(recorder.stamps, dtype=np.int64).reshape(-1, PHASE_COLUMNS)
    assert (stamps[:, END] >= stamps[:, START]).all()  # each was closed
    assert (stamps[:, CYCLE] >= 0).all()


@pytest.fixture
def hooks(tree: Path, recorder: RecordedCalls) -> Iterator[Installed]:
    installed = vllm.install(recorder, version="0.33.0")
    yield installed
    installed.remove()


def config(asynchronous: bool = False) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(
            async_scheduling=asynchronous, max_num_seqs=4, policy="fcfs", runner_type=print
        ),
        parallel_config=SimpleNamespace(
            data_parallel_index=1, world_size=4, enable_expert_parallel=False, tensor_parallel_size=4
        ),
        model_config=SimpleNamespace(model="/models/tiny"),
        speculative_config=SimpleNamespace(method="eagle3", num_speculative_tokens=3),
    )


def plan(
    scheduled: dict[str, int],
    *,
    new: dict[str, int] | None = None,
    drafts: int = 0,
    outputs: dict[str, int] | None = None,
    computed: int = 20,
    finished: tuple[str, ...] = (),
    verified: tuple[str, ...] | None = None,
) -> Any:
    """A SchedulerOutput: ``scheduled`` tokens per request, ``new`` ones with their prompt's length."""
    new = new or {}
    cached = [name for name in scheduled if name not in new]
    sampling = SimpleNamespace(max_tokens=100, stop_token_ids=[99], all_stop_token_ids={99}, ignore_eos=False)
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=n, prompt_token_ids=[0] * length, sampling_params=sampling, num_computed_tokens=0)
            for n, length in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=cached,
            num_computed_tokens=[computed] * len(cached),
            num_output_tokens=[(outputs or {}).get(name, 1) for name in cached],
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_spec_decode_tokens={n: [-1] * drafts for n in (cached if verified is None else verified) if drafts},
        finished_req_ids=set(finished),
    )


def v1(script: list[Any], *, asynchronous: bool = False, drafter: Any = "eagle") -> Any:
    if drafter == "eagle":
        drafter = importlib.import_module("vllm.v1.spec_decode.llm_base_proposer").SpecDecodeBaseProposer()
    module = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    return module.GPUModelRunner(config(asynchronous), script, drafter)


def step(runner: Any, planned: Any) -> Any:
    assert runner.execute_model(planned) is None
    return runner.sample_tokens(None)


@pytest.mark.usefixtures("hooks")
def test_a_request_from_prefill_to_its_stop_token(recorder: RecordedCalls) -> None:
    """The runner's batch is in another order than the plan; ``a`` stops in the middle of its second verify step."""
    runner = v1([[[1], [1]], [[2, 3, 4], [2]], [[5, 99, 6], [3, 4]], [[7, 8]]])
    step(runner, plan({"a": 10, "b": 20}, new={"a": 10, "b": 20}))
    step(runner, plan({"a": 4, "b": 4}, drafts=3))
    step(runner, plan({"a": 4, "b": 4}, drafts=3, computed=23))
    step(runner, plan({"b": 4}, drafts=3, finished=("a",)))
    assert recorder.failures == []
    assert recorder.cycles == [
        ("prefill", 2, 0, ("a", "b"), None),
        ("speculative", 2, 3, ("a", "b"), 42),
        ("speculative", 2, 3, ("a", "b"), 48),
        ("speculative", 1, 3, ("b",), 21),
    ]
    assert recorder.accepts == {
        0: ((1, 1), None),
        1: ((3, 1), (2, 0)),
        2: ((2, 2), (2, 1)),  # the token after the stop token is not committed
        3: ((2,), (1,)),
    }
    assert recorder.finished == [("a", 10, 6)]
    prefill = ["prefill", "prefill/target_forward", "prefill/sample", "prefill/process_result"]
    assert recorder.phases == [*prefill, *STEP * 3]
    assert recorder.ends == {0: None, 1: None, 2: None, 3: None}


@pytest.mark.usefixtures("hooks")
def test_async_scheduling_tells_the_tokens_later_and_on_another_thread(recorder: RecordedCalls) -> None:
    runner = v1([[[1]], [[2, 99, 4]], [[5, 6]]], asynchronous=True)
    first = step(runner, plan({"a": 10}, new={"a": 10}))
    second = step(runner, plan({"a": 4}, drafts=3))
    assert recorder.accepts == {}
    first.get_output()
    third = step(runner, plan({"a": 4}, drafts=3))  # launched before the stop token was seen
    for result in (second, third):
        thread = threading.Thread(target=result.get_output)
        thread.start()
        thread.join()
    assert recorder.failures == []
    assert recorder.accepts == {0: ((1,), None), 1: ((2,), (2,)), 2: ((None,), (1,))}
    # what the host has heard of so far; the scheduler's own count holds drafts that may be rejected
    assert [fields[4] for fields in recorder.cycles] == [None, 10, 11]
    assert recorder.finished == [("a", 10, 3)]


@pytest.mark.usefixtures("hooks")
def test_a_rank_whose_results_nobody_asks_for_says_so(recorder: RecordedCalls) -> None:
    runner = v1([[[1]]] * 40, asynchronous=True)
    for _ in range(40):
        step(runner, plan({"a": 4}, drafts=3))
    assert recorder.accepts == dict.fromkeys(range(7), ((), None))


@pytest.mark.usefixtures("hooks")
def test_mixed_and_plain_steps(recorder: RecordedCalls) -> None:
    runner = v1([[[1, 2], []], [[1, 2], [7]], [[1], [8]], [[1]]])
    step(runner, plan({"a": 4, "b": 8}, new={"b": 12}, drafts=3))
    step(runner, plan({"a": 4, "b": 4}, drafts=3, outputs={"b": 0}, verified=("a",)))
    step(runner, plan({"a": 1, "c": 8}, new={"c": 8}))  # a prefill beside plain decoding verifies nothing
    step(runner, plan({"a": 1}))  # nothing was drafted
    assert [fields[0] for fields in recorder.cycles] == ["mixed", "mixed", "prefill", "decode"]
    assert recorder.accepts == {0: ((2, 0), (1, None)), 1: ((2, 1), (1, None)), 2: ((1, 1), None), 3: ((1,), None)}
    assert [name for name in recorder.phases if "/" not in name] == [
        *["prefill"] * 3,
        *("decode", "draft_extend", "draft", "process_result"),
    ]


@pytest.mark.usefixtures("hooks")
def test_drafters_without_a_re_extend_and_without_a_draft(recorder: RecordedCalls) -> None:
    ngram = SimpleNamespace(propose=lambda: "drafts")
    step(v1([[[1, 2]]], drafter=ngram), plan({"a": 4}, drafts=3))
    assert recorder.phases == [*STEP[:3], "process_result", "draft"]
    recorder.phases.clear()
    step(v1([[[1]]], drafter=None), plan({"a": 1}))
    assert recorder.phases == ["decode", "decode/target_forward", "decode/sample", "decode/process_result"]
    recorder.phases.clear()
    runner = v1([[[1, 2]]])
    runner.drafter.parallel_drafting = True
    step(runner, plan({"a": 4}, drafts=3))
    assert recorder.phases == [*STEP[:3], "draft", "process_result"]


@pytest.mark.usefixtures("hooks")
@pytest.mark.parametrize(
    ("mode", "requests", "tokens", "size", "name"),
    [
        ("FULL", 4, 16, 4, "full_graph"),
        ("PIECEWISE", None, 16, 4, "piecewise_graph"),  # sixteen tokens suffice for four requests of four
        ("PIECEWISE", None, 6, 2, "piecewise_graph"),  # but never for fewer than ran
    ],
)
def test_which_graph_ran_and_for_how_many_requests(
    recorder: RecordedCalls, mode: str, requests: int | None, tokens: int, size: int, name: str
) -> None:
    runner = v1([[[1], [1]]])
    runner.graph = (SimpleNamespace(name=mode), SimpleNamespace(num_tokens=tokens, num_reqs=requests))
    step(runner, plan({"a": 4, "b": 4}, drafts=3))
    assert recorder.ends == {0: size}
    assert f"verify/target_forward/{name}" in recorder.phases


@pytest.mark.usefixtures("hooks")
def test_the_v2_runner(recorder: RecordedCalls) -> None:
    module = importlib.import_module("vllm.v1.worker.gpu.model_runner")
    speculators = "vllm.v1.worker.gpu.spec_decode."
    eagle = importlib.import_module(speculators + "target_dependent_ar.speculator").TargetDependentARSpeculator()
    runner = module.GPUModelRunner(config(True), [[[1, 2, 3]]], eagle)
    step(runner, plan({"a": 4}, drafts=3)).get_output()
    assert recorder.accepts == {0: ((3,), (2,))}
    assert recorder.ends == {0: 2}  # the target's graph, not the draft's
    assert recorder.phases == V2_CYCLE
    recorder.phases.clear()
    mtp = importlib.import_module(speculators + "mtp.speculator").MTPSpeculator()
    step(module.GPUModelRunner(config(True), [[[1]]], mtp), plan({"a": 4}, drafts=3))
    assert recorder.phases == V2_CYCLE
    recorder.phases.clear()
    ngram = importlib.import_module(speculators + "ngram.speculator").NgramGPUSpeculator()
    step(module.GPUModelRunner(config(True), [[[1]]], ngram), plan({"a": 4}, drafts=3))
    assert recorder.phases == [*V2_CYCLE[:3], "draft"]
    recorder.cycles.clear()
    runner.execute_model(plan({"a": 4}), dummy_run=True)
    eagle.propose(dummy_run=True)
    assert (recorder.cycles, recorder.failures) == ([], [])


@pytest.mark.usefixtures("hooks")
def test_warm_up_dummy_and_empty_steps_are_no_cycles(recorder: RecordedCalls) -> None:
    worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker(config(), v1([[[1]]]))
    worker.compile_or_warm_up_model(plan({"warm": 8}, new={"warm": 8}))
    worker.model_runner._dummy_run(8)
    assert worker.model_runner.execute_model(plan({})) == "nothing to do"
    assert (recorder.cycles, recorder.phases, recorder.failures) == ([], [], [])
    assert worker.execute_dummy_batch() == "dummy"  # an idle rank of data parallelism does take part
    assert (recorder.cycles, recorder.phases) == ([("idle", 0, 0, [])], ["idle"])


@pytest.mark.usefixtures("hooks")
def test_an_exception_of_the_server_passes_and_the_next_step_is_recorded(recorder: RecordedCalls) -> None:
    runner = v1([ValueError("out of memory"), [[1, 2]]])
    with pytest.raises(ValueError, match="out of memory"):
        step(runner, plan({"a": 4}, drafts=3))
    step(runner, plan({"a": 4}, drafts=3))
    assert recorder.failures == []
    assert recorder.accepts == {0: ((), None), 1: ((2,), (1,))}
    assert recorder.open == []


@pytest.mark.usefixtures("hooks")
def test_tells_which_rank_it_is_before_anything_is_armed(recorder: RecordedCalls) -> None:
    recorder.armed = False
    worker = importlib.import_module("vllm.v1.worker.gpu_worker").Worker(config(), None)
    assert worker.load_model() == "loaded"
    assert recorder.told == {
        "rank": 7,  # second replica of four ranks each
        "coordinates": {},
        "server": "vllm",
        "server_version": None,
        "server_args": {
            "tensor_parallel_size": 4,
            "data_parallel_index": 1,
            "world_size": 4,
            "enable_expert_parallel": False,
            "model": "/models/tiny",
            "async_scheduling": False,
            "max_num_seqs": 4,
            "policy": "fcfs",
            "speculative_config.method": "eagle3",
            "speculative_config.num_speculative_tokens": 3,
        },
        "model_path": "/models/tiny",
    }


def test_removal_puts_every_original_back(tree: Path, recorder: RecordedCalls) -> None:
    runner = importlib.import_module("vllm.v1.worker.gpu_model_runner").GPUModelRunner
    dispatch = importlib.import_module("vllm.v1.worker.gpu.dp_utils").dispatch_cg_and_sync_dp
    before = dict(vars(runner))
    installed = vllm.install(recorder, version="0.33.0")
    assert vars(runner)["execute_model"] is not before["execute_model"]
    late = importlib.import_module("vllm.v1.worker.gpu.model_runner")
    assert late.dispatch_cg_and_sync_dp is not dispatch
    installed.remove()
    assert dict(vars(runner)) == before
    assert late.dispatch_cg_and_sync_dp is dispatch
    assert installed.missing == []


def test_a_release_that_was_not_read_is_told(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        vllm.install(RecordedCalls(), version="0.11.0").remove()
    assert "vLLM 0.11.0 is older than 0.15" in caplog.text


def test_from_the_worker_to_the_trace(tree: Path, tmp_path: Path) -> None:
    """The real recorder, armed twice: cycles of the first recording that end late don't reach the second."""
    folder = tmp_path / "folder"
    recorder = Recorder(folder)
    installed = vllm.install(recorder, version="0.33.0")
    try:
        runner = v1([[[1]], [[2, 3]], [[1]], [[2, 3, 4]]], asynchronous=True)
        word.arm(folder, PHASES_ONLY)
        step(runner, plan({"a": 10}, new={"a": 10})).get_output()
        late = step(runner, plan({"a": 4}, drafts=3))
        word.disarm(folder)
        runner.execute_model(plan({}))
        word.arm(folder, PHASES_ONLY)
        results = [step(runner, plan({"b": 10}, new={"b": 10})), step(runner, plan({"b": 4}, drafts=3))]
        late.get_output()
        for result in results:
            result.get_output()
        word.disarm(folder)
        runner.execute_model(plan({}, finished=("b",)))
    finally:
        installed.remove()
        recorder.close()
    merge(folder, tmp_path / "trace.parquet")
    trace = pq.read_table(tmp_path / "trace.parquet")
    cycles = trace.filter(pc.equal(trace["kind"], "cycle")).select(["mode", "request_ids", "accept_lengths"])
    assert cycles.to_pylist() == [
        {"mode": "prefill", "request_ids": ["b"], "accept_lengths": [1]},
        {"mode": "speculative", "request_ids": ["b"], "accept_lengths": [3]},
    ]
    names = trace.filter(pc.equal(trace["kind"], "phase"))["name"].to_pylist()
    assert [names.count(f"spec.{name}") for name in ("prefill", "verify", "draft_extend", "draft")] == [1, 1, 1, 1]
