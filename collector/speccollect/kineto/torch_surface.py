"""What of torch the collector leans on without torch's promise that it stays: names, and the parameters it gives them.

One table, so that a release that moves something is told by name: by a test, and by the one line that a recording says when
it has to do without (``Profiler.lacking``).
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

OLDEST: Final = (2, 6)
"""torch that pyproject.toml asks for."""


@dataclass(frozen=True)
class Part:
    """Something of torch.

    Attributes:
        path: dotted name, from ``torch`` or ``cuda`` on.
        positional: arguments that are given by position, without the instance.
        named: arguments that are given by name.
        since: first torch that has it; older ones do without, which is said where it is used.
    """

    path: str
    positional: int = 0
    named: tuple[str, ...] = ()
    since: tuple[int, int] = OLDEST


PROFILER: Final = (
    Part("torch.autograd._prepare_profiler", 2),
    Part("torch.autograd._enable_profiler", 2),
    Part("torch.autograd._disable_profiler"),
    Part("torch.autograd._profiler_enabled"),
    Part("torch.autograd.profiler.profile", named=("use_kineto", "use_cpu", "use_device")),
    Part("torch.autograd.profiler.profile.config"),
)
"""Without one of these windows use torch.profiler itself, which synchronises the device when it stops."""

SCOPES: Final = (Part("torch.autograd._enable_profiler", 3), Part("torch._C._profiler.RecordScope.USER_SCOPE"))
"""Without these there are no ranges of the profiler's, and its clock is taken for the host's."""

EVENTS: Final = (
    Part("torch._C._autograd._ProfilerResult.events"),
    *(
        Part(f"torch._C._autograd._KinetoEvent.{name}")
        for name in ("start_ns", "duration_ns", "correlation_id", "device_index", "device_resource_id", "name")
    ),
    *(Part(f"torch._C._autograd._KinetoEvent.{name}") for name in ("device_type", "is_user_annotation")),
    Part("torch._C._autograd._KinetoEvent.activity_type", since=(2, 12)),
)
"""Without one of these windows can't be read; without ``activity_type`` types are told by name."""

TEXT: Final = (
    Part("torch._C._profiler._ExperimentalConfig.__init__", named=("expose_kineto_event_metadata",), since=(2, 10)),
    Part("torch._C._autograd._KinetoEvent.metadata_json", since=(2, 10)),
)
"""Without these events carry no text: no node ids, launch shapes or sizes of copies, and no collectives of eager work."""

WRAPPED: Final = (
    Part("torch.autograd.profiler._prepare_profiler"),
    Part("torch.autograd.profiler._enable_profiler"),
    Part("torch.cuda.graphs.CUDAGraph.capture_begin"),
    Part("torch.cuda.graphs.CUDAGraph.capture_end"),
    Part("torch.cuda.graphs.CUDAGraph.replay"),
    Part("torch.nn.modules.module.register_module_forward_pre_hook", 1),
    Part("torch.nn.modules.module.register_module_forward_hook", 1, ("always_call",)),
    Part("torch.distributed.get_process_group_ranks", 1),
)
"""What is wrapped or hooked; without the graph's methods there is no node map."""

CUDA: Final = (
    Part("cuda.bindings.runtime.cudaStreamGetCaptureInfo"),
    Part("cuda.bindings.runtime.cudaGraphGetNodes"),
    Part("cuda.bindings.runtime.cudaGraphNodeGetType"),
    Part("cuda.bindings.runtime.cudaThreadExchangeStreamCaptureMode"),
    Part("cuda.bindings.driver.cuGraphKernelNodeGetParams"),
    Part("cuda.bindings.driver.cuGraphNodeGetType"),
    Part("cuda.bindings.driver.cuFuncGetName"),
    Part("cuda.bindings.driver.cuKernelGetName"),
)
"""NVIDIA's cuda-bindings, which torch's CUDA wheels bring along; without them there is no node map."""

NODE_IDS: Final = (
    Part("cuda.bindings.runtime.cudaGraphNodeGetToolsId"),
    Part("cuda.bindings.runtime.cudaGraphExecGetId"),
    Part("torch.cuda.graphs.CUDAGraph.raw_cuda_graph_exec"),
)
"""cuda-bindings 13.1: without them a replay's graph is told by stamps, and a node's id is its place in order of creation."""


def moved(parts: Iterable[Part], version: Sequence[int] | None = None) -> list[str]:
    """What is not there or takes other arguments, one line each.

    Args:
        parts: what is looked at.
        version: torch's release; parts that came later are left out. None asks for all.
    """
    asked = [part for part in parts if version is None or tuple(version[:2]) >= part.since]
    return [line for part in asked if (line := _moved(part)) is not None]


def _moved(part: Part) -> str | None:
    head, *rest = part.path.split(".")
    found, owner = _imported(head), head
    if found is None:
        return f"no module {head}"
    for name in rest:
        inner = getattr(found, name, None) if found is not None else None
        if inner is None and inspect.ismodule(found):
            inner = _imported(f"{owner}.{name}")
        if inner is None:
            return f"{owner} has no {name}"
        found, owner = inner, f"{owner}.{name}"
    parameters = _parameters(found)
    if parameters is None:
        return None
    missing = [name for name in part.named if name not in parameters]
    if missing:
        return f"{part.path} has no parameter {', '.join(missing)}"
    if len(parameters) < part.positional:
        return f"{part.path} takes {len(parameters)} arguments, not {part.positional}"
    return None


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _parameters(found: Any) -> list[str] | None:
    """Names of a callable's parameters without the instance; None where nothing tells them. pybind11's stand in the docstring."""
    if not callable(found):
        return None
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        names = []
    if not names or set(names) <= {"args", "kwargs", "self"}:
        told = re.match(r"\w+\((.*)\)(?: -> |$)", (found.__doc__ or "").partition("\n")[0])
        if told is None:
            return None
        # commas inside brackets and default values belong to a parameter
        flat = told[1]
        while (plain := re.sub(r"\[[^][]*\]|\{[^{}]*\}|\([^()]*\)", "", flat)) != flat:
            flat = plain
        names = [one.partition(":")[0].partition("=")[0].strip() for one in flat.split(",") if one.strip()]
    return [name for name in names if name != "self"]
