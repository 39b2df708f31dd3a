"""What vLLM's scheduler planned for one step, as a worker is told of it.

Releases read: 0.15.1 to 0.33.0 (``vllm/v1/core/sched/output.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Step(NamedTuple):
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
    if not output.total_num_scheduled_tokens:
        return None
    scheduled: dict[str, int] = output.num_scheduled_tokens
    speculated = output.scheduled_spec_decode_tokens
    cached = output.scheduled_cached_reqs
    computed: int = sum(cached.num_computed_tokens)
    prefilling: set[str] = set()
    # plain loops: this runs at each step's start, and a generator costs a frame an element
    for request in output.scheduled_new_reqs:
        prefilling.add(request.req_id)
        computed += request.num_computed_tokens
    if 0 in cached.num_output_tokens:
        prefilling.update(i for i, tokens in zip(cached.req_ids, cached.num_output_tokens, strict=True) if not tokens)
    drafts: list[int] = []
    prefills: list[bool] = []
    for request_id, tokens in scheduled.items():
        count = len(speculated[request_id]) if request_id in speculated else 0
        drafts.append(count)
        prefills.append(tokens - count > 1 or request_id in prefilling)
    return Step(_mode(drafts, prefills), tuple(scheduled), tuple(drafts), tuple(prefills), computed)


def _mode(drafts: list[int], prefills: list[bool]) -> str:
    """``mixed`` is what verifies beside a prefill; a prefill beside plain decoding verifies nothing."""
    if any(drafts):
        return "mixed" if any(prefills) else "speculative"
    return "prefill" if any(prefills) else "decode"
