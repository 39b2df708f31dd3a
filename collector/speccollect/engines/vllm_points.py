"""vLLM's hook points by release, and what the wrappers read there. The contract test checks both against the sources.

Releases read: 0.15.1 to 0.33.0. The V1 runner (``gpu_model_runner.py``) is in all of them and runs on CPUs, too; the V2
runner (``gpu/model_runner.py``), the default on GPUs of later releases, is hooked from 0.20 on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from speccollect.engines import vllm_parts as parts
from speccollect.engines.vllm_cycle import Call, CycleHooks
from speccollect.hooks.points import HookPoint
from speccollect.hooks.stamps import Weave, stamped

OLDEST: Final = "0.15"
"""Releases before it were not read."""

V2_SINCE: Final = ">=0.20"

_WORKER: Final = "vllm.v1.worker.gpu_worker"
_RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
_RUNNER_V2: Final = "vllm.v1.worker.gpu.model_runner"
_SPECULATORS: Final = "vllm.v1.worker.gpu.spec_decode."


def points(cycles: CycleHooks) -> tuple[HookPoint, ...]:
    """Every hook point of every release, wrapped for ``cycles``. CPU and XPU workers and runners inherit these."""
    return (
        HookPoint(_WORKER, "Worker.load_model", lambda _: cycles.started, always=True),
        HookPoint(_WORKER, "Worker.compile_or_warm_up_model", lambda _: cycles.quiet, always=True),
        HookPoint(_WORKER, "Worker.execute_dummy_batch", lambda _: cycles.idle, polls=True),
        *_v1_points(cycles),
        *_v2_points(cycles),
    )


def _point(
    module: str,
    qualname: str,
    wrapper: Call | Weave,
    versions: str = "",
    parameters: tuple[str, ...] = (),
    polls: bool = False,
) -> HookPoint:
    return HookPoint(module, qualname, lambda _: wrapper, versions, parameters, polls)


def _v1_points(cycles: CycleHooks) -> tuple[HookPoint, ...]:
    # A step comes by on every turn of a busy worker's loop. An idle one waits inside its message queue: it sees the
    # control word with the first step of the next request, before that step's cycle begins.
    step = cycles.open
    drafters = (("eagle", "<0.20"), ("llm_base_proposer", ">=0.20"))
    return (
        _point(_RUNNER, "GPUModelRunner.execute_model", cycles.execute_model(), "", ("scheduler_output",), polls=True),
        _point(_RUNNER, "GPUModelRunner.sample_tokens", cycles.sample_tokens()),
        _point(_RUNNER, "GPUModelRunner._model_forward", parts.target_forward(step)),
        _point(_RUNNER, "GPUModelRunner._sample", parts.sample(step)),
        _point(_RUNNER, "GPUModelRunner._bookkeeping_sync", stamped(step, "process_result")),
        _point(_RUNNER, "GPUModelRunner.propose_draft_token_ids", parts.propose(step, None)),
        _point(_RUNNER, "AsyncGPUModelRunnerOutput.get_output", cycles.get_output),
        # asked by the drafter right after each forward of its model; the first one is the re-extend
        *(
            _point(
                f"vllm.v1.spec_decode.{module}",
                "SpecDecodeBaseProposer.model_returns_tuple",
                parts.extended(step, after=False),
                versions,
            )
            for module, versions in drafters
        ),
    )


def _v2_points(cycles: CycleHooks) -> tuple[HookPoint, ...]:
    step = cycles.open
    extending = (
        ("eagle.speculator", "EagleSpeculator", ">=0.20,<0.23"),
        ("autoregressive.speculator", "AutoRegressiveSpeculator", ">=0.23,<0.32"),
        ("target_dependent_ar.speculator", "TargetDependentARSpeculator", ">=0.32"),
        ("draft_model.speculator", "PlainDraftModelSpeculator", ">=0.31,<0.32"),
        ("standalone_ar.speculator", "StandaloneARSpeculator", ">=0.32"),
    )
    # One forward makes all drafts, or no model does.
    drafting = (
        ("dflash.speculator", "DFlashSpeculator", ">=0.24"),
        ("multi_module_mtp.speculator", "MultiModuleMTPSpeculator", ">=0.27"),
        ("ngram.speculator", "NgramGPUSpeculator", ">=0.32"),
    )
    # What comes right after the re-extend, be it eager, piecewise or one graph: the hooks that the later releases have
    # for it (MTPSpeculator overrides them), else the preparation of the next forwards.
    after = (
        ("autoregressive.speculator", "AutoRegressiveSpeculator.on_prefill_end", ">=0.28,<0.32"),
        ("target_dependent_ar.speculator", "TargetDependentARSpeculator.on_prefill_end", ">=0.32"),
        ("mtp.speculator", "MTPSpeculator.on_prefill_end", ">=0.28"),
    )
    before = (
        ("eagle.speculator", "prepare_eagle_decode", ">=0.20,<0.23"),
        ("autoregressive.speculator", "prepare_decode_inputs", ">=0.23,<0.28"),
        ("draft_model.speculator", "PlainDraftModelSpeculator._multi_step_decode", ">=0.31,<0.32"),
        ("standalone_ar.speculator", "StandaloneARSpeculator._multi_step_decode", ">=0.32"),
    )
    runner = (
        ("sample_tokens", cycles.sample_tokens()),
        ("sample", parts.sample(step)),
    )
    return (
        _point(
            _RUNNER_V2,
            "GPUModelRunner.execute_model",
            cycles.execute_model(),
            V2_SINCE,
            ("scheduler_output", "dummy_run"),
            polls=True,
        ),
        *(_point(_RUNNER_V2, f"GPUModelRunner.{method}", wrapper, V2_SINCE) for method, wrapper in runner),
        _point("vllm.v1.worker.gpu.async_utils", "AsyncOutput.get_output", cycles.get_output, V2_SINCE),
        _point("vllm.v1.worker.gpu.dp_utils", "dispatch_cg_and_sync_dp", parts.dispatch(step), V2_SINCE),
        _point(
            "vllm.v1.worker.gpu.cudagraph_utils",
            "CudaGraphManager.run_fullgraph",
            stamped(step, "full_graph"),
            V2_SINCE,
        ),
        _point(
            "vllm.v1.worker.gpu.cudagraph_utils",
            "CudaGraphManager.run_pw_graph",
            stamped(step, "piecewise_graph"),
            ">=0.23",
        ),
        *(
            _point(_SPECULATORS + module, f"{name}.propose", parts.propose(step, extends=True), versions)
            for module, name, versions in extending
        ),
        *(
            _point(_SPECULATORS + module, f"{name}.propose", parts.propose(step, extends=False), versions)
            for module, name, versions in drafting
        ),
        *(
            _point(_SPECULATORS + module, name, parts.extended(step, after=True), versions)
            for module, name, versions in after
        ),
        *(
            _point(_SPECULATORS + module, name, parts.extended(step, after=False), versions)
            for module, name, versions in before
        ),
    )


class Read(NamedTuple):
    """Attributes of one class of vLLM that the wrappers read."""

    module: str
    owner: str
    attributes: tuple[str, ...]
    versions: str = ""


_CONFIG: Final = "vllm.config."
_PLAN: Final = "vllm.v1.core.sched.output"
_GRAPHS_V2: Final = "vllm.v1.worker.gpu.cudagraph_utils"

READS: Final = (
    Read(
        _PLAN,
        "SchedulerOutput",
        (
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "scheduled_spec_decode_tokens",
            "finished_req_ids",
        ),
    ),
    Read(_PLAN, "CachedRequestData", ("req_ids", "num_computed_tokens", "num_output_tokens")),
    Read(_PLAN, "NewRequestData", ("req_id", "prompt_token_ids", "sampling_params", "num_computed_tokens")),
    Read("vllm.v1.outputs", "ModelRunnerOutput", ("req_ids", "sampled_token_ids")),
    Read(
        "vllm.sampling_params", "SamplingParams", ("max_tokens", "stop_token_ids", "ignore_eos", "all_stop_token_ids")
    ),
    Read("vllm.forward_context", "BatchDescriptor", ("num_tokens", "num_reqs")),
    Read("vllm.forward_context", "ForwardContext", ("cudagraph_runtime_mode", "batch_descriptor")),
    Read(_GRAPHS_V2, "BatchExecutionDescriptor", ("cg_mode", "num_tokens", "num_reqs"), V2_SINCE),
    Read(_RUNNER, "GPUModelRunner", ("vllm_config", "max_model_len", "speculative_config", "drafter")),
    Read(_RUNNER_V2, "GPUModelRunner", ("vllm_config", "max_model_len", "speculative_config"), V2_SINCE),
    Read("vllm.v1.worker.worker_base", "WorkerBase", ("vllm_config", "rank")),
    Read(_CONFIG + "parallel", "ParallelConfig", ("data_parallel_index", "world_size", "enable_expert_parallel")),
    Read(_CONFIG + "scheduler", "SchedulerConfig", ("async_scheduling",)),
    Read(_CONFIG + "model", "ModelConfig", ("model",)),
    Read(_CONFIG + "vllm", "VllmConfig", ("model_config", "parallel_config", "scheduler_config")),
)
"""What else of vLLM the wrappers rely on."""
