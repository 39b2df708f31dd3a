"""SGLang's hook points by release, and what the wrappers read there. The contract test checks both against the sources.

Releases read: 0.4.6 to 0.5.23. The v1 worker (``eagle_worker.py``) is there up to 0.5.12.post1, the overlap worker
(``eagle_worker_v2.py``) from 0.5.4 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from speccollect.engines import sglang_parts as parts
from speccollect.engines.sglang_cycle import CycleHooks
from speccollect.hooks.points import HookPoint
from speccollect.hooks.stamps import Weave, within

OLDEST: Final = "0.4.6"
"""Releases before it were not read."""

_MANAGERS: Final = "sglang.srt.managers."
_SPECULATIVE: Final = "sglang.srt.speculative."


def points(cycles: CycleHooks) -> tuple[HookPoint, ...]:
    """Every hook point of every release, wrapped for ``cycles``."""
    scheduler = _MANAGERS + "scheduler"
    return (
        # The loop takes requests on every turn, also while it has nothing to run: the place to see arm and disarm.
        HookPoint(scheduler, "Scheduler.recv_requests", lambda _: cycles.receive(), "<0.5.13", polls=True),
        HookPoint(
            _MANAGERS + "scheduler_components.request_receiver",
            "SchedulerRequestReceiver.recv_requests",
            lambda _: cycles.receive(),
            ">=0.5.13",
            polls=True,
        ),
        HookPoint(scheduler, "Scheduler.__init__", lambda _: cycles.started, always=True),
        HookPoint(scheduler, "Scheduler.run_batch", lambda _: cycles.run_batch(), parameters=("batch",)),
        HookPoint(
            scheduler,
            "Scheduler.process_batch_result",
            lambda _: cycles.process_result(),
            parameters=("batch", "result"),
        ),
        HookPoint(
            scheduler,
            "Scheduler.launch_batch_sample_if_needed",
            lambda _: cycles.delayed_sample(),
            ">=0.5.4",
            ("batch_result",),
        ),
        HookPoint(
            _MANAGERS + "tp_worker",
            "TpModelWorker.forward_batch_generation",
            lambda _: parts.target_forward(cycles.open),
        ),
        HookPoint(
            "sglang.srt.model_executor.cuda_graph_runner",
            "CudaGraphRunner.replay",
            lambda _: parts.replay(cycles.open),
            "<0.4.8",
        ),
        *_v1_points(cycles),
        *_v2_points(cycles),
    )


def _v1_points(cycles: CycleHooks) -> tuple[HookPoint, ...]:
    """Workers that run a whole cycle in the scheduler's turn. StandaloneWorker inherits EAGLEWorker's methods."""
    workers = (
        ("eagle_worker", "EAGLEWorker", "<0.5.13"),
        ("multi_layer_eagle_worker", "MultiLayerEagleWorker", ">=0.5.7,<0.5.13"),
        ("frozen_kv_mtp_worker", "FrozenKVMTPWorker", ">=0.5.12,<0.5.14"),
    )
    phases = (("draft", "draft"), ("verify", "verify"), ("forward_draft_extend_after_decode", "draft_extend"))
    verifiers = (("eagle_utils", "<0.5.3"), ("eagle_info", ">=0.5.3,<0.5.14"))
    builders = (("build_eagle_tree", "<0.5.4"), ("eagle_utils", ">=0.5.4,<0.5.16"))
    return (
        *(
            HookPoint(_SPECULATIVE + module, f"{worker}.{method}", _leaf(cycles, phase), versions)
            for module, worker, versions in workers
            for method, phase in phases
        ),
        *(
            HookPoint(
                _SPECULATIVE + module, "EagleVerifyInput.verify", lambda _: parts.verify_tree(cycles.open), versions
            )
            for module, versions in verifiers
        ),
        *(
            HookPoint(
                _SPECULATIVE + module, "build_tree_kernel_efficient", _part(cycles, "build_verify_input"), versions
            )
            for module, versions in builders
        ),
    )


def _v2_points(cycles: CycleHooks) -> tuple[HookPoint, ...]:
    """Overlap workers: draft methods sit on the draft worker, verify on the speculative worker.

    StandaloneWorkerV2 and FrozenKVMTPWorkerV2 inherit EAGLEWorkerV2's verify.
    """
    return (
        *(
            HookPoint(_SPECULATIVE + module, f"{worker}.{method}", _leaf(cycles, phase), versions)
            for module, draft_worker, verify_worker, versions in (
                ("eagle_worker_v2", "EagleDraftWorker", "EAGLEWorkerV2", ">=0.5.4"),
                ("multi_layer_eagle_worker_v2", "MultiLayerEagleDraftWorker", "MultiLayerEagleWorkerV2", ">=0.5.7"),
                ("frozen_kv_mtp_worker_v2", "FrozenKVMTPDraftWorker", None, ">=0.5.14"),
            )
            for worker, method, phase in (
                (draft_worker, "draft", "draft"),
                (draft_worker, "_draft_extend_for_decode", "draft_extend"),
                (verify_worker, "verify", "verify"),
            )
            if worker is not None
        ),
        HookPoint(
            _SPECULATIVE + "eagle_info_v2", "EagleVerifyInputV2Mixin.sample", _part(cycles, "sample"), ">=0.5.4,<0.5.14"
        ),
        HookPoint(_SPECULATIVE + "eagle_utils", "eagle_sample", _part(cycles, "sample"), ">=0.5.14"),
        HookPoint(
            _SPECULATIVE + "eagle_worker_common",
            "build_eagle_verify_input",
            _part(cycles, "build_verify_input"),
            ">=0.5.16",
        ),
    )


class Read(NamedTuple):
    """Attributes of one class of SGLang that the wrappers read."""

    module: str
    owner: str
    attributes: tuple[str, ...]
    versions: str = ""


READS: Final = (
    Read(_MANAGERS + "scheduler", "Scheduler", ("enable_overlap", "tp_worker", "server_args")),
    Read(_MANAGERS + "scheduler", "Scheduler", ("draft_worker",), "<0.5.4"),
    Read(_MANAGERS + "scheduler", "Scheduler", ("tp_rank",), "<0.5.13"),
    Read(_MANAGERS + "scheduler", "Scheduler", ("ps",), ">=0.5.13,<0.5.21"),
    Read(
        "sglang.srt.server_args", "ServerArgs", ("model_path", "tp_size", "dp_size", "enable_dp_attention"), "<0.5.19"
    ),
    Read("sglang.srt.server_args", "ServerArgs", ("resolved_dict",), ">=0.5.19"),
    Read(_MANAGERS + "scheduler", "Scheduler", ("model_worker",), ">=0.5.4"),
    Read(_MANAGERS + "schedule_batch", "ScheduleBatch", ("reqs", "forward_mode", "spec_algorithm")),
    Read(_MANAGERS + "schedule_batch", "Req", ("rid", "origin_input_ids", "output_ids", "finished")),
    Read(_MANAGERS + "schedule_batch", "Req", ("finished_len",), ">=0.5.4"),
    Read(_MANAGERS + "scheduler", "GenerationBatchResult", ("can_run_cuda_graph",), ">=0.4.8,<0.5.4"),
    Read(_MANAGERS + "utils", "GenerationBatchResult", ("can_run_cuda_graph", "delay_sample_func"), ">=0.5.4"),
    Read(_MANAGERS + "utils", "GenerationBatchResult", ("accept_lens",), ">=0.5.4"),
    Read(_MANAGERS + "utils", "GenerationBatchResult", ("accept_length_per_req_cpu",), ">=0.5.7,<0.5.11"),
    Read(_MANAGERS + "utils", "GenerationBatchResult", ("num_accepted_drafts_per_req_cpu",), ">=0.5.11,<0.5.12"),
    Read(_MANAGERS + "utils", "GenerationBatchResult", ("num_correct_drafts_per_req_cpu",), ">=0.5.12"),
    Read(
        "sglang.srt.model_executor.forward_batch_info", "ForwardMode", ("is_idle", "is_mixed", "is_decode", "is_extend")
    ),
    Read(_SPECULATIVE + "spec_info", "SpeculativeAlgorithm", ("is_none",)),
    Read("sglang.srt.model_executor.model_runner", "ModelRunner", ("cuda_graph_runner",), "<0.4.10"),
    Read("sglang.srt.model_executor.model_runner", "ModelRunner", ("graph_runner",), ">=0.5.2,<0.5.14"),
    Read("sglang.srt.model_executor.model_runner", "ModelRunner", ("decode_cuda_graph_runner",), ">=0.5.14"),
    Read("sglang.srt.model_executor.cuda_graph_runner", "CudaGraphRunner", ("bs",), "<0.5.14"),
    Read("sglang.srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner", ("bs",), ">=0.5.14"),
)
"""What else of SGLang the wrappers rely on."""


def _leaf(cycles: CycleHooks, phase: str) -> Callable[[Any], Weave]:
    return lambda _: parts.leaf(cycles.open, phase)


def _part(cycles: CycleHooks, phase: str) -> Callable[[Any], Weave]:
    return lambda _: within(cycles.open, phase)
