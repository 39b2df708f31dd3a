"""The small model that ``nodemap_check`` captures: one stream or two, with an all-reduce a layer where there are ranks."""

from __future__ import annotations

import functools
import gc
import time
from typing import Final

import torch
import torch.distributed as distributed
from torch import nn

WIDTH: Final = 1024
LAYERS: Final = 8
TOKENS: Final = 3


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv_proj, self.o_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(self.norm(x)).view(x.shape[0], 3, 8, -1).unbind(1)
        scores = torch.softmax(torch.einsum("thd,shd->hts", q, k), -1)
        y: torch.Tensor = self.o_proj((scores @ v.transpose(0, 1)).transpose(0, 1).reshape(x.shape[0], -1))
        return x + y


class Mlp(nn.Module):
    """Two projections, a shared one that may run on a stream beside them, and an all-reduce between ranks."""

    def __init__(self, beside: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.beside = beside
        self.norm, self.shared = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        z: torch.Tensor
        if self.beside is not None:
            self.beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.beside):
                z = self.shared(h)
        else:
            z = self.shared(h)
        y: torch.Tensor = self.down(torch.nn.functional.silu(self.up(h)))
        if self.beside is not None:
            torch.cuda.current_stream().wait_stream(self.beside)
        if distributed.is_initialized():
            distributed.all_reduce(y)
        return x + y + z


class Layer(nn.Module):
    def __init__(self, beside: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp(beside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.mlp(self.self_attn(x))
        return y


class Model(nn.Module):
    def __init__(self, beside: torch.cuda.Stream | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(beside) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x
        for layer in self.layers:
            y = layer(y)
        return y


@functools.cache
def _side_stream() -> torch.cuda.Stream:
    """One stream for all captures: a library's workspace belongs to its stream, and a new stream would bring a new one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


@torch.no_grad()
def capture(
    model: nn.Module, x: torch.Tensor, graph: torch.cuda.CUDAGraph | None = None
) -> tuple[torch.cuda.CUDAGraph, float]:
    """A captured forward, and the seconds the capture took; its garbage collection (torch.cuda.graph makes one) came before.

    Args:
        model, x: what is captured.
        graph: to capture into; None for a new one.
    """
    side = _side_stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph() if graph is None else graph
    gc.collect()
    begun = time.perf_counter()
    with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
        model(x)
    return graph, time.perf_counter() - begun
