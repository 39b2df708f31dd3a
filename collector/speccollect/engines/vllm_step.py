"""What vLLM's scheduler planned for one step, as a worker is told of it.

Releases read: 0.15.1 to 0.33.0 (``vllm/v1/core/sched/output.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """One planned forward of the target."""

    mode: str
    """One of ``specschema.phases.CYCLE_MODES``."""
    request_ids: tuple[str, ...]
    drafts: tuple[int, ...]
    """Draft tokens to verify, per request."""
    prefills: tuple[bool, ...]
    """Whether the step computes prompt tokens of the request, per request."""
    computed_tokens: int
    """Tokens of all requests whose keys and values are there before the step; too many under async scheduling."""

    @property
    def draft_tokens(self) -> int:
        """Tokens that the draft proposed for the request that has most."""
        return max(self.drafts, default=0)


def read_step(output: Any) -> Step | None:
    """The step that a ``SchedulerOutput`` plans; None where nothing is to be computed.

    A request prefills while it has no output token, and again after a preemption, when its own output is computed anew.
    """
    scheduled: dict[str, int] = output.num_scheduled_tokens
    if not output.total_num_scheduled_tokens:
        return None
    speculated = output.scheduled_spec_decode_tokens
    cached = output.scheduled_cached_reqs
    prefilling = {request.req_id for request in output.scheduled_new_reqs}
    prefilling.update(i for i, tokens in zip(cached.req_ids, cached.num_output_tokens, strict=True) if not tokens)
    computed = sum(request.num_computed_tokens for request in output.scheduled_new_reqs)
    drafts = tuple(len(speculated.get(request_id, ())) for request_id in scheduled)
    prefills = tuple(
        request_id in prefilling or tokens - count > 1
        for (request_id, tokens), count in zip(scheduled.items(), drafts, strict=True)
    )
    return Step(
        mode=_mode(drafts, prefills),
        request_ids=tuple(scheduled),
        drafts=drafts,
        prefills=prefills,
        computed_tokens=computed + sum(cached.num_computed_tokens),
    )


def _mode(drafts: tuple[int, ...], prefills: tuple[bool, ...]) -> str:
    """``mixed`` is what verifies beside a prefill; a prefill beside plain decoding verifies nothing."""
    if any(drafts):
        return "mixed" if any(prefills) else "speculative"
    return "prefill" if any(prefills) else "decode"
