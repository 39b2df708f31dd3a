"""SGLang's hooks on a small scheduler with the shape of the real one: its modules, its two loops, its order of events.

The real scheduler needs a GPU; what it reads is checked against its sources in test_sglang_points.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from recording_hooks import RecordedCalls

from speccollect.config import PHASES_ONLY
from speccollect.control import word
from speccollect.engines import sglang
from speccollect.hooks import guard
from speccollect.hooks.points import Installed
from speccollect.rank.recorder import Recorder
from speccollect.trace.merge import merge

TREE = {
    "sglang/srt/managers/scheduler.py": """
from collections import deque
from dataclasses import dataclass
from sglang.srt.managers.tp_worker import TpModelWorker

STOP = 99

class Mode:
    def __init__(self, name): self.name = name
    def is_idle(self): return self.name == "idle"
    def is_mixed(self): return self.name == "mixed"
    def is_decode(self): return self.name == "decode"
    def is_extend(self): return self.name in ("extend", "mixed")

class Algorithm:
    def __init__(self, none): self.none = none
    def is_none(self): return self.none

class Req:
    def __init__(self, rid, prompt, limit):
        self.rid, self.origin_input_ids, self.output_ids, self.limit = rid, list(range(prompt)), [], limit
        self.finished_len, self.over, self.is_retracted = None, False, False
    @property
    def seqlen(self): return len(self.origin_input_ids) + len(self.output_ids)
    def finished(self): return self.over
    def check(self, new):
        for i in range(len(self.output_ids) - new, len(self.output_ids)):
            if self.output_ids[i] == STOP or i + 1 == self.limit:
                self.over, self.finished_len = True, i + 1
                return

@dataclass
class Batch:
    reqs: list
    forward_mode: Mode
    spec_algorithm: Algorithm
    def copy(self): return Batch(self.reqs[:], self.forward_mode, self.spec_algorithm)

@dataclass
class GenerationBatchResult:
    next_token_ids: list
    can_run_cuda_graph: bool = False
    num_correct_drafts_per_req_cpu: list = None
    delay_sample_func: object = None

class Args:
    def __init__(self):
        self.speculative_num_draft_tokens, self.model_path, self.api_table = 3, "/models/tiny", {}
        self.dp_size, self.tp_size, self.pp_size, self.enable_dp_attention = 2, 4, 1, False

class ParallelState:
    tp_rank, pp_rank, dp_rank, moe_ep_rank = 3, 0, 1, None

class Scheduler:
    def __init__(self, worker, overlap):
        self.tp_worker, self.model_worker, self.enable_overlap = TpModelWorker(), worker, overlap
        worker.target_worker = self.tp_worker
        self.server_args, self.queue, self.ps = Args(), deque(), ParallelState()
    def run_batch(self, batch):
        return self.model_worker.forward_batch_generation(batch)
    def process_batch_result(self, batch, result):
        if batch.forward_mode.is_idle():
            return
        for req, tokens in zip(batch.reqs, result.next_token_ids):
            if req.finished() or tokens is None:
                continue
            req.output_ids.extend(tokens)
            req.check(len(tokens))
        result.num_correct_drafts_per_req_cpu = result.accepted
    def launch_batch_sample_if_needed(self, batch_result, cur_batch):
        if batch_result.delay_sample_func is not None:
            batch_result.delay_sample_func()
    def loop(self, batches, poll):
        \"\"\"As event_loop_overlap: the result of a batch is processed after the next one was launched.\"\"\"
        for batch in batches:
            poll()
            self.queue.append((batch.copy(), self.run_batch(batch)))
            if not self.enable_overlap or len(self.queue) > 1:
                self.process_batch_result(*self.queue.popleft())
        while self.queue:
            self.process_batch_result(*self.queue.popleft())
""",
    "sglang/srt/managers/scheduler_components/request_receiver.py": """
class SchedulerRequestReceiver:
    def recv_requests(self): return []
""",
    "sglang/srt/managers/tp_worker.py": """
class Runner:
    bs = 4
