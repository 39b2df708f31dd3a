"""Requests, their progress, and the batches they are run in."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    request_id: str
    prompt: tuple[int, ...]
    """Token ids."""
    max_tokens: int
    """Completion tokens at most."""
    stop_token: int | None = None
    """Ends the completion, and is its last token."""


@dataclass(eq=False)
class Sequence:
    """A request being served."""

    request: Request
    completion: list[int] = field(default_factory=list)
    """Committed tokens, the first of which prefill gives."""
    accept_lengths: list[int] = field(default_factory=list)
    """Tokens committed by each cycle after prefill."""

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and completion."""
        return (*self.request.prompt, *self.completion)

    @property
    def context_tokens(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.request.prompt) + len(self.completion)

    @property
    def finished(self) -> bool:
        """Whether the limit or the stop token was reached."""
        return len(self.completion) >= self.request.max_tokens or (
            bool(self.completion) and self.completion[-1] == self.request.stop_token
        )

    def commit(self, tokens: list[int]) -> int:
        """Take over what the target chose, up to the limit and the stop token.

        Returns:
            How many tokens were committed.
        """
        kept = tokens[: self.request.max_tokens - len(self.completion)]
        if self.request.stop_token in kept:
            kept = kept[: kept.index(self.request.stop_token) + 1]
        self.completion += kept
        return len(kept)


@dataclass(frozen=True)
class Batch:
    """What one cycle works on."""

    mode: str
    """speculative, decode or prefill."""
    sequences: tuple[Sequence, ...]
    """In row order."""
    row: int = 0
    """Row of the first sequence; only a prefill starts elsewhere than 0."""
