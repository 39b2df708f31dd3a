"""Which rank this process is."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from speccollect.control.process import host_hash, own_start
from speccollect.control.status import RankStatus


@dataclass
class Identity:
    """Coordinates of the process, for the trace's metadata and its file names."""

    rank: int
    world_size: int | None
    pid: int
    host: str
    coordinates: dict[str, int] = field(default_factory=dict)
    """tensor, pipeline, data, expert: coordinates where the engine told them."""

    def status(self, state: str, recording: int = 0, message: str | None = None) -> RankStatus:
        """What the rank says of itself."""
        started, namespace = own_start(self.pid)
        return RankStatus(
            rank=self.rank,
            pid=self.pid,
            host=self.host,
            state=state,
            recording=recording,
            world_size=self.world_size,
            message=message,
            started=started,
            namespace=namespace,
        )

    def section(self) -> dict[str, Any]:
        """One entry of the metadata section ``ranks``."""
        return {
            "rank": self.rank,
            "pid": self.pid,
            "host": self.host,
            "world_size": self.world_size,
            **self.coordinates,
        }


def _environment_number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else None


def find_identity(rank: int | None = None, coordinates: dict[str, int] | None = None) -> Identity:
    """The process's identity: what the engine said, else torch's process group, else RANK and WORLD_SIZE, else rank 0.

    Never imports torch: a process that has not loaded it has no process group.
    """
    world_size: int | None = None
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world_size = distributed.get_world_size()
        if rank is None:
            rank = distributed.get_rank()
    else:
        world_size = _environment_number("WORLD_SIZE")
        if rank is None:
            rank = _environment_number("RANK")
    return Identity(
        rank=rank if rank is not None else 0,
        world_size=world_size,
        pid=os.getpid(),
        host=host_hash(),
        coordinates=dict(coordinates or {}),
    )


def thread_id() -> int:
    """The calling thread's id as the kernel and Kineto know it."""
    return threading.get_native_id()
