"""Latencies of a streamed request from the arrival of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

PERCENTILES: Final = (50, 90, 99)


@dataclass
class Streamed:
    """One request as the client saw it. Times are Unix ns.

    Attributes:
        chunks: arrival time and completion tokens so far of each chunk that brought text; tokens are None where the
            server does not count per chunk.
    """

    request_id: str | None
    sent_ns: int
    chunks: list[tuple[int, int | None]] = field(default_factory=list)
    ended_ns: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    error: str | None = None

    @property
    def first_token_ns(self) -> int | None:
        """Time to first token."""
        return self.chunks[0][0] - self.sent_ns if self.chunks else None


def percentiles(values: Sequence[float], weights: Sequence[int] | None = None) -> dict[str, float] | None:
    """p50, p90 and p99 (lower value at the given share); each value counts ``weights`` times. None without values."""
    if len(values) == 0:
        return None
    data = np.repeat(values, weights) if weights is not None else np.asarray(values)
    return {f"p{p}": float(np.percentile(data, p, method="inverted_cdf")) for p in PERCENTILES}


def summarise(requests: Sequence[Streamed]) -> dict[str, Any]:
    """Figures over all requests that ended well.

    Returns:
        ``requests``, ``failed``, ``prompt_tokens``, ``completion_tokens``; ``tokens_per_second`` of the whole run (all
        requests, first sent to last end) and ``decode_tokens_per_second`` per request after its first chunk (mean);
        ``first_token_ms``, ``chunk_gap_ms`` (time between two chunks) and ``token_gap_ms`` (a chunk's gap divided by
        its tokens, counted once a token: chunks of speculative decoding bring several tokens at once), each with
        p50, p90, p99; ``tokens_per_chunk``. Null where the server does not tell.
    """
    good = [r for r in requests if r.error is None]
    known = [r.completion_tokens for r in good if r.completion_tokens is not None]
    completion = sum(known) if good and len(known) == len(good) else None
    prompts = [r.prompt_tokens for r in good if r.prompt_tokens is not None]
    span = (max(r.ended_ns for r in good) - min(r.sent_ns for r in good)) / 1e9 if good else 0
    gaps: list[float] = []
    token_gaps: list[float] = []
    counts: list[int] = []
    rates: list[float] = []
    for request in good:
        for (before, tokens_before), (now, tokens) in zip(request.chunks, request.chunks[1:], strict=False):
            gaps.append((now - before) / 1e6)
            if tokens is not None and tokens_before is not None and tokens > tokens_before:
                counts.append(tokens - tokens_before)
                token_gaps.append((now - before) / 1e6 / (tokens - tokens_before))
        if len(request.chunks) > 1 and request.completion_tokens is not None:
            first, last = request.chunks[0], request.chunks[-1]
            decoded = request.completion_tokens - (first[1] if first[1] is not None else 1)
            if last[0] > first[0]:
                rates.append(decoded / ((last[0] - first[0]) / 1e9))
    return {
        "requests": len(requests),
        "failed": len(requests) - len(good),
        "prompt_tokens": sum(prompts) if prompts else None,
        "completion_tokens": completion,
        "tokens_per_second": completion / span if completion is not None and span > 0 else None,
        "decode_tokens_per_second": float(np.mean(rates)) if rates else None,
        "first_token_ms": percentiles([r.first_token_ns / 1e6 for r in good if r.first_token_ns is not None]),
        "chunk_gap_ms": percentiles(gaps),
        "token_gap_ms": percentiles(token_gaps, counts),
        "tokens_per_chunk": float(np.mean(counts)) if counts else None,
    }
