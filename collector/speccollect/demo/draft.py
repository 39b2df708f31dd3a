"""The draft: one decoder layer conditioned on the target's hidden states, as in EAGLE-3."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from speccollect.demo.config import POSITION_LAG, DemoConfig
from speccollect.demo.kv_cache import CacheRows
from speccollect.demo.layers import Attention, ColumnParallelLinear, GatedMLP, RMSNorm, RotaryEmbedding
from speccollect.demo.model import TargetModel, at_places
from speccollect.demo.parallel import TensorParallel
from speccollect.demo.weights import (
    AMPLITUDE,
    LOOKAHEAD,
    PREFERENCE,
    RESERVED,
    WeightSource,
    write_outputs,
    write_position_heads,
)

SHARPNESS: Final = 0.2
"""Of the draft's own position head: blunt, so that its neighbours' bits get in the way."""
FROM_TARGET: Final = 0.08
"""Weight of the bit found in the target's hidden state, beside the draft's own head of weight 1. Absent while the draft runs ahead alone."""
NOISE: Final = 0.3
"""Root mean square of each random part."""


class DraftModel(nn.Module):
    """Proposes tokens. Entry t of its cache holds the token at t + 1 beside the target's hidden state at t.

    The target's embedding, lm_head and sampler are shared, not copied.
    """

    def __init__(self, config: DemoConfig, source: WeightSource, parallel: TensorParallel, target: TargetModel) -> None:
        super().__init__()
        hidden, width = config.hidden, config.heads * config.head_dim
        fc = source.normal("draft.fc", hidden, 3 * hidden, std=NOISE * (3 * hidden) ** -0.5)
        fc[:RESERVED] = 0.0
        fc[PREFERENCE, LOOKAHEAD::hidden] = FROM_TARGET / 3
        joined = torch.cat(
            (
                torch.eye(hidden, device=source.device),
                source.normal("draft.input", hidden, hidden, std=NOISE * hidden**-0.5),
            ),
            dim=1,
        )
        joined[:RESERVED, hidden:] = 0.0
        joined[PREFERENCE, hidden + PREFERENCE] = 1.0
        qkv_rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        qkv = source.normal("draft.qkv", qkv_rows, hidden, std=hidden**-0.5)
        write_position_heads(qkv, config, (POSITION_LAG,), sharpness=SHARPNESS)
        o = source.normal("draft.o", hidden, width, std=NOISE * width**-0.5)
        write_outputs(o, config, ((PREFERENCE, AMPLITUDE),))
        inner = 2 * config.intermediate
        down = source.normal("draft.down", hidden, inner, std=NOISE * inner**-0.5)
        down[:RESERVED] = 0.0

        self.embed_tokens = target.embed_tokens
        self.fc = ColumnParallelLinear(source.stored(fc))
        self.input_proj = ColumnParallelLinear(source.stored(joined))
        self.rotary_emb = RotaryEmbedding(config, source.device)
        self.input_layernorm = RMSNorm(hidden, source)
        self.self_attn = Attention(config, 0, source, parallel, qkv, o)
        self.post_attention_layernorm = RMSNorm(hidden, source)
        self.mlp = GatedMLP(source, parallel, source.normal("draft.gate_up", 2, inner, hidden, std=hidden**-0.5), down)
        self.norm = RMSNorm(hidden, source)
        self.lm_head = target.lm_head
        self.sampler = target.sampler
        self.parallel = parallel

    def forward(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        lengths: torch.Tensor,
        cache: CacheRows,
        places: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One pass over tokens and the hidden states that led to them.

        Args:
            tokens: int64 [batch, tokens].
            hidden: the target's features, [batch, tokens, 3 * hidden], or where the draft runs ahead its own hidden
                states, [batch, tokens, hidden].
            lengths: int64 [batch], entries that each row of the draft's cache holds already.
            cache: the batch's rows of the draft's cache.
            places: int64 [batch, n], which of the tokens to propose a successor for; None: all.

        Returns:
            Proposed tokens, int64 [batch, n], and the hidden states they come from, [batch, n, hidden].
        """
        if hidden.shape[-1] == self.fc.weight.shape[1]:
            hidden = self.fc(hidden)
        x = self.input_proj(torch.cat((self.embed_tokens(tokens), hidden), dim=-1))
        step = self.rotary_emb(lengths, tokens.shape[1], cache)
        x = x + self.self_attn(self.input_layernorm(x), step)
        x = x + self.parallel.all_reduce(self.mlp(self.post_attention_layernorm(x)))
        x = at_places(x, places)
        return self.sampler(self.lm_head(self.norm(x))), x
