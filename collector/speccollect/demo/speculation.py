"""Greedy verification of a chain of draft tokens."""

from __future__ import annotations

import torch


def accepted_drafts(drafts: torch.Tensor, verified: torch.Tensor) -> torch.Tensor:
    """How many leading draft tokens the target would have chosen itself.

    The target scored the committed token and the drafts behind it at once; ``verified[:, i]`` is its choice after ``drafts[:, :i]``.
    A draft token is accepted when it equals the target's choice at its place and all before it were accepted. So what is committed,
    ``verified[:, : accepted + 1]``, is what plain greedy decoding gives: each of its tokens was chosen after the same tokens.

    Args:
        drafts: int64 [batch, steps].
        verified: int64 [batch, steps + 1].

    Returns:
        int64 [batch], 0 to steps.
    """
    return (drafts == verified[:, :-1]).long().cumprod(dim=1).sum(dim=1)