class ModelRunner:
    decode_cuda_graph_runner = Runner()
class TpModelWorker:
    model_runner = ModelRunner()
    def forward_batch_generation(self, batch, is_verify=False): return "logits"
""",
    "sglang/srt/speculative/eagle_utils.py": """
def eagle_sample(verify_input, batch): return "accepted"
""",
    "sglang/srt/speculative/eagle_worker_common.py": """
def build_eagle_verify_input(batch): return "tree"
""",
    "sglang/srt/speculative/eagle_worker_v2.py": """
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.speculative.eagle_utils import eagle_sample
from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input

class EagleDraftWorker:
    def draft(self, batch): return build_eagle_verify_input(batch)
    def _draft_extend_for_decode(self, batch, result): pass

class EAGLEWorkerV2:
    speculative_num_draft_tokens = 4
    def __init__(self, script): self.draft_worker, self.script, self.target_worker = EagleDraftWorker(), iter(script), None
    def verify(self, batch):
        self.target_worker.forward_batch_generation(None, is_verify=True)
        eagle_sample(None, batch)
        tokens, accepted = next(self.script)
        result = GenerationBatchResult(tokens, can_run_cuda_graph=True)
        result.accepted = accepted
        return result
    def forward_batch_generation(self, batch):
        if batch.forward_mode.is_extend():
            self.target_worker.forward_batch_generation(batch)
            result = GenerationBatchResult(next(self.script)[0])
            result.accepted = None
            return result
        self.draft_worker.draft(batch)
        result = self.verify(batch)
        self.draft_worker._draft_extend_for_decode(batch, result)
        return result
""",
    "sglang/srt/speculative/eagle_info.py": """
class Outcome:
    def __init__(self, accepted): self.accept_length_per_req_cpu = accepted
class EagleVerifyInput:
    def verify(self, batch, tokens, accepted):
        for req, new in zip(batch.reqs, tokens):
            for token in new:
                req.output_ids.append(token)
                req.check(1)
                if req.finished():
                    break
        return Outcome(accepted)
""",
    "sglang/srt/speculative/eagle_worker.py": """
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.speculative.eagle_info import EagleVerifyInput

class EAGLEWorker(TpModelWorker):
    def __init__(self, script): self.script, self.target_worker = iter(script), None
    def draft(self, batch): pass
    def verify(self, batch):
        self.target_worker.forward_batch_generation(batch, is_verify=True)
        return EagleVerifyInput().verify(batch, *next(self.script))
    def forward_draft_extend_after_decode(self, batch): pass
    def forward_batch_generation(self, batch):
        self.draft(batch)
        self.verify(batch)
        self.forward_draft_extend_after_decode(batch)
        result = GenerationBatchResult([None] * len(batch.reqs))
        result.accepted = None
        return result
""",
    "sglang/srt/speculative/ngram_worker.py": """
from sglang.srt.managers.scheduler import GenerationBatchResult
class NGRAMWorker:
    def __init__(self, script): self.script, self.target_worker = iter(script), None
    def forward_batch_generation(self, batch):
        self.target_worker.forward_batch_generation(batch)
        tokens, accepted = next(self.script)
        result = GenerationBatchResult(tokens)
        result.accepted = accepted
        return result
