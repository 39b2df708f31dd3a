"""Weights by seed: random, with a transition built in that the draft model can learn half of.

Random weights alone would make every next token unpredictable, so no draft would ever be accepted, and would let rounding decide near
ties, so that scoring three tokens at once could answer differently from scoring one. So four dimensions of the residual stream are kept
free of random writes and carry a rule: after token ``v`` come only two candidates, ``high[v]`` and ``low[v]``; the code bit of the token
POSITION_LAG places back decides between them. One attention head of the target's first layer fetches that bit out of the KV cache, a second one
fetches the bit the *next* token will need. All else in the model is random and stays inside the margin between the candidates.
The draft shares embedding and lm_head, so it knows the candidates; the deciding bit it has only from the target's hidden state and from
a blunt copy of the head. It guesses well, not always right, and worse the further it runs ahead of the target.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final, NamedTuple

import torch

from speccollect.demo.config import POSITION_LAG, DemoConfig

CONSTANT, PREFERENCE, CODE, LOOKAHEAD = range(4)
"""Reserved dimensions: always on; which candidate comes next (sign); the token's own bit (sign); the bit that the next token needs."""
RESERVED: Final = 4

AMPLITUDE: Final = 4.0
"""Size of a reserved feature beside a residual stream of about unit variance."""
LOGIT_SCALE: Final = 8.0
"""Logit of a candidate before the preference moves it."""
PREFERENCE_SHARE: Final = 0.3
"""How far the preference moves a candidate, up or down, in units of its logit: the margin is twice that."""
NOISE: Final = 0.5
"""Root mean square that all random blocks together add to the residual stream."""
ROTARY_BASE: Final = 10_000.0


class WeightSource:
    """Random tensors that depend on the seed and the tensor's name alone, so that every rank can make the whole and keep its share."""

    def __init__(self, config: DemoConfig, device: torch.device) -> None:
        self.config = config
        self.device = device

    def normal(self, name: str, *shape: int, std: float) -> torch.Tensor:
        """float32 tensor of normal values on the source's device."""
        return torch.randn(shape, generator=self._generator(name, self.device), device=self.device).mul_(std)

    def permutation(self, name: str, n: int) -> torch.Tensor:
        """int64 permutation of 0 .. n-1."""
        return torch.randperm(n, generator=self._generator(name, torch.device("cpu"))).to(self.device)

    def stored(self, full: torch.Tensor) -> torch.nn.Parameter:
        """A model parameter of the configured type, contiguous, without gradient."""
        return torch.nn.Parameter(full.to(self.config.torch_dtype).contiguous(), requires_grad=False)

    def _generator(self, name: str, device: torch.device) -> torch.Generator:
        digest = hashlib.blake2b(f"{self.config.seed}/{name}".encode(), digest_size=7).digest()
        return torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))


class Transition(NamedTuple):
    """The rule as tensors. ``embedding`` and ``head`` are float32 [vocab, hidden]; ``high``, ``low`` and ``code`` (+1, -1) int64 [vocab]."""

    embedding: torch.Tensor
    head: torch.Tensor
    high: torch.Tensor
    low: torch.Tensor
    code: torch.Tensor


def transition(source: WeightSource) -> Transition:
    """Embedding and lm_head that hold the candidates of every token."""
    vocab, hidden = source.config.vocab, source.config.hidden
    free = hidden - RESERVED
    embedding = source.normal("embedding", vocab, hidden, std=1.0)
    body = embedding[:, RESERVED:]
    body *= free**0.5 / body.norm(dim=1, keepdim=True)
    code = torch.where(source.permutation("code", vocab) % 2 == 0, 1, -1)
    embedding[:, CONSTANT] = AMPLITUDE
    embedding[:, PREFERENCE] = 0.0
    embedding[:, CODE] = AMPLITUDE * code
    embedding[:, LOOKAHEAD] = 0.0

    order = source.permutation("classes", vocab)
    classes = order[: vocab // 2], order[vocab // 2 :]
    high = classes[0][source.permutation("high", vocab) // 2]
    low = classes[1][source.permutation("low", vocab) // 2]
    head = torch.zeros_like(embedding)
    head[:, RESERVED:].index_add_(0, high, body).index_add_(0, low, body)
    head[:, RESERVED:] *= LOGIT_SCALE / free
    head[classes[0], PREFERENCE] = LOGIT_SCALE * PREFERENCE_SHARE / AMPLITUDE
    head[classes[1], PREFERENCE] = -LOGIT_SCALE * PREFERENCE_SHARE / AMPLITUDE
    return Transition(embedding, head, high, low, code)


def frequencies(head_dim: int, device: torch.device) -> torch.Tensor:
    """Rotary angle per position of each pair of elements, float32 [head_dim / 2]."""
    return ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)


def write_position_heads(qkv: torch.Tensor, config: DemoConfig, lags: tuple[int, ...], *, sharpness: float) -> None:
    """Turn the first query heads, and key-value head 0, into heads that look a fixed number of tokens back.

    Args:
        qkv: whole projection, [(heads + 2 kv_heads) * head_dim, hidden], changed in place. Its input is a normalised stream whose
            reserved features are as the embedding left them.
        lags: tokens back, one query head each; at most heads / kv_heads of them, since they share key-value head 0.
        sharpness: how far, in softmax logits, the right token's neighbours lie below it.
    """
    dim = config.head_dim
    angle = frequencies(dim, qkv.device)
    half = dim // 2
    # Neighbours differ by the sum of 1 - cos(angle) over the pairs; the product of query and key gives the sharpness its scale.
    drop = sum(1 - math.cos(ROTARY_BASE ** (-pair / dim)) for pair in range(0, dim, 2))
    amplitude = (sharpness / drop * dim**0.5) ** 0.5
    body = (config.hidden - RESERVED + 2 * AMPLITUDE**2) / config.hidden
    feature = AMPLITUDE / body**0.5
    for head, lag in enumerate(lags):
        rows = qkv[head * dim : (head + 1) * dim]
        rows.zero_()
        rows[:half, CONSTANT] = torch.cos(-lag * angle) * amplitude / feature
        rows[half:, CONSTANT] = torch.sin(-lag * angle) * amplitude / feature
    key = config.heads * dim
    qkv[key : key + dim].zero_()
    qkv[key : key + half, CONSTANT] = amplitude / feature
    value = (config.heads + config.kv_heads) * dim
    qkv[value].zero_()
    qkv[value, CODE] = 1 / feature


def write_outputs(projection: torch.Tensor, config: DemoConfig, features: tuple[tuple[int, float], ...]) -> None:
    """Let position head n write reserved feature ``features[n][0]`` with weight ``features[n][1]``, and nothing else write any.

    ``projection`` is the whole output projection, [hidden, heads * head_dim], changed in place.
    """
    projection[:RESERVED] = 0.0
    for head, (feature, weight) in enumerate(features):
        projection[feature, head * config.head_dim] = weight


TARGET_LAGS: Final = (POSITION_LAG, POSITION_LAG - 1)
"""The token that decides the next one, and the token that will decide the one after."""
TARGET_SHARPNESS: Final = 25.0
"""Saturated: the neighbours together get less than 1e-10 of the weight."""
