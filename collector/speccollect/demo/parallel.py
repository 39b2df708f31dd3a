"""Tensor parallelism: who this rank is, its share of a dimension, and the two collectives that the models use."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but bound without a stub

# torch 2.13 gave all_gather_into_tensor a new name and warns about the old one.
_GATHER: Final = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"

PATIENCE: Final = timedelta(minutes=10)
"""How long a rank waits at the store: others may still be building a large model."""


class TensorParallel:
    """This rank's place in its tensor-parallel group. Size 1 needs no process group and never communicates."""

    def __init__(self, rank: int = 0, size: int = 1, group: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.size = size
        self.group = group

    def share(self, total: int) -> slice:
        """This rank's slice of a dimension of ``total`` elements, which the size divides."""
        part = total // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks, in place; every rank gets the sum."""
        if self.size > 1:
            dist.all_reduce(partial, group=self.group)
        return partial

    def all_gather(self, local: torch.Tensor) -> torch.Tensor:
        """Every rank's tensor of one shape, stacked in rank order: [size, *local.shape]."""
        if self.size == 1:
            return local[None]
        gathered = local.new_empty((self.size, *local.shape))
        # Looked up at each call, as any caller of torch.distributed would: whoever wraps it sees this one, too.
        # The flat form: gloo wants the concatenated shape, NCCL takes either.
        getattr(dist, _GATHER)(gathered.view(-1), local.reshape(-1), group=self.group)
        return gathered


def open_store() -> TCPStore:
    """A store on 127.0.0.1, at a free port, for the ranks to meet at."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def join_store(port: int) -> TCPStore:
    """A connection to the store that listens on 127.0.0.1:``port``."""
    return TCPStore("127.0.0.1", port, is_master=False, timeout=PATIENCE)


def connect(rank: int, size: int, port: int, device: torch.device) -> TensorParallel:
    """Join the group whose store listens on 127.0.0.1:``port``: NCCL for CUDA devices, gloo for CPUs."""
    if size == 1:
        return TensorParallel()
    # A connection of its own: NCCL's watchdog uses it while this rank waits for the launcher on another.
    store = join_store(port)
    if device.type == "cuda":
        dist.init_process_group("nccl", store=store, rank=rank, world_size=size, device_id=device)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    return TensorParallel(rank, size, dist.group.WORLD)


def disconnect() -> None:
    """Leave the group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()