""",
}


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
    for name in [name for name in sys.modules if name.split(".")[0] == "sglang"]:
        del sys.modules[name]


@pytest.fixture
def recorder() -> RecordedCalls:
    return RecordedCalls()


@pytest.fixture
def hooks(tree: Path, recorder: RecordedCalls, request: pytest.FixtureRequest) -> Iterator[Installed]:
    installed = sglang.install(recorder, version=request.param)
    yield installed
    installed.remove()


def batch(requests: list[Any], mode: str, speculative: bool = True) -> Any:
    module = importlib.import_module("sglang.srt.managers.scheduler")
    return module.Batch(requests, module.Mode(mode), module.Algorithm(not speculative))


def request_of(rid: str, prompt: int, limit: int) -> Any:
    return importlib.import_module("sglang.srt.managers.scheduler").Req(rid, prompt, limit)


def scheduler(worker: str, script: list[Any], overlap: bool) -> Any:
    module, name = worker.rsplit(".", 1)
    made = getattr(importlib.import_module("sglang.srt.speculative." + module), name)(script)
    return importlib.import_module("sglang.srt.managers.scheduler").Scheduler(made, overlap)


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_overlap_worker(hooks: Installed, recorder: RecordedCalls) -> None:
    """Two requests: ``a`` stops at a stop token in the middle of its second step; ``b`` goes on to its limit."""
    a, b = request_of("a", 10, 100), request_of("b", 20, 7)
    script = [
        ([[1], [1]], None),  # prefill
        ([[2, 3, 4], [2]], [2, 0]),
        ([[5, 99, 6], [3, 4]], [2, 1]),  # the token after the stop token is not committed
        ([[7, 8], [5, 6, 7, 8]], [1, 3]),  # a is over already; b ends after 3 of 4 tokens
        ([[9], [9]], [0, 0]),  # both are over
    ]
    steps = [batch([a, b], "extend")] + [batch([a, b], "decode") for _ in range(4)]
    scheduler("eagle_worker_v2.EAGLEWorkerV2", script, overlap=True).loop(steps, recorder.poll)

    assert recorder.failures == []
    assert recorder.cycles == [
        ("prefill", 2, 0, ["a", "b"], None),
        ("speculative", 2, 3, ["a", "b"], 30),  # the host has not seen the prefill's tokens yet
        ("speculative", 2, 3, ["a", "b"], 32),
        ("speculative", 2, 3, ["a", "b"], 36),
        ("speculative", 2, 3, ["a", "b"], 41),
    ]
    assert recorder.accepts == {
        0: ([1, 1], None),
        1: ([3, 1], [2, 0]),
        2: ([2, 2], [2, 1]),
        3: ([None, 3], [1, 3]),
        4: ([None, None], [0, 0]),
    }
    assert recorder.ends == {0: None, 1: 4, 2: 4, 3: 4, 4: 4}
    assert recorder.finished == [("a", 10, 6), ("b", 20, 7)]
    committed = [n for lengths, _ in recorder.accepts.values() for n in lengths if n is not None]
    assert sum(committed) == sum(tokens for _, _, tokens in recorder.finished)
    cycle = [
        "draft",
        "draft/build_verify_input",
        "verify",
        "verify/target_forward",
        "verify/sample",
        "draft_extend",
    ]
    turn = ["process_result", *cycle]  # the previous batch's result comes after this batch's cycle
    assert recorder.phases == ["prefill", *cycle, *turn, *turn, *turn, "process_result", "process_result"]


@pytest.mark.parametrize("hooks", ["0.5.9"], indirect=True)
def test_v1_worker_commits_within_the_cycle(hooks: Installed, recorder: RecordedCalls) -> None:
    a, b = request_of("a", 10, 100), request_of("b", 20, 5)
    script = [([[1, 2, 3], [1]], [2, 0]), ([[4, 99, 5], [2, 3, 4, 5]], [2, 3])]
    run = scheduler("eagle_worker.EAGLEWorker", script, overlap=False)
    del run.model_worker.target_worker
    run.model_worker.target_worker = run.tp_worker
    run.loop([batch([a, b], "decode"), batch([a, b], "decode")], recorder.poll)

    assert recorder.failures == []
    assert recorder.cycles == [("speculative", 2, 2, ["a", "b"], 30), ("speculative", 2, 2, ["a", "b"], 34)]
    assert recorder.accepts == {0: ([3, 1], [2, 0]), 1: ([2, 4], [2, 3])}
    assert recorder.finished == [("a", 10, 5), ("b", 20, 5)]
    cycle = ["draft", "verify", "verify/target_forward", "verify/sample", "draft_extend"]
    assert recorder.phases == [*cycle, "process_result"] * 2


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_plain_decoding_idle_and_workers_without_points(hooks: Installed, recorder: RecordedCalls) -> None:
    a = request_of("a", 10, 100)
    script: list[Any] = [([[1]], None), ([], None), ([[2, 3]], [1])]
    run = scheduler("ngram_worker.NGRAMWorker", script, overlap=True)
    run.loop(
        [batch([a], "decode", speculative=False), batch([], "idle", speculative=True), batch([a], "decode")],
        recorder.poll,
    )
    assert recorder.failures == []
    assert [fields[:3] for fields in recorder.cycles] == [("decode", 1, 0), ("idle", 0, 0), ("speculative", 1, 2)]
    assert recorder.accepts == {0: ([1], None), 2: ([2], [1])}
    assert recorder.phases == ["decode", "idle", "process_result", "verify", "process_result", "process_result"]


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_nothing_is_noted_while_not_armed_or_outside_a_cycle(hooks: Installed, recorder: RecordedCalls) -> None:
    a = request_of("a", 10, 100)
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[1]], [0]), ([[2]], [0]), ([[3]], [0])], overlap=True)
    run.model_worker.draft_worker.draft(None)  # as a server warms up, before any batch
    run.model_worker.verify(batch([a], "decode"))
    assert recorder.phases == []
    recorder.armed = False
    run.loop([batch([a], "decode"), batch([a], "decode")], recorder.poll)
    assert (recorder.cycles, recorder.accepts, a.output_ids) == ([], {}, [2, 3])


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_polls_on_every_turn_of_the_loop(
    hooks: Installed, recorder: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[int] = []
    monkeypatch.setattr(recorder, "poll", lambda: polls.append(1))
    receiver = importlib.import_module("sglang.srt.managers.scheduler_components.request_receiver")
    assert receiver.SchedulerRequestReceiver().recv_requests() == []
    assert polls == [1]


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_a_retracted_requests_step_commits_nothing(hooks: Installed, recorder: RecordedCalls) -> None:
    a, b = request_of("a", 10, 100), request_of("b", 10, 100)
    run = scheduler("ngram_worker.NGRAMWorker", [([[1, 2], [3]], [1, 0])], overlap=True)
    work = batch([a, b], "decode")
    result = run.run_batch(work)
    a.is_retracted = True
    result.next_token_ids[0] = None
    run.process_batch_result(work.copy(), result)
    assert recorder.accepts == {0: ([None, 1], [1, 0])}


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_sampling_that_waits_for_a_grammar_belongs_to_its_step(hooks: Installed, recorder: RecordedCalls) -> None:
    run = scheduler("ngram_worker.NGRAMWorker", [([[1]], None)], overlap=True)
    work = batch([request_of("a", 10, 100)], "decode", speculative=False)
    result = run.run_batch(work)
    result.delay_sample_func = lambda: recorder.phases.append("sampled")
    run.launch_batch_sample_if_needed(result, work)
    assert recorder.phases == ["decode", "decode", "sampled"]


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_tells_which_rank_it_is_before_anything_is_armed(hooks: Installed, recorder: RecordedCalls) -> None:
    recorder.armed = False
    scheduler("ngram_worker.NGRAMWorker", [], overlap=True)
    assert recorder.told == {
        "rank": 7,  # second replica of four ranks each
        "coordinates": {"tensor": 3, "pipeline": 0, "data": 1},
        "server": "sglang",
        "server_version": None,
        "server_args": {
            "speculative_num_draft_tokens": 3,
            "model_path": "/models/tiny",
            "dp_size": 2,
            "tp_size": 4,
            "pp_size": 1,
            "enable_dp_attention": False,
        },
        "model_path": "/models/tiny",
    }


def test_from_the_scheduler_to_the_trace(tree: Path, tmp_path: Path) -> None:
    """The real recorder: armed and disarmed by the loop's poll, with the totals that the trace compares."""
    recorder = Recorder(tmp_path / "folder")
    installed = sglang.install(recorder, version="0.5.17")
    try:
        receiver = importlib.import_module("sglang.srt.managers.scheduler_components.request_receiver")
        poll = receiver.SchedulerRequestReceiver().recv_requests
        a = request_of("a", 10, 6)
        script = [([[1]], None), ([[2, 3, 4]], [2]), ([[5, 6, 7]], [2]), ([[8]], [0])]
        run = scheduler("eagle_worker_v2.EAGLEWorkerV2", script, overlap=True)
        word.arm(tmp_path / "folder", PHASES_ONLY)
        run.loop([batch([a], "extend")] + [batch([a], "decode") for _ in range(3)], poll)
        word.disarm(tmp_path / "folder")
        poll()
    finally:
        installed.remove()
        recorder.close()
    merge(tmp_path / "folder", tmp_path / "trace.parquet")
    trace = pq.read_table(tmp_path / "trace.parquet")
    cycles = trace.filter(pc.equal(trace["kind"], "cycle")).select(["mode", "accept_lengths", "accepted_draft_tokens"])
    assert cycles.to_pylist() == [
        {"mode": "prefill", "accept_lengths": [1], "accepted_draft_tokens": None},
        {"mode": "speculative", "accept_lengths": [3], "accepted_draft_tokens": [2]},
        {"mode": "speculative", "accept_lengths": [2], "accepted_draft_tokens": [2]},
        {"mode": "speculative", "accept_lengths": [None], "accepted_draft_tokens": [0]},
    ]
    [request] = (
        trace.filter(pc.equal(trace["kind"], "request")).select(["prompt_tokens", "completion_tokens"]).to_pylist()
    )
    assert request == {"prompt_tokens": 10, "completion_tokens": 6}
    names = trace.filter(pc.equal(trace["kind"], "phase"))["name"].to_pylist()
    assert [names.count(f"spec.{name}") for name in ("prefill", "draft", "verify", "draft_extend")] == [1, 3, 3, 3]
    assert json.loads(trace.schema.metadata[b"specanalyze.ranks"])[0]["rank"] == 7


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_a_batch_that_cannot_be_read_is_run_once_and_disarms(hooks: Installed, recorder: RecordedCalls) -> None:
    a = request_of("a", 10, 100)
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[1, 2]], [1]), ([[3]], [0])], overlap=True)
    broken = batch([a], "decode")
    del a.rid
    result = run.run_batch(broken)
    assert result.next_token_ids == [[1, 2]]
    assert [(where, error[:14]) for where, error in recorder.failures] == [
        ("sglang.srt.managers.scheduler.Scheduler.run_batch", "AttributeError")
    ]
    assert (recorder.armed, recorder.cycles, recorder.phases) == (False, [], [])
    run.process_batch_result(broken, result)
    assert a.output_ids == [1, 2]


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_a_result_that_cannot_be_read_is_processed_once_and_disarms(
    hooks: Installed, recorder: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = request_of("a", 10, 100)
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[1, 2]], [1])], overlap=True)
    work = batch([a], "decode")
    result = run.run_batch(work)
    monkeypatch.delattr(type(a), "finished")
    with pytest.raises(AttributeError) as raised:  # SGLang's own, for want of the method
        run.process_batch_result(work, result)
    assert raised.value.__context__ is None
    [(where, _)] = recorder.failures
    assert where == "sglang.srt.managers.scheduler.Scheduler.process_batch_result"
    assert recorder.accepts == {}


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_an_exception_of_the_server_closes_its_cycle_and_passes(hooks: Installed, recorder: RecordedCalls) -> None:
    a = request_of("a", 10, 100)
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [], overlap=True)  # verify has nothing to tell: StopIteration
    with pytest.raises(StopIteration):
        run.run_batch(batch([a], "decode"))
    assert (recorder.ends, recorder.open, recorder.failures) == ({0: None}, [], [])
    run.model_worker.draft_worker.draft(None)  # no cycle is open any more
    assert recorder.phases[-1] == "verify/sample"


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_calls_on_another_thread_are_no_phases_of_the_cycle(hooks: Installed, recorder: RecordedCalls) -> None:
    a = request_of("a", 10, 100)
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[1]], [0]), ([[2]], [0])], overlap=True)
    draft_worker = run.model_worker.draft_worker
    verify = run.model_worker.verify

    def meanwhile(work: Any) -> Any:
        thread = threading.Thread(target=draft_worker.draft, args=(None,))
        thread.start()
        thread.join()
        return verify(work)

    run.model_worker.verify = meanwhile
    run.run_batch(batch([a], "decode"))
    assert recorder.phases == [
        "draft",
        "draft/build_verify_input",
        "verify",
        "verify/target_forward",
        "verify/sample",
        "draft_extend",
    ]


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_no_range_is_opened_while_a_graph_is_captured(
    hooks: Installed, recorder: RecordedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = request_of("a", 10, 100)
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[1]], [0]), ([[2]], [0])], overlap=True)
    capturing = False
    monkeypatch.setattr(guard, "_asks", lambda: capturing)
    verify = run.model_worker.verify

    def captured(work: Any) -> Any:
        nonlocal capturing
        capturing = True
        try:
            return verify(work)
        finally:
            capturing = False

    run.model_worker.verify = captured
    run.run_batch(batch([a], "decode"))
    assert recorder.phases == ["draft", "draft/build_verify_input", "draft_extend"]
    capturing = True
    run.run_batch(batch([a], "decode"))
    assert len(recorder.cycles) == 1  # and no cycle is begun in a capture


