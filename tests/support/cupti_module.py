"""The surface of cupti-python that the collector uses, without a GPU."""

from __future__ import annotations

import enum
from typing import Any


class Cupti:
    """cupti-python's surface that the profiler uses, delivering what a test hands it."""

    class ActivityKind(enum.IntEnum):
        CONCURRENT_KERNEL, MEMCPY, MEMCPY2, MEMSET, RUNTIME, DRIVER = 10, 1, 22, 2, 5, 4

    class ActivityThreadIdType(enum.IntEnum):
        DEFAULT, SYSTEM = 0, 1

    class runtime_api_trace_cbid(enum.IntEnum):
        cudaGraphLaunch_v10000 = 311

    class CallbackDomain(enum.IntEnum):
        DRIVER_API, RUNTIME_API = 1, 2

    def __init__(self, refuses: int | None = None) -> None:
        self.refuses = refuses
        self.enabled: set[int] = set()
        self.thread_ids = 0
        self.now = 1_000
        self.pending: list[Any] = []
        self.deliver: Any = None

    def activity_register_callbacks(self, requested: Any, completed: Any) -> None:
        assert requested()[0] >= 1 << 20
        self.deliver = completed

    def activity_enable(self, kind: int) -> None:
        if kind == self.refuses:
            raise RuntimeError("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED")
        self.enabled.add(int(kind))

    def activity_disable(self, kind: int) -> None:
        self.enabled.remove(int(kind))

    def activity_flush_all(self, flag: int) -> None:
        records, self.pending = self.pending, []
        self.deliver(records)

    def get_timestamp(self) -> int:
        self.now += 10
        return self.now

    def get_thread_id_type(self) -> int:
        return self.thread_ids

    def set_thread_id_type(self, kind: int) -> None:
        self.thread_ids = int(kind)

    def get_callback_name(self, domain: int, callback: int) -> str:
        assert (domain, callback) == (self.CallbackDomain.RUNTIME_API, 505)
        return "__cudaLaunchKernel_v13000"
