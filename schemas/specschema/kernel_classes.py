"""The class of a kernel by its name: bucket and finer subclass, from the ordered table in ``kernel_rules``.

The first rule that matches decides. A name that no rule knows is ``other_compute`` by default and *unclassified*: its
device time is reported as such, so that a new kernel never hides in a class it does not belong to (rule D5).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from specschema import pattern_words
from specschema.communication import ALLREDUCE
from specschema.first_match import FirstMatch
from specschema.kernel_function import function_of
from specschema.kernel_rules import RULES, KernelRule

__all__ = ["BY_OPERATION", "RULES", "UNCLASSIFIED", "KernelClass", "KernelRule", "classify", "classify_names"]

BY_OPERATION: Final = -1
"""KernelClass.rule where the framework's own operation decided, not a rule of the table."""

UNCLASSIFIED: Final = "unclassified"


class KernelClass(NamedTuple):
    """Class of one kernel name.

    ``rule`` is the index in RULES, BY_OPERATION, or None: no rule knows the name (bucket other_compute, unclassified).
    """

    bucket: str
    subclass: str
    rule: int | None


_MATCH: Final = FirstMatch(RULES, pattern_words.RULES)


def operation_of(op: str) -> str:
    """``_allgather_base`` -> ``allgather``: the framework's operation, without decoration."""
    plain = re.sub(r"[^a-z]", "", op.lower())
    for operation in ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast"):
        if operation in plain:
            return operation
    return plain or "unknown"


@cache
def classify(name: str, op: str | None = None) -> KernelClass:
    """Class of a kernel.

    Args:
        name: kernel name as the profiler wrote it, demangled or mangled, any case.
        op: the collective's operation where the framework recorded one (Kineto's ``Collective name``); it wins over the
            name, because generic and send/receive kernels run all-reduces too.

    Returns:
        Bucket (one of specschema.phases.DEVICE_BUCKETS), subclass, and what decided.
    """
    if op:
        operation = operation_of(op)
        return KernelClass("allreduce" if operation == ALLREDUCE else "other_comm", operation, BY_OPERATION)
    index = _MATCH.of(name, function_of(name))
    if index is None:
        return KernelClass("other_compute", UNCLASSIFIED, None)
    return KernelClass(RULES[index].bucket, RULES[index].subclass, index)


def classify_names(names: Sequence[str], ops: Sequence[str | None] | None = None) -> list[KernelClass]:
    """Class of each name, in order; meant for the unique names of a trace.

    Args:
        names: kernel names.
        ops: the collective's operation for each name, or None where there is none at all.

    Raises:
        ValueError: ops of another length than names.
    """
    if ops is None:
        return [classify(name) for name in names]
    return [classify(name, op) for name, op in zip(names, ops, strict=True)]
