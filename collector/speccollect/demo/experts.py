"""The Mixture-of-Experts block: router, routed experts, shared expert, all-reduce."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from speccollect.demo.config import DemoConfig
from speccollect.demo.layers import ColumnParallelLinear, GatedMLP
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.weights import NOISE, RESERVED, WeightSource


class TopK(nn.Module):
    """Chooses each token's experts and their weights."""

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, experts] -> weights (float32, summing to 1) and expert indices, [tokens, top_k] each."""
        weights, chosen = torch.topk(logits.float().softmax(dim=-1), self.top_k, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen


class GroupedExperts(nn.Module):
    """All routed experts of a layer as two stacked weights, the inner width split over ranks.

    Shapes never depend on the routing, so that a CUDA graph can hold either way of computing it: tokens sorted by expert and one
    grouped matrix product (bfloat16 on CUDA), or a batched product of every expert with every token (elsewhere).
    """

    def __init__(
        self, config: DemoConfig, name: str, source: WeightSource, parallel: TensorParallel, gain: float
    ) -> None:
        super().__init__()
        experts, hidden, width = config.experts, config.hidden, config.intermediate
        share = parallel.share(width)
        gate_up = source.normal(f"{name}.gate_up", 2, experts, hidden, width, std=hidden**-0.5)
        down = source.normal(f"{name}.down", experts, width, hidden, std=gain * width**-0.5)
        down[:, :, :RESERVED] = 0.0
        self.gate_up = source.stored(torch.cat((gate_up[0, :, :, share], gate_up[1, :, :, share]), dim=-1))
        self.down = source.stored(down[:, share])
        self.sorted = (
            source.device.type == "cuda" and self.down.dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm")
        )

    def forward(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden], weights and chosen [tokens, top_k] -> this rank's partial sum, [tokens, hidden]."""
        return self._grouped(x, weights, chosen) if self.sorted else self._batched(x, weights, chosen)

    def _grouped(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        tokens, top_k = chosen.shape
        expert = chosen.reshape(-1)
        order = torch.argsort(expert)
        counts = torch.zeros(self.down.shape[0], dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, expert, torch.ones_like(expert, dtype=torch.int32))
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        gate, up = torch._grouped_mm(x[order // top_k], self.gate_up, offs=ends).chunk(2, dim=-1)
        out = torch._grouped_mm((F.silu(gate) * up).contiguous(), self.down, offs=ends)
        unsorted = torch.empty_like(out).index_copy_(0, order, out).view(tokens, top_k, -1)
        return (unsorted * weights[..., None].to(out.dtype)).sum(dim=1)

    def _batched(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        gate, up = torch.matmul(x, self.gate_up).chunk(2, dim=-1)
        share = weights.new_zeros(x.shape[0], self.down.shape[0]).scatter_(1, chosen, weights).to(x.dtype)
        return torch.bmm(F.silu(gate) * up * share.t()[..., None], self.down).sum(dim=0)


class MoE(nn.Module):
    """One layer's Mixture-of-Experts block."""

    def __init__(self, config: DemoConfig, name: str, source: WeightSource, parallel: TensorParallel) -> None:
        super().__init__()
        hidden, width = config.hidden, config.intermediate
        # Each of the 2 x layers blocks adds an equal part of the noise; silu(a) * b of unit normals is about 0.6.
        gain = NOISE / (2 * config.layers) ** 0.5 / 0.6
        self.gate = ColumnParallelLinear(
            source.stored(source.normal(f"{name}.gate", config.experts, hidden, std=hidden**-0.5))
        )
        self.topk = TopK(config.top_k)
        self.experts = GroupedExperts(config, f"{name}.experts", source, parallel, gain)
        down = source.normal(f"{name}.shared.down", hidden, width, std=gain * width**-0.5)
        down[:RESERVED] = 0.0
        self.shared_expert = GatedMLP(
            source, parallel, source.normal(f"{name}.shared.gate_up", 2, width, hidden, std=hidden**-0.5), down
        )
        self.parallel = parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, hidden] -> the same."""
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = self.topk(self.gate(flat))
        partial = self.experts(flat, weights, chosen) + self.shared_expert(flat)
        return self.parallel.all_reduce(partial).view(x.shape)
