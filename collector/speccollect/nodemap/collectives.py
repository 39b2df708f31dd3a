"""Which collectives a capture calls, with element type, size and group: the graph itself keeps none of that.

The functions are wrapped for the length of a capture only. SGLang's and vLLM's groups are wrapped above their transports
(NCCL through pynccl, custom and symmetric-memory kernels), torch.distributed for everything else; of nested calls the
outermost counts. Fused all-reduce + norm kernels that a layer calls directly pass by: their names say what they are.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import wrapt

logger: Final = logging.getLogger("speccollect")


@dataclass(frozen=True)
class Collective:
    """One collective as the framework called it."""

    op: str
    dtype: str
    elements: int
    """Elements that this rank puts in."""
    group: str | None
    ranks: tuple[int, ...] | None
    """Global ranks of the group."""


class Span(NamedTuple):
    """Nodes [first, end) that a collective's call added."""

    first: int
    end: int
    collective: Collective


class _Target(NamedTuple):
    """A function or method: its operation, and the parameter that holds what this rank puts in."""

    name: str
    op: str
    input: str


_GROUP_METHODS: Final = (
    _Target("all_reduce", "allreduce", "input_"),
    _Target("quant_all_reduce", "allreduce", "input_"),
    _Target("fused_allreduce_rmsnorm", "allreduce", "input_"),
    _Target("fused_allreduce_rmsnorm_quant_per_group", "allreduce", "input_"),
    _Target("all_gather", "allgather", "input_"),
    _Target("all_gatherv", "allgather", "input_"),
    _Target("all_gather_into_tensor", "allgather", "input"),
    _Target("cp_all_gather_into_tensor_async", "allgather", "input"),
    _Target("reduce_scatter_tensor", "reducescatter", "input"),
    _Target("reduce_scatter_along_dim", "reducescatter", "input_"),
    _Target("reduce_scatter", "reducescatter", "input_list"),
    _Target("reduce_scatterv", "reducescatter", "input_"),
    _Target("all_to_all_single", "alltoall", "input"),
    _Target("broadcast", "broadcast", "input_"),
    _Target("gather", "gather", "input_"),
    _Target("send", "send", "tensor"),
    # what vLLM's custom operators call: compiled code holds the operators, and never comes by the methods above
    _Target("_all_reduce_out_place", "allreduce", "input_"),
    _Target("_all_gather_out_place", "allgather", "input_"),
    _Target("_reduce_scatter_out_place", "reducescatter", "input_"),
)
"""GroupCoordinator of SGLang (0.4.6 to 0.5.23 read) and vLLM (0.15 to 0.33)."""

_TORCH_FUNCTIONS: Final = (
    _Target("all_reduce", "allreduce", "tensor"),
    _Target("reduce", "reduce", "tensor"),
    _Target("broadcast", "broadcast", "tensor"),
    _Target("all_gather_into_tensor", "allgather", "input_tensor"),
    _Target("all_gather", "allgather", "tensor"),
    _Target("reduce_scatter_tensor", "reducescatter", "input"),
    _Target("all_to_all_single", "alltoall", "input"),
    _Target("send", "send", "tensor"),
)

_GroupOf = Callable[[Any, Mapping[str, Any]], tuple[str | None, Sequence[int] | None]]

_GROUP_CLASSES: Final = ("sglang.srt.distributed.parallel_state", "vllm.distributed.parallel_state")


class CollectiveWatch:
    """Notes the collectives of one capture."""

    def __init__(self, count: Callable[[], int]) -> None:
        """``count`` tells how many nodes the graph has now."""
        self.spans: list[Span] = []
        self._count = count
        self._busy = False
        self._undo: list[Callable[[], None]] = []

    def start(self) -> None:
        """Wraps what is loaded now."""
        for module_name in _GROUP_CLASSES:
            coordinator = getattr(sys.modules.get(module_name), "GroupCoordinator", None)
            if coordinator is not None:
                for target in _GROUP_METHODS:
                    self._wrap(coordinator, target, _group_of_coordinator)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            for owner in (distributed, sys.modules.get("torch.distributed.distributed_c10d")):
                for target in _TORCH_FUNCTIONS:
                    self._wrap(owner, target, _group_of_call)

    def stop(self) -> None:
        """Takes the wrappers off."""
        while self._undo:
            self._undo.pop()()

    def _wrap(self, owner: Any, target: _Target, group_of: _GroupOf) -> None:
        original = getattr(owner, "__dict__", {}).get(target.name)
        if original is None:
            return
        replacement = wrapt.FunctionWrapper(original, self._wrapper(target, group_of))
        setattr(owner, target.name, replacement)

        def undo() -> None:
            if owner.__dict__.get(target.name) is replacement:
                setattr(owner, target.name, original)

        self._undo.append(undo)

    def _wrapper(self, target: _Target, group_of: _GroupOf) -> Any:
        def wrapper(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._busy:
                return wrapped(*args, **kwargs)
            first, what = self._describe(target, group_of, wrapped, instance, args, kwargs)
            self._busy = True
            try:
                return wrapped(*args, **kwargs)
            finally:
                self._busy = False
                self._note(first, what)

        return wrapper

    def _describe(
        self,
        target: _Target,
        group_of: _GroupOf,
        wrapped: Callable[..., Any],
        instance: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[int, Collective | None]:
        try:
            given = inspect.signature(wrapped).bind_partial(*args, **kwargs).arguments
            value = given[target.input]
            tensors = value if isinstance(value, (list, tuple)) else [value]
            group, ranks = group_of(instance, given)
            dtype = str(tensors[0].dtype).removeprefix("torch.")
            members = None if ranks is None else tuple(int(rank) for rank in ranks)
            elements = sum(int(tensor.numel()) for tensor in tensors)
            return self._count(), Collective(target.op, dtype, elements, group, members)
        except Exception:
            logger.debug("a captured %s is noted without its metadata", target.name, exc_info=True)
            return 0, None

    def _note(self, first: int, what: Collective | None) -> None:
        if what is None:
            return
        try:
            end = self._count()
        except Exception:  # noqa: BLE001  hook boundary
            return
        if end > first:
            self.spans.append(Span(first, end, what))


def _group_of_coordinator(coordinator: Any, given: Mapping[str, Any]) -> tuple[str | None, Sequence[int] | None]:
    return getattr(coordinator, "unique_name", None), getattr(coordinator, "ranks", None)


def _group_of_call(instance: Any, given: Mapping[str, Any]) -> tuple[str | None, Sequence[int] | None]:
    """Group of a torch.distributed call, the default one when none is given."""
    distributed = sys.modules["torch.distributed"]
    group = given.get("group") or distributed.group.WORLD
    return getattr(group, "group_name", None), distributed.get_process_group_ranks(group)
