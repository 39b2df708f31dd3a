"""The CUDA graph that is being captured, read through the CUDA runtime: how many nodes, of which types, which kernels.

Needs NVIDIA's ``cuda-bindings`` (12 or 13), which current torch wheels bring along. Counting costs about a microsecond and
lists nothing; the nodes are listed once, at the capture's end, in the order of their creation.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import sys
from dataclasses import dataclass
from typing import Any, Final, Protocol

from specschema.node_types import node_type

logger: Final = logging.getLogger("speccollect")

ORDINAL_MASK: Final = 0xFFFFFFFF
"""Low half of a node id: the node's ordinal in its graph; the high half is the graph (seen on an H200)."""


@dataclass(frozen=True)
class Node:
    """One node of a graph."""

    type: str
    """``kernel``, ``memcpy``, ``event_record``, ...; see specschema.node_types."""
    kernel: str | None = None
    """Name of the kernel as profilers show it (demangled); None for other types, and where the driver doesn't tell."""
    tools_id: int | None = None
    """The node's id as profilers show it, where it can be had: its ordinal in the low 32 bits, its graph's id above them."""


class GraphReader(Protocol):
    """A graph while it is captured."""

    def count(self) -> int:
        """Nodes so far."""

    def nodes(self) -> list[Node]:
        """All nodes in creation order."""


class CapturedGraph:
    """The graph that torch's current stream is being captured into. Valid until the capture ends."""

    def __init__(self, *, cupti_ids: bool = False) -> None:
        """Finds the graph.

        Args:
            cupti_ids: ask CUPTI for each node's id (NVIDIA's ``cupti-python``) where the CUDA runtime doesn't tell it (it does
                from driver and cuda-bindings 13.1 on).

        Raises:
            ImportError: no cuda-bindings.
            RuntimeError: the current stream is not being captured, or CUDA refuses.
        """
        import torch
        from cuda.bindings import runtime

        self._runtime = runtime
        self._cupti_ids = cupti_ids
        self._runtime_ids = hasattr(runtime, "cudaGraphNodeGetToolsId")
        self._named = True
        stream = torch.cuda.current_stream().cuda_stream
        answer = _checked(runtime.cudaStreamGetCaptureInfo(stream), "cudaStreamGetCaptureInfo")
        status, self._graph = answer[0], answer[2]
        if status != runtime.cudaStreamCaptureStatus.cudaStreamCaptureStatusActive:
            raise RuntimeError("the current stream is not being captured")

    def count(self) -> int:
        return int(_checked(self._runtime.cudaGraphGetNodes(self._graph, numNodes=0), "cudaGraphGetNodes")[-1])

    def nodes(self) -> list[Node]:
        total = self.count()
        if total == 0:
            return []
        runtime = self._runtime
        handles = _checked(runtime.cudaGraphGetNodes(self._graph, numNodes=total), "cudaGraphGetNodes")[0][:total]
        # Asking for a kernel's name may load its module, which a capture in global mode would take for a mistake.
        relaxed = runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        previous = _checked(runtime.cudaThreadExchangeStreamCaptureMode(relaxed), "cudaThreadExchangeStreamCaptureMode")
        try:
            return [self._node(handle) for handle in handles]
        finally:
            runtime.cudaThreadExchangeStreamCaptureMode(previous[0])

    def _node(self, handle: Any) -> Node:
        kind = node_type(_type_number(self._runtime, handle))
        return Node(kind, self._kernel_name(int(handle)) if kind == "kernel" else None, self._tools_id(handle))

    def _kernel_name(self, handle: int) -> str | None:
        """Name of a node's kernel. A driver that does not tell it once is not asked again: names only check the map."""
        if not self._named:
            return None
        try:
            return kernel_name(handle)
        except Exception:
            self._named = False
            logger.debug("kernel names of graph nodes are not to be had here", exc_info=True)
            return None

    def _tools_id(self, handle: Any) -> int | None:
        """The id of a node; a way that fails once is not tried again: ids are exact, but order serves without them."""
        if self._runtime_ids:
            error, number = self._runtime.cudaGraphNodeGetToolsId(handle)
            if int(error) == 0:
                return int(number)
            self._runtime_ids = False  # cudaErrorCallRequiresNewerDriver before CUDA 13.1
        if self._cupti_ids:
            try:
                from cupti import cupti

                return int(cupti.get_graph_node_id(int(handle)))
            except Exception:
                self._cupti_ids = False
                logger.debug("CUPTI tells no node ids here", exc_info=True)
        return None


def _type_number(runtime: Any, handle: Any) -> int:
    """A node's type. The runtime refuses some that the driver knows (cudaErrorUnknown for CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    so torch.cuda._graph_annotations of torch 2.14 asks the driver)."""
    error, number = runtime.cudaGraphNodeGetType(handle)
    if int(error) == 0:
        return int(number)
    from cuda.bindings import driver

    return int(_checked(driver.cuGraphNodeGetType(driver.CUgraphNode(int(handle))), "cuGraphNodeGetType")[0])


def instantiated_id(graph: Any) -> int | None:
    """The id that profilers give the executable graph of a captured torch CUDAGraph; never raises.

    None where the graph is not instantiated yet (keep_graph=True), or where driver or cuda-bindings are older than 13.1.
    """
    runtime: Any = sys.modules.get("cuda.bindings.runtime")
    executable = getattr(graph, "raw_cuda_graph_exec", None)
    if executable is None or not hasattr(runtime, "cudaGraphExecGetId"):
        return None
    try:
        error, number = runtime.cudaGraphExecGetId(executable())
        return int(number) if int(error) == 0 else None
    except Exception:
        logger.debug("this graph's executable has no id", exc_info=True)
        return None


def _checked(answer: Any, call: str) -> Any:
    """A binding's answer without its error code.

    Raises:
        RuntimeError: the call failed.
    """
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(f"{call} answered {error!r}")
    return values


def kernel_name(handle: int) -> str | None:
    """Name of a kernel node's kernel; None where this driver or binding doesn't tell."""
    from cuda.bindings import driver

    error, parameters = driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(handle))
    if int(error) != 0:
        return None
    if int(parameters.func):
        error, name = driver.cuFuncGetName(parameters.func)
    elif int(parameters.kern):
        error, name = driver.cuKernelGetName(parameters.kern)
    else:
        return None
    return None if int(error) != 0 or not name else demangled(name.decode(errors="replace"))


@functools.lru_cache(maxsize=65536)
def demangled(name: str) -> str:
    """A C++ symbol as profilers write it; names that are none stay as they are (Triton's ``_fwd_kernel``)."""
    library = _cxx_library()
    if library is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int(0)
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if status.value != 0 or not text:
        return name
    try:
        return ctypes.string_at(text).decode(errors="replace")
    finally:
        _free(text)


@functools.lru_cache(maxsize=1)
def _cxx_library() -> Any:
    """The C++ runtime that torch has loaded; None where there is none."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        demangle = library.__cxa_demangle
    except (OSError, AttributeError):
        return None
    demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    demangle.restype = ctypes.c_void_p  # kept as an address, so that it can be freed
    return library


def _free(address: int) -> None:
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free.restype = None
    free(address)
