"""The layers that both models are made of: norm, linear layers split over ranks, attention over the cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from speccollect.demo.config import DemoConfig
from speccollect.demo.kv_cache import CacheRows, KVCache
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.weights import WeightSource, frequencies

# cuDNN's attention plans at run time, which a graph capture can't; the math fallback is for head sizes the others refuse.
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class RMSNorm(nn.Module):
    """Root-mean-square norm with unit weight."""

    def __init__(self, hidden: int, source: WeightSource) -> None:
        super().__init__()
        self.weight = source.stored(torch.ones(hidden, device=source.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> the same."""
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class ColumnParallelLinear(nn.Module):
    """Linear layer of which each rank holds some outputs; ``weight`` is already this rank's share."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs] -> [..., outputs of this rank]."""
        return F.linear(x, self.weight)


class RowParallelLinear(nn.Module):
    """Linear layer of which each rank holds some inputs; the ranks' partial sums are added by an all-reduce."""

    def __init__(self, weight: nn.Parameter, parallel: TensorParallel) -> None:
        super().__init__()
        self.weight = weight
        self.parallel = parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., inputs of this rank] -> [..., outputs]."""
        return self.parallel.all_reduce(F.linear(x, self.weight))


class Step(NamedTuple):
    """What every layer of one forward pass shares."""

    positions: torch.Tensor
    """int64 [batch, tokens]."""
    cos: torch.Tensor
    """float32 [batch, tokens, 1, head_dim / 2], likewise sin."""
    sin: torch.Tensor
    mask: torch.Tensor
    """[batch, 1, queries a kv head * tokens, max_context]: 0 where a token may look, -inf elsewhere."""
    cache: CacheRows


class RotaryEmbedding(nn.Module):
    """Positions, rotary angles and the causal mask of a forward pass, computed once for all layers."""

    cos: torch.Tensor
    sin: torch.Tensor
    places: torch.Tensor

    def __init__(self, config: DemoConfig, device: torch.device) -> None:
        super().__init__()
        angle = torch.arange(config.max_context, device=device)[:, None] * frequencies(config.head_dim, device)
        self.group = config.heads // config.kv_heads
        self.dtype = config.torch_dtype
        self.register_buffer("cos", angle.cos()[:, None], persistent=False)
        self.register_buffer("sin", angle.sin()[:, None], persistent=False)
        self.register_buffer("places", torch.arange(config.max_context, device=device), persistent=False)

    def forward(self, lengths: torch.Tensor, tokens: int, cache: CacheRows) -> Step:
        """Positions follow the ``lengths`` (int64 [batch]) tokens that the cache rows hold already."""
        positions = lengths[:, None] + self.places[:tokens]
        hidden = self.places > positions[:, :, None]
        mask = torch.zeros_like(hidden, dtype=self.dtype).masked_fill_(hidden, float("-inf"))
        batch, context = lengths.shape[0], self.places.shape[0]
        mask = mask[:, None, None].expand(batch, 1, self.group, tokens, context).reshape(batch, 1, -1, context)
        return Step(positions, self.cos[positions], self.sin[positions], mask, cache)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [batch, tokens, heads, head_dim], in float32, halves as pairs."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class CachedAttention(nn.Module):
    """The attention core: rotary, cache write, softmax over the cache."""

    def __init__(self, config: DemoConfig, layer: int, parallel: TensorParallel) -> None:
        super().__init__()
        self.layer = layer
        self.heads = config.heads // parallel.size
        self.kv_heads = config.kv_heads // parallel.size
        self.head_dim = config.head_dim

    def forward(self, qkv: torch.Tensor, step: Step) -> torch.Tensor:
        """[batch, tokens, (heads + 2 kv_heads) * head_dim] of this rank -> [batch, tokens, heads * head_dim]."""
        batch, tokens, _ = qkv.shape
        q, k, v = torch.split(
            qkv.view(batch, tokens, -1, self.head_dim), [self.heads, self.kv_heads, self.kv_heads], dim=2
        )
        q = rotate(q, step.cos, step.sin)
        keys, values = step.cache.write(self.layer, step.positions, rotate(k, step.cos, step.sin), v)
        # The queries that share a key-value head stand behind each other as more tokens: no copy of keys, no head expansion.
        q = q.view(batch, tokens, self.kv_heads, -1, self.head_dim).permute(0, 2, 3, 1, 4)
        group = q.shape[2]
        q = q.reshape(batch, self.kv_heads, group * tokens, self.head_dim)
        mask = step.mask.expand(batch, self.kv_heads, group * tokens, -1)
        with sdpa_kernel(_BACKENDS):
            out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.view(batch, self.kv_heads, group, tokens, self.head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(batch, tokens, -1)


class Attention(nn.Module):
    """Grouped-query attention: qkv_proj, attn, o_proj, heads split over ranks.

    ``qkv`` and ``o`` are the whole weights ([(heads + 2 kv_heads) * head_dim, hidden] and [hidden, heads * head_dim], float32).
    """

    def __init__(
        self,
        config: DemoConfig,
        layer: int,
        source: WeightSource,
        parallel: TensorParallel,
        qkv: torch.Tensor,
        o: torch.Tensor,
    ) -> None:
        super().__init__()
        dim = config.head_dim
        q, k, v = torch.split(qkv, [config.heads * dim, config.kv_heads * dim, config.kv_heads * dim])
        share = torch.cat([part[parallel.share(part.shape[0])] for part in (q, k, v)])
        self.qkv_proj = ColumnParallelLinear(source.stored(share))
        self.attn = CachedAttention(config, layer, parallel)
        self.o_proj = RowParallelLinear(source.stored(o[:, parallel.share(o.shape[1])]), parallel)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """[batch, tokens, hidden] -> the same."""
        out: torch.Tensor = self.o_proj(self.attn(self.qkv_proj(x), step))
        return out


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) with the inner width split over ranks; the caller adds the ranks' partial sums.

    ``gate_up`` is [2, width, hidden] and ``down`` [hidden, width], whole and float32.
    """

    def __init__(
        self, source: WeightSource, parallel: TensorParallel, gate_up: torch.Tensor, down: torch.Tensor
    ) -> None:
        super().__init__()
        share = parallel.share(down.shape[1])
        self.gate_up_proj = ColumnParallelLinear(source.stored(gate_up[:, share].flatten(0, 1)))
        self.down_proj = ColumnParallelLinear(source.stored(down[:, share]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> this rank's partial sum, [..., hidden]."""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        out: torch.Tensor = self.down_proj(F.silu(gate) * up)
        return out


def new_cache(config: DemoConfig, layers: int, parallel: TensorParallel, device: torch.device) -> KVCache:
    """A cache for a model of ``layers`` layers, max_batch rows, this rank's heads."""
    return KVCache(
        layers,
        config.max_batch,
        config.max_context,
        config.kv_heads // parallel.size,
        config.head_dim,
        dtype=config.torch_dtype,
        device=device,
    )
