"""Types of CUDA graph nodes by their number, as the ``node_type`` column names them."""

from __future__ import annotations

from typing import Final

NODE_TYPES: Final = {
    0: "kernel",
    1: "memcpy",
    2: "memset",
    3: "host",
    4: "graph",
    5: "empty",
    6: "event_wait",
    7: "event_record",
    8: "semaphore_signal",
    9: "semaphore_wait",
    10: "mem_alloc",
    11: "mem_free",
    12: "batch_mem_op",
    13: "conditional",
}
"""cudaGraphNodeType of the CUDA runtime (driver_types.h; 12 is CUgraphNodeType's) -> ``node_type``."""


def node_type(number: int) -> str:
    """The type of a node; ``type_N`` for a number of a newer CUDA."""
    return NODE_TYPES.get(number, f"type_{number}")
