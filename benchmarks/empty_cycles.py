"""Cycles of an engine whose methods do nothing: what is left of them is what the collector's hooks cost.

Modules and classes have the names and the call structure of the real engine's, so that its own hook points are installed on them.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from types import ModuleType
from typing import Any, Final, NamedTuple

from speccollect.demo.scheduler import Scheduler
from speccollect.demo.worker import CycleResult, SpeculativeWorker
from speccollect.engines import embedded, sglang
from speccollect.rank.recorder import Recorder

_SGLANG: Final = "0.5.17"

_MODULES: Final = {
    "sglang.srt.managers.utils": """
from dataclasses import dataclass
from typing import Any

@dataclass
class GenerationBatchResult:
    can_run_cuda_graph: bool = False
    num_correct_drafts_per_req_cpu: Any = None
    delay_sample_func: Any = None
    accept_lens: Any = None
""",
    "sglang.srt.model_executor.forward_batch_info": """
from enum import Enum, IntEnum, auto

class ForwardMode(IntEnum):
    EXTEND = auto()
    DECODE = auto()
    MIXED = auto()
    IDLE = auto()
    def is_idle(self): return self == ForwardMode.IDLE
    def is_mixed(self): return self == ForwardMode.MIXED
    def is_decode(self): return self == ForwardMode.DECODE
    def is_extend(self): return self == ForwardMode.EXTEND or self == ForwardMode.MIXED

class SpeculativeAlgorithm(Enum):
    EAGLE3 = auto()
    NONE = auto()
    def is_none(self): return self == SpeculativeAlgorithm.NONE
""",
    "sglang.srt.managers.scheduler_components.request_receiver": """
class SchedulerRequestReceiver:
    def recv_requests(self): return []
""",
    "sglang.srt.managers.tp_worker": """
class Runner:
    bs = 1
class ModelRunner:
    def __init__(self): self.decode_cuda_graph_runner = Runner()
class TpModelWorker:
    def __init__(self): self.model_runner = ModelRunner()
    def forward_batch_generation(self, batch, is_verify=False): return None
""",
    "sglang.srt.speculative.eagle_utils": """
def eagle_sample(verify_input, batch): return None
""",
    "sglang.srt.speculative.eagle_worker_common": """
def build_eagle_verify_input(batch): return None
""",
    "sglang.srt.speculative.eagle_worker_v2": """
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.speculative.eagle_utils import eagle_sample
from sglang.srt.speculative.eagle_worker_common import build_eagle_verify_input

class EagleDraftWorker:
    def draft(self, batch): return build_eagle_verify_input(batch)
    def _draft_extend_for_decode(self, batch, result): return None

class EAGLEWorkerV2:
    def __init__(self, target_worker):
        self.draft_worker, self.target_worker, self.speculative_num_draft_tokens = EagleDraftWorker(), target_worker, 3
    def verify(self, batch, grammar_barrier=None):
        self.target_worker.forward_batch_generation(batch, is_verify=True)
        eagle_sample(None, batch)
        return GenerationBatchResult(can_run_cuda_graph=True)
    def forward_batch_generation(self, batch, on_publish=None, grammar_barrier=None):
        verify_input = self.draft_worker.draft(batch)
        result = self.verify(batch, grammar_barrier=grammar_barrier)
        self.draft_worker._draft_extend_for_decode(batch, result)
        return result
""",
    "sglang.srt.managers.scheduler": """
from collections import deque
from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import ForwardMode, SpeculativeAlgorithm
from sglang.srt.speculative.eagle_worker_v2 import EAGLEWorkerV2

class Req:
    def __init__(self, rid):
        self.rid, self.origin_input_ids, self.output_ids = rid, list(range(1000)), [0]
        self.finished_len, self.finished_reason, self.is_retracted = None, None, False
    @property
    def seqlen(self): return len(self.origin_input_ids) + len(self.output_ids)
    def finished(self): return self.finished_reason is not None

class ScheduleBatch:
    def __init__(self, count):
        self.reqs = [Req(f"request-{i:04d}") for i in range(count)]
        self.forward_mode, self.spec_algorithm = ForwardMode.DECODE, SpeculativeAlgorithm.EAGLE3

class Args:
    def __init__(self):
        self.model_path, self.tp_size, self.dp_size, self.speculative_num_draft_tokens = "/models/none", 1, 1, 3

