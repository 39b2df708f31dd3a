"""What vLLM's scheduler planned for one step, as a worker is told of it.

Releases read: 0.15.1 to 0.33.0 (``vllm/v1/core/sched/output.py``).
"""

from __future__ import annotations

from itertools import repeat
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One planned forward of the target."""

    mode: str
    """One of ``specschema.phases.CYCLE_MODES``."""
    request_ids: tuple[str, ...]
    drafts: tuple[int, ...]
    """Draft tokens to verify, per request."""
    draft_tokens: int
    """Draft tokens of the request that has most."""
    computed_tokens: int
    """Tokens of all requests whose keys and values are there before the step; too many under async scheduling."""


def read_step(output: Any) -> Step | None:
    """The step that a ``SchedulerOutput`` plans; None where nothing is to be computed.

    A request prefills while it has no output token, and again after a preemption, when its own output is computed anew.
    """
    total = output.total_num_scheduled_tokens
    if not total:
        return None
    scheduled: dict[str, int] = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    # no loop of Python's own: this runs at each step's start, over each request
    drafts = tuple(map(len, map(output.scheduled_spec_decode_tokens.get, scheduled, repeat(()))))
    most = max(drafts)
    computed: int = sum(cached.num_computed_tokens)
    if output.scheduled_new_reqs or 0 in cached.num_output_tokens or total != len(drafts) + sum(drafts):
        computed += sum(request.num_computed_tokens for request in output.scheduled_new_reqs)
        mode = _mode_beside_prefills(output, scheduled, drafts)
    else:  # of each request its last token and its drafts
        mode = "speculative" if most else "decode"
    # without the frame that the class's own constructor takes
    return tuple.__new__(Step, (mode, tuple(scheduled), drafts, most, computed))


def _mode_beside_prefills(output: Any, scheduled: dict[str, int], drafts: tuple[int, ...]) -> str:
    """``mixed`` is what verifies beside a prefill; a prefill beside plain decoding verifies nothing."""
    cached = output.scheduled_cached_reqs
    prefilling = {request.req_id for request in output.scheduled_new_reqs}
    prefilling.update(i for i, tokens in zip(cached.req_ids, cached.num_output_tokens, strict=True) if not tokens)
    prefills = any(
        tokens - count > 1 or request_id in prefilling
        for (request_id, tokens), count in zip(scheduled.items(), drafts, strict=True)
    )
    if any(drafts):
        return "mixed" if prefills else "speculative"
    return "prefill" if prefills else "decode"
