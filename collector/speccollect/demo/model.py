"""The target: a decoder-only Mixture-of-Experts model."""

from __future__ import annotations

import torch
from torch import nn

from speccollect.demo.config import DemoConfig
from speccollect.demo.experts import MoE
from speccollect.demo.kv_cache import CacheRows
from speccollect.demo.layers import Attention, ColumnParallelLinear, RMSNorm, RotaryEmbedding, Step
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.weights import (
    AMPLITUDE,
    LOOKAHEAD,
    NOISE,
    PREFERENCE,
    TARGET_LAGS,
    TARGET_SHARPNESS,
    WeightSource,
    transition,
    write_outputs,
    write_position_heads,
)


class TokenEmbedding(nn.Module):
    """Token ids to vectors, whole on every rank."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [...] -> [..., hidden]."""
        return self.weight[tokens]


class GreedySampler(nn.Module):
    """The most likely token, out of logits that are split over ranks.

    Every rank sees the same gathered maxima, so all ranks choose the same token whatever their rounding.
    """

    def __init__(self, parallel: TensorParallel) -> None:
        super().__init__()
        self.parallel = parallel

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's logits, [..., vocab / ranks] -> token ids, int64 [...]."""
        best, index = logits.float().max(dim=-1)
        if self.parallel.size == 1:
            return index
        first = self.parallel.rank * logits.shape[-1]
        # float32 holds ids below 2**24 exactly, and one gather of pairs is cheaper than two.
        gathered = self.parallel.all_gather(torch.stack((best, (index + first).float())))
        owner = gathered[:, 0].argmax(dim=0, keepdim=True)
        return gathered[:, 1].gather(0, owner)[0].long()


class DecoderLayer(nn.Module):
    """Attention and experts around a residual stream."""

    def __init__(self, config: DemoConfig, layer: int, source: WeightSource, parallel: TensorParallel) -> None:
        super().__init__()
        name, hidden, width = f"layers.{layer}", config.hidden, config.heads * config.head_dim
        qkv_rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        qkv = source.normal(f"{name}.qkv", qkv_rows, hidden, std=hidden**-0.5)
        o = source.normal(f"{name}.o", hidden, width, std=NOISE / (2 * config.layers) ** 0.5 * width**-0.5)
        features: tuple[tuple[int, float], ...] = ()
        if layer == 0:
            write_position_heads(qkv, config, TARGET_LAGS, sharpness=TARGET_SHARPNESS)
            features = ((PREFERENCE, AMPLITUDE), (LOOKAHEAD, AMPLITUDE))
        write_outputs(o, config, features)
        self.input_layernorm = RMSNorm(hidden, source)
        self.self_attn = Attention(config, layer, source, parallel, qkv, o)
        self.post_attention_layernorm = RMSNorm(hidden, source)
        self.mlp = MoE(config, f"{name}.mlp", source, parallel)

    def forward(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """[batch, tokens, hidden] -> the same."""
        x = x + self.self_attn(self.input_layernorm(x), step)
        out: torch.Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class TargetModel(nn.Module):
    """The model whose answers count."""

    def __init__(self, config: DemoConfig, source: WeightSource, parallel: TensorParallel) -> None:
        super().__init__()
        rule = transition(source)
        self.feature_layers = config.feature_layers
        self.embed_tokens = TokenEmbedding(source.stored(rule.embedding))
        self.rotary_emb = RotaryEmbedding(config, source.device)
        self.layers = nn.ModuleList(DecoderLayer(config, n, source, parallel) for n in range(config.layers))
        self.norm = RMSNorm(config.hidden, source)
        self.lm_head = ColumnParallelLinear(source.stored(rule.head[parallel.share(config.vocab)]))
        self.sampler = GreedySampler(parallel)

    def forward(
        self, tokens: torch.Tensor, lengths: torch.Tensor, cache: CacheRows, places: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run tokens behind those that the cache holds, and add them to it.

        Args:
            tokens: int64 [batch, tokens].
            lengths: int64 [batch], tokens that each row of the cache holds already.
            cache: the batch's rows.
            places: int64 [batch, n], which of the tokens to choose a successor for; None: all.

        Returns:
            The most likely next tokens, int64 [batch, n], and the features that the draft model is conditioned on,
            [batch, tokens, 3 * hidden].
        """
        x = self.embed_tokens(tokens)
        step = self.rotary_emb(lengths, tokens.shape[1], cache)
        outputs = []
        for layer in self.layers:
            x = layer(x, step)
            outputs.append(x)
        features = torch.cat([outputs[n] for n in self.feature_layers], dim=-1)
        return self.sampler(self.lm_head(self.norm(at_places(x, places)))), features


def at_places(hidden: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    """The rows [batch, n, hidden] of [batch, tokens, hidden] at ``places`` (int64 [batch, n]); None: all."""
    if places is None:
        return hidden
    return hidden.gather(1, places[:, :, None].expand(-1, -1, hidden.shape[-1]))