def test_a_result_processed_before_the_first_cycle_of_a_recording_is_in_it(tree: Path, tmp_path: Path) -> None:
    """Armed between a step and its result, as a turn that does not overlap processes it first."""
    recorder = Recorder(tmp_path / "folder")
    installed = sglang.install(recorder, version="0.5.17")
    try:
        receiver = importlib.import_module("sglang.srt.managers.scheduler_components.request_receiver")
        poll = receiver.SchedulerRequestReceiver().recv_requests
        a = request_of("a", 10, 100)
        run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[n]], [0]) for n in range(4)], overlap=True)
        for _ in range(2):  # a process's first recording, and one that follows another
            work = batch([a], "decode")
            poll()
            result = run.run_batch(work)
            word.arm(tmp_path / "folder", PHASES_ONLY)
            poll()
            run.process_batch_result(work, result)
            run.process_batch_result(work, run.run_batch(work))
            word.disarm(tmp_path / "folder")
            poll()
            poll()
    finally:
        installed.remove()
        recorder.close()
    for number in (1, 2):
        merge(tmp_path / "folder", tmp_path / "trace.parquet", recording=number, force=True)
        trace = pq.read_table(tmp_path / "trace.parquet")
        phases = trace.filter(pc.equal(trace["kind"], "phase")).sort_by("start_ns")
        assert phases["name"].to_pylist() == [
            "spec.process_result",
            *("spec.draft", "spec.build_verify_input", "spec.verify", "spec.target_forward", "spec.sample"),
            *("spec.draft_extend", "spec.process_result"),
        ]
        assert phases["cycle"].to_pylist() == [None, *[0] * 6, None]


@pytest.mark.parametrize("hooks", ["0.5.17"], indirect=True)
def test_a_turn_polls_once(hooks: Installed, recorder: RecordedCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning a cycle polls; the loop polls by itself where the turn before began none."""
    polls: list[int] = []
    monkeypatch.setattr(recorder, "poll", lambda: polls.append(len(recorder.cycles)))
    receiver = importlib.import_module("sglang.srt.managers.scheduler_components.request_receiver")
    receive = receiver.SchedulerRequestReceiver().recv_requests
    run = scheduler("eagle_worker_v2.EAGLEWorkerV2", [([[1]], [0]) for _ in range(2)], overlap=True)
    receive()
    for _ in range(2):
        run.run_batch(batch([request_of("a", 10, 100)], "decode"))
        receive()
    receive()
    assert polls == [0, 2]


def test_old_releases_are_told_how_to_record_a_baseline(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="speccollect"):
        sglang.install(RecordedCalls(), version="0.5.2").remove()
    assert "start SGLang 0.5.2 with --disable-overlap-schedule" in caplog.text
