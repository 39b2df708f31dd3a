"""What the worker keeps on the device for each running request."""

from __future__ import annotations

import torch

from speccollect.demo.config import DemoConfig


class BatchState:
    """One row a request, at fixed addresses: the phases of a cycle hand data to each other here, and CUDA graphs read and write it.

    Rows beyond the running batch hold leftovers, which padded graphs compute on and nobody reads.
    """

    def __init__(self, config: DemoConfig, device: torch.device) -> None:
        rows, steps = config.max_batch, config.steps
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        """Tokens in the target's cache: all committed ones but the last."""
        self.last_token = torch.zeros(rows, dtype=torch.int64, device=device)
        """The committed token that no cache holds yet."""
        self.drafts = torch.zeros(rows, steps, dtype=torch.int64, device=device)
        """Proposed tokens; the first comes from prefill or draft_extend, the rest from draft."""
        self.draft_hidden = torch.zeros(rows, config.hidden, dtype=config.torch_dtype, device=device)
        """The draft's hidden state that gave the first proposed token."""
        self.verified = torch.zeros(rows, steps + 1, dtype=torch.int64, device=device)
        """The target's choices; the first ``accepted + 1`` are committed."""
        self.features = torch.zeros(rows, steps + 1, 3 * config.hidden, dtype=config.torch_dtype, device=device)
        """The target's features at the verified places, for draft_extend."""
        self.outcome = torch.zeros(rows, steps + 2, dtype=torch.int64, device=device)
        """What the host reads once a cycle: accepted draft tokens, then ``verified``."""
        # A padded row counts on for ever; clamped, it never writes outside the cache.
        self._last_start = config.max_context - steps - 1

    @property
    def accepted(self) -> torch.Tensor:
        """Accepted draft tokens, int64 [rows] (a view)."""
        return self.outcome[:, 0]

    def advance(self, batch: int, committed: torch.Tensor) -> None:
        """Count ``committed`` (int64 [batch]) tokens into the lengths of the first ``batch`` rows."""
        torch.clamp(self.lengths[:batch] + committed, max=self._last_start, out=self.lengths[:batch])

    def move_row(self, source: int, target: int) -> None:
        """Copy one request's row over another's."""
        for tensor in (
            self.lengths,
            self.last_token,
            self.drafts,
            self.draft_hidden,
            self.verified,
            self.features,
            self.outcome,
        ):
            tensor[target].copy_(tensor[source])