class Scheduler:
    enable_overlap = True
    def __init__(self, count):
        self.server_args, self.tp_rank, self.pp_rank, self.dp_rank, self.moe_ep_rank = Args(), 0, 0, 0, 0
        self.request_receiver, self.tp_worker = SchedulerRequestReceiver(), TpModelWorker()
        self.model_worker = EAGLEWorkerV2(self.tp_worker)
        self.result_queue, self.batch = deque(), ScheduleBatch(count)
    def run_batch(self, batch, pp_proxy_tensors=None):
        return self.model_worker.forward_batch_generation(batch, on_publish=None, grammar_barrier=None)
    def process_batch_result(self, batch, result):
        for request in batch.reqs:
            request.output_ids += (1, 2)
        result.num_correct_drafts_per_req_cpu = [1] * len(batch.reqs)
    def launch_batch_sample_if_needed(self, batch_result, cur_batch):
        if batch_result is None or batch_result.delay_sample_func is None:
            return
    def turn(self):
        self.request_receiver.recv_requests()
        batch = self.batch
        result = self.run_batch(batch)
        self.result_queue.append((batch, result))
        if len(self.result_queue) > 1:
            self.process_batch_result(*self.result_queue.popleft())
        self.launch_batch_sample_if_needed(result, batch)
""",
}
"""In the order of their imports; the structure of the overlap loop of release _SGLANG."""


class Engine(NamedTuple):
    """An engine whose methods do nothing."""

    cycle: Callable[[], None]
    """Runs one cycle."""
    install: Callable[[Recorder], Any]
    """Puts the collector's hooks on; ``remove()`` of what it returns takes them off."""


class _Request:
    request_id = "bench"


class _Sequence:
    request = _Request()
    context_tokens = 1000


class _Batch:
    mode = "speculative"

    def __init__(self, count: int) -> None:
        self.sequences = (_Sequence(),) * count


class _Config:
    steps = 2


def embedded_engine(stack: ExitStack, requests: int) -> Engine:
    """The embedded engine's worker and scheduler; their methods come back when the stack closes."""

    def nothing(self: Any, count: int, graph_size: int | None) -> None: ...

    def forward_batch(self: Any, batch: Any) -> CycleResult:
        self.draft(1, 1)
        self.verify(1, 1)
        self.draft_extend(1, 1)
        return CycleResult([[1, 2]] * requests, [1] * requests, requests)

    def process_result(self: Any, batch: Any, result: CycleResult) -> list[int]:
        return [2] * requests

    for owner, methods in (
        (
            SpeculativeWorker,
            {"draft": nothing, "verify": nothing, "draft_extend": nothing, "forward_batch": forward_batch},
        ),
        (Scheduler, {"process_result": process_result}),
    ):
        for name, method in methods.items():
            stack.callback(setattr, owner, name, getattr(owner, name))
            # a function of its own for each name: wrapping one would otherwise wrap all
            setattr(owner, name, type(method)(method.__code__, method.__globals__, name, None, method.__closure__))
    worker: Any = object.__new__(SpeculativeWorker)
    worker.config = _Config()
    scheduler = object.__new__(Scheduler)
    batch: Any = _Batch(requests)

    def cycle() -> None:
        scheduler.process_result(batch, worker.forward_batch(batch))

    return Engine(cycle, embedded.install)


def sglang_engine(stack: ExitStack, requests: int) -> Engine:
    """SGLang's overlap loop: a batch is run, then the result of the one before it is processed."""
    for name, source in _MODULES.items():
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = ".".join(parts[:depth])
            if package not in sys.modules:
                sys.modules[package] = ModuleType(package)
                stack.callback(sys.modules.pop, package)
        module = sys.modules[name] = ModuleType(name)
        stack.callback(sys.modules.pop, name)
        exec(compile(source, name, "exec"), vars(module))
    scheduler = sys.modules["sglang.srt.managers.scheduler"].Scheduler(requests)
    served = deque(scheduler.batch.reqs)

    def cycle() -> None:
        if len(served[0].output_ids) > 4000:
            for request in served:  # as new requests would
                request.output_ids = [0]
        scheduler.turn()

    return Engine(cycle, lambda recorder: sglang.install(recorder, version=_SGLANG))


ENGINES: Final = {"embedded": embedded_engine, "sglang": sglang_engine}
